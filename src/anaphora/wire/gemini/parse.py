"""A generateContent request as a call, and as chunks of its own bytes.

`parse` keeps everything where it stood and as it was written: arguments and schemas keep their
text, missing ids stay missing on this wire, unknown fields become extras. The few forms that it
normalises are listed in `analysis/roundtrip/gemini.py`.

`split` normalises nothing inside a part, a tool or a declaration, so that a cache is billed, and a
miss explained, by the bytes that were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    Audio,
    Bytes,
    CachePolicy,
    Conversation,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    ProviderTool,
    ResultPart,
    Role,
    SegmentRole,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire.memo import SYSTEM_PROMPTS, TOOL_LISTS, SplitSection
from anaphora.wire.params import closing_members
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    LenientDecoder,
    Members,
    Unknown,
    converts_errors,
    decode_members,
    encode_members,
    extras_of,
    known_text,
    message_ids,
    object_members,
    request_error,
)
from anaphora.wire.rendering import render_items

from .params import cache_params, frozen_with, model_id, path_of, read_params, read_path
from .parts import read_answer, write_answer
from .render import CLOSE, CONTENTS, END_FUNCTIONS, GLUE, system_run, tool_glue, tools_run
from .types import (
    CONTENT_FIELDS,
    FORM,
    MADE_ID,
    MEMO,
    NULL,
    WIRE,
    Content,
    FunctionDeclaration,
    GenerateContentRequest,
    RawContent,
    RawContentRequest,
    RequestSettings,
    ToolObject,
    WirePart,
    camel,
    decode_base64,
    elements,
    json_schema,
    read_elements,
)

_request = msgspec.json.Decoder(GenerateContentRequest).decode
_REQUEST: LenientDecoder[RawContentRequest] = LenientDecoder(RawContentRequest, protobuf=True)
_CONTENT: LenientDecoder[RawContent] = LenientDecoder(RawContent, protobuf=True)
_PART: LenientDecoder[WirePart] = LenientDecoder(WirePart, protobuf=True)
_FUNCTION: LenientDecoder[FunctionDeclaration] = LenientDecoder(FunctionDeclaration, protobuf=True)
_TOOL: LenientDecoder[ToolObject] = LenientDecoder(ToolObject, protobuf=True)

_ROLES: dict[str, Role] = {"user": "user", "function": "user", "model": "assistant"}


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:
    """The call of a request; `InvalidRequest` names the field that is invalid. The path names the
    model and whether to stream."""
    model, stream = read_path(path)
    request: RequestSettings
    unknown: Unknown | None = None
    try:
        request = strict = _request(body)
        messages = _read_contents(strict.contents)
    except (*DECODE_ERRORS, _KeptWhole):
        request, unknown = _REQUEST.decode(body, "$", request_error)
        messages = _read_raw_contents(elements(request.contents))
    blocks: tuple[PromptBlock, ...] = ()
    if bytes(request.systemInstruction) != b"null":
        read = _read_system(bytes(request.systemInstruction))
        if read is None:
            unknown = unknown or Unknown({})
            unknown.members["systemInstruction"] = request.systemInstruction
        blocks = read or ()
    params, extras = read_params(request, unknown, stream)
    conversation = Segment(SegmentRole.CONVERSATION, Conversation(messages))
    return Call(
        ir=PromptIR(system_blocks=blocks, segments=(conversation,)),
        model=model if model or not request.model else model_id(request.model),
        tools=() if request.tools is NULL else _read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


# ── Contents ─────────────────────────────────────────────────────────────────────────────────────


class _KeptWhole(Exception):
    """A part that is not exactly one of the known kinds is kept as the bytes that it came in."""


def _read_contents(contents: list[Content]) -> list[Message]:
    messages: list[Message] = []
    waiting: Waiting = {}
    names = message_ids(len(contents))
    for index, content in enumerate(contents):
        parts: list[Part] = []
        for part in content.parts:
            parts.append(read_part(part, None, index, len(parts), waiting))
        messages.append(Message(id=names[index], role=_ROLES[content.role], parts=tuple(parts)))
    return messages


def _read_raw_contents(raws: list[Raw]) -> list[Message]:
    """The same for any contents."""
    messages: list[Message] = []
    waiting: Waiting = {}
    names = message_ids(len(raws))
    unknown: Unknown | None = None
    for index, raw in enumerate(raws):
        path = f"$.contents[{index}]"
        # Where one content has unknown fields, the next one likely has them too.
        decode = _CONTENT.decode if unknown is None else _CONTENT.separate
        content, unknown = decode(raw, path, request_error)
        role, path = content.role or "user", f"{path}.parts"
        if role not in _ROLES:
            reason = f"{role!r} is not a role here; use user or model"
            raise request_error(reason, f"$.contents[{index}].role")
        parts: list[Part] = []
        for part in elements(content.parts):
            parts.append(read_raw_part(part, path, request_error, index, len(parts), waiting))
        if unknown is not None:
            parts += fields_part(WIRE, CONTENT_FIELDS, unknown.remaining())
        messages.append(Message(id=names[index], role=_ROLES[role], parts=tuple(parts)))
    return messages


def read_content(raw: Raw, path: str, fail: ErrorFactory) -> tuple[str, list[Raw], Unknown | None]:
    """The role of a content, its parts, and its unknown members."""
    content, unknown = _CONTENT.decode(raw, path, fail)
    return content.role or "user", elements(content.parts), unknown


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────

#: The ids made for calls that came without one and have no result yet, by function.
Waiting = dict[str, deque[str]]

#: Members that stand beside what a part is.
_BESIDE = frozenset(
    {
        "thought",
        "thoughtSignature",
        "mediaProcessing",
        "mediaResolution",
        "partMetadata",
        "speechMetadata",
        "videoMetadata",
    }
)
_OWN_FILES = ("gs://", "files/", "https://generativelanguage.googleapis.com/")


def read_raw_part(
    raw: Raw, path: str, fail: ErrorFactory, place: int | str | None, index: int, waiting: Waiting
) -> Part:
    """Any part; `path` is that of its list. One of an unknown kind is kept whole."""
    unknown: Unknown | None = None
    try:
        part = _PART.strict(raw)
    except DECODE_ERRORS:
        part, unknown = _PART.separate(raw, f"{path}[{index}]", fail)
    try:
        return read_part(part, unknown, place, index, waiting, path, fail)
    except _KeptWhole:
        pass
    names = map(camel, decode_members(raw))
    kind = next((name for name in names if name not in _BESIDE), "part")
    return Opaque(WIRE, f"part {kind}" if kind == CONTENT_FIELDS else kind, bytes(raw).decode())


def read_part(
    part: WirePart,
    unknown: Unknown | None,
    place: int | str | None,
    index: int,
    waiting: Waiting,
    path: str = "",
    fail: ErrorFactory = request_error,
) -> Part:
    """The part at `index`. A call without an id gets one made of `place` and `index`, a result
    without one that of the first call of its function that is waiting."""
    text, call, response = part.text, part.functionCall, part.functionResponse
    if part.inlineData is not None or part.fileData is not None:
        if text is not None or call is not None or response is not None:
            raise _KeptWhole
        return _read_media(part, unknown)
    plain = part.thoughtSignature is NULL and part.thought is None and unknown is None
    if text is not None:
        if call is not None or response is not None:
            raise _KeptWhole
        return Text(text) if plain else _read_text(text, part, unknown)
    extras = None if plain else _extras(part, unknown)
    if call is not None:
        if response is not None:
            raise _KeptWhole
        name, call_id, arguments = call.name or "", call.id, str(call.args, "utf-8")
        if not call_id:
            call_id = f"call_{index}" if place is None else f"call_{place}_{index}"
            if name in waiting:
                waiting[name].append(call_id)
            else:
                waiting[name] = deque((call_id,))
            extras = MADE_ID.copy() if extras is None else _with_made_id(extras)
        return ToolCall(call_id, name, "{}" if arguments == "null" else arguments, extras)
    if response is None:
        raise _KeptWhole
    name, call_id, error = response.name or "", response.id, False
    text = str(response.response, "utf-8")
    # An object with another first member than `output` or `error`, which may be written in escapes,
    # is the tool's own.
    if text[0] != "{" or text[1] != '"' or text[2] in "oe\\":
        text, error, form = read_response(text)
        if form is not None:
            extras = form if extras is None else extras | form
    if not call_id:
        calls = waiting.get(name)
        call_id = calls.popleft() if calls else f"call_{place}_{index}"
        extras = MADE_ID.copy() if extras is None else _with_made_id(extras)
    if response.parts is None:
        return ToolResult(call_id, text, error, response.name, extras)
    if not path:
        raise _KeptWhole
    content: str | tuple[ResultPart, ...] = text
    parts_path = f"{path}[{index}].functionResponse.parts"
    if media := _read_result_parts(elements(response.parts), parts_path, fail):
        # An empty object beside them means no text.
        bare = bytes(response.response).translate(None, b" \t\r\n") in (b"{}", b"null")
        content = media if bare else (Text(text), *media)
    return ToolResult(call_id, content, error, response.name, extras)


def _extras(part: WirePart, unknown: Unknown | None) -> Extras | None:
    """The signature, a `thought` that does not belong to a text, and unknown members."""
    signature = part.thoughtSignature
    if unknown is None and part.thought is None:
        if signature is NULL or (written := str(signature, "utf-8")) == "null":
            return None
        return {WIRE: '{"thoughtSignature":' + written + "}"}
    members: Members = {}
    if bytes(signature) != b"null":
        members["thoughtSignature"] = signature
    if part.thought is not None and part.text is None:
        members["thought"] = Raw(b"true" if part.thought else b"false")
    return extras_of(WIRE, members | (unknown.remaining() if unknown is not None else {}))


def _with_made_id(extras: Extras) -> Extras:
    """The extras with a note that there was no id."""
    form = extras.get(FORM)
    made = MADE_ID[FORM]
    return extras | {FORM: made if form is None else f"{made[:-1]},{form[1:]}"}


def _read_text(text: str, part: WirePart, unknown: Unknown | None) -> Part:
    if not part.thought:
        return Text(text, _extras(part, unknown))
    if bytes(part.thoughtSignature)[:1] != b'"':
        return Thinking(text, provider=WIRE, extras=_extras(part, unknown))
    signature = msgspec.json.decode(part.thoughtSignature, type=str)
    extras = unknown.extras(WIRE) if unknown is not None else None
    return Thinking(text, signature, provider=WIRE, extras=extras)


def _read_media(part: WirePart, unknown: Unknown | None) -> Part:
    """Bytes or a file. A video, which no other wire has, is kept whole."""
    blob, file = part.inlineData, part.fileData
    source: Source
    if blob is not None:
        data = None if blob.data is None else decode_base64(blob.data)
        if file is not None or blob.mimeType is None or data is None:
            raise _KeptWhole
        source = Bytes(data, blob.mimeType)
    else:
        if file is None or file.mimeType is None or file.fileUri is None:
            raise _KeptWhole
        source = Url(file.fileUri, file.mimeType)
        if file.fileUri.startswith(_OWN_FILES):
            source = FileId("google", file.fileUri, file.mimeType)
    kind = (source.media_type or "").partition("/")[0]
    if kind == "video":
        raise _KeptWhole
    extras = _extras(part, unknown)
    if kind == "image":
        return Image(source, extras=extras)
    return Audio(source, extras=extras) if kind == "audio" else Document(source, extras=extras)


def _read_result_parts(raws: list[Raw], path: str, fail: ErrorFactory) -> tuple[ResultPart, ...]:
    parts: list[ResultPart] = []
    for index, element in enumerate(raws):
        part = read_raw_part(element, path, fail, None, index, {})
        if not isinstance(part, Text | Image | Document | Audio | Opaque):
            raise fail("may not stand in a tool's answer", f"{path}[{index}]")
        parts.append(part)
    return tuple(parts)


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────

#: The text of an answer, whether the tool failed, and the original object where we would write
#: another one.
Answer = tuple[str, bool, Extras | None]


class _TextAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    output: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


_text_answer = msgspec.json.Decoder(_TextAnswer).decode


def read_response(response: str) -> Answer:
    """A tool's answer from the JSON of `response`."""
    try:
        answer = _text_answer(response)
    except DECODE_ERRORS:
        return ("", False, None) if response == "null" else _read_other(response)
    output, error = answer.output, answer.error
    if output is UNSET and error is not UNSET:
        return error, True, None
    if output is UNSET or error is not UNSET or output[:1] == "{":
        return _read_other(response)
    return output, False, None


def _read_other(response: str) -> Answer:
    raw = response.encode()
    text, error = read_answer(raw)
    ours = write_answer(text, error)
    same = ours == raw or msgspec.json.decode(ours) == msgspec.json.decode(raw)
    return text, error, None if same else {FORM: '{"response":' + response + "}"}


# ── System instruction and tools ─────────────────────────────────────────────────────────────────

_NO_PARAMETERS = '{"properties":{},"type":"object"}'


@MEMO.remember(SYSTEM_PROMPTS)
def _read_system(raw: bytes) -> tuple[PromptBlock, ...] | None:
    """The system prompt when it holds nothing but texts; otherwise None."""
    _, raws, unknown = read_content(Raw(raw), "$.systemInstruction", request_error)
    path = "$.systemInstruction.parts"
    parts = [
        read_raw_part(part, path, request_error, None, index, {}) for index, part in enumerate(raws)
    ]
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts) or (unknown is not None and unknown.remaining()):
        return None
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


@MEMO.remember(TOOL_LISTS)
def _read_tools(raw: bytes) -> tuple[AnyTool, ...]:
    """Every tool in its order. One object may hold functions and several tools of Gemini's own."""
    tools: list[AnyTool] = []
    for index, element in enumerate(read_elements(raw, "$.tools", request_error)):
        path = f"$.tools[{index}]"
        tool, unknown = _TOOL.decode(element, path, request_error)
        path = f"{path}.functionDeclarations"
        functions = elements(tool.functionDeclarations)
        tools += [_read_function(each, f"{path}[{at}]") for at, each in enumerate(functions)]
        for name, value in (unknown.remaining() if unknown is not None else {}).items():
            json = encode_members({name: value}).decode()
            tools.append(ProviderTool(WIRE, camel(name), json))
    return tuple(tools)


def _read_function(raw: Raw, path: str) -> Tool:
    """A declaration with its schema as it was given, in either form."""
    function, unknown = _FUNCTION.decode(raw, path, request_error)
    rest = unknown.remaining() if unknown is not None else {}
    schema, form = bytes(function.parametersJsonSchema).decode(), {}
    if schema == "null":
        schema = _NO_PARAMETERS
        if "parameters" in rest:
            original = bytes(rest.pop("parameters"))
            schema = json_schema(original, f"{path}.parameters")
            form = {FORM: '{"parameters":' + original.decode() + "}"}
    extras = {**(extras_of(WIRE, rest) or {}), **form}
    return Tool(function.name, function.description or "", schema, extras=extras or None)


# ── Chunks of a request's bytes ──────────────────────────────────────────────────────────────────

_KINDS = {
    "text": Kind.TEXT,
    "functionCall": Kind.TOOL_CALL,
    "functionResponse": Kind.TOOL_RESULT,
}
_MEDIA = {"image": Kind.IMAGE, "audio": Kind.AUDIO}


@converts_errors(request_error)
def split(
    body: bytes | Members, headers: tuple[tuple[str, str], ...] = (), path: str = ""
) -> Rendered:
    """The request as chunks. The path names the model."""
    model, stream = read_path(path)
    sent = body if isinstance(body, dict) else object_members(body, "$", request_error)
    members = {camel(name): raw for name, raw in sent.items()}
    named = msgspec.json.decode(members.pop("model", NULL), type=str | None)
    model = model or model_id(named or "")
    runs = [
        *_split_section("systemInstruction", members, _split_system),
        *_split_section("tools", members, _split_tools),
    ]
    contents = read_elements(members.pop("contents", NULL), "$.contents", request_error)
    runs.append(_split_contents(contents))
    fields = {name: bytes(raw) for name, raw in members.items()}
    if fields.get("toolConfig") == b"null":
        del fields["toolConfig"]
    if "toolConfig" in fields:
        fields = {"toolConfig": fields.pop("toolConfig"), **fields}
    envelope = Envelope(
        source=None,
        path=path_of(model, stream=stream) if model else path,
        headers=headers,
        head=b"{",
        tail=closing_members(fields, None, WIRE, ()) + b"}",
        cache_params=cache_params(model, fields),
    )
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=envelope,
        markers={},
        frozen_with=frozen_with(envelope),
    )


def _split_section(
    name: str, members: Members, cut: Callable[[bytes], SplitSection | None]
) -> list[ChunkRun]:
    raw = bytes(members.pop(name, NULL))
    section = None if raw == b"null" else MEMO.split_section(name, raw, cut)
    return [] if section is None else [section[0]]


def _split_system(raw: bytes) -> SplitSection | None:
    _, parts, _ = read_content(Raw(raw), "$.systemInstruction", request_error)
    if not parts:
        return None
    labels = [f"system{index}" for index in range(len(parts))]
    append = render_items("system", tuple(parts), bytes, None)
    log = ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))
    return system_run(log, tuple(labels)), ()


def _split_tools(raw: bytes) -> SplitSection | None:
    """A chunk for each declaration where an object holds nothing else, otherwise for the object."""
    raws = read_elements(raw, "$.tools", request_error)
    if not raws:
        return None
    append = LogAppend()
    labels: list[str] = []
    functions: list[bool] = []
    begun: list[int] = []
    after_function: bool | None = None
    for index, element in enumerate(raws):
        path = f"$.tools[{index}]"
        tool, unknown = _TOOL.decode(element, path, request_error)
        listed = elements(tool.functionDeclarations)
        alone = bool(listed) and unknown is None
        begun.append(len(functions))
        for at, each in enumerate(listed if alone else [element]):
            glue = tool_glue(after_function, alone)
            if after_function and alone and at == 0:
                # Functions of a second object stand in an object of their own again.
                glue = END_FUNCTIONS + b"," + tool_glue(None, True)
            append.chunk(Kind.TOOL, glue + bytes(each), None)
            labels.append(_tool_label(each, alone, len(labels)))
            functions.append(alone)
            after_function = alone
    log = ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))
    return tools_run(log, tuple(labels), functions, tuple(begun)), ()


def _tool_label(raw: Raw, function: bool, index: int) -> str:
    members = object_members(raw, "$.tools", request_error)
    if function:
        return f"tool {known_text(members, 'name') or index}"
    return f"tool {camel(next(iter(members), str(index)))}"


def _split_contents(raws: list[Raw]) -> ChunkRun:
    request = MEMO.request_log(raws)
    append = request.append
    for index in range(request.known, len(raws)):
        path = f"$.contents[{index}]"
        role, opening, parts = _open_content(raws[index], path)
        for at, part in enumerate(parts):
            data = bytes(part)
            if at == 0:
                data = (GLUE if request.count else b"") + opening + data
                append.open(role)
            else:
                data = b"," + data
            append.chunk(_part_kind(part, f"{path}.parts[{at}]"), data, None)
        request.end_message()
    if not request.count:
        raise InvalidRequest("at least one content with a part", path="$.contents")
    return ChunkRun(
        "messages",
        request.finish(),
        request.count,
        role=SegmentRole.CONVERSATION,
        lead=CONTENTS,
        close=CLOSE,
        source=MEMO.placeholder_messages(len(raws)),
        place="contents",
        blocks="parts",
    )


def _open_content(raw: Raw, path: str) -> tuple[str, bytes, list[Raw]]:
    """The role of a content, its bytes up to the first part, and the parts."""
    content, unknown = _CONTENT.decode(raw, path, request_error)
    members = {"role": Raw(string(content.role))} if content.role is not None else {}
    if unknown is not None:
        members |= unknown.remaining(nulls=True)
    opening = encode_members(members)[:-1] + (b"," if members else b"") + b'"parts":['
    return content.role or "user", opening, elements(content.parts)


def _part_kind(raw: Raw, path: str) -> Kind:
    part, _ = _PART.decode(raw, path, request_error)
    if part.thought:
        return Kind.THINKING
    media = part.inlineData or part.fileData
    if media is not None:
        return _MEDIA.get((media.mimeType or "").partition("/")[0], Kind.DOCUMENT)
    kinds = (kind for name, kind in _KINDS.items() if getattr(part, name) is not None)
    return next(kinds, Kind.OTHER)
