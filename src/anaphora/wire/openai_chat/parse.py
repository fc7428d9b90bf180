"""Reads a Chat Completions request into a call (`parse`), and cuts it into chunks (`split`).

Everything stays where it stood and as it was written: arguments and schemas keep their text,
breakpoints become the caller's marks, unknown fields become extras. Normalised are only:

- text content becomes a list with one text part;
- `null`, an empty list of content, calls, tools or stops, an empty description and `stream: false`
  mean the same as a missing field, and no parameters the same as an empty object of them;
- a leading system message becomes the system prompt, and blank texts in it are left out;
- `max_tokens` and `max_completion_tokens` are one parameter: the profile decides its name;
- a `refusal` beside the content becomes a part of it;
- a stop text becomes a list of one; the tool choice `any` is `required`; a function's `type` and
  the default tool choice are written out where something depends on them;
- a stream always reports its usage;
- a breakpoint with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
)
from anaphora.rendered import ChunkRun, Envelope, Kind, Mark, Rendered
from anaphora.values import (
    AnyTool,
    Audio,
    Conversation,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    ProviderTool,
    Refusal,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.markers import PlacedMark
from anaphora.wire.memo import PARAM_SETS, TOOL_LISTS, SplitSection
from anaphora.wire.openai import (
    BEFORE_BRACE,
    breakpoint_ttl,
    decode_base64,
    decode_data_url,
    split_run,
    take_breakpoint,
    with_role,
)
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    LenientDecoder,
    Members,
    OtherBlock,
    Unknown,
    converts_errors,
    decode_value,
    encode_members,
    extras_of,
    list_elements,
    message_ids,
    object_members,
    request_error,
)

from . import types
from .markers import MARKABLE, MARKERS
from .params import PARAMS, read_params
from .render import close, glue
from .types import IN_CONTENT, MEMO, MESSAGE_FIELDS, NULL, OTHER_CALL, PATH, REASONING_FIELDS, WIRE

#: The breakpoints of a message.
Marks: TypeAlias = list[PlacedMark[Ttl]]

#: A message's role, its parts and its breakpoints.
_ReadMessage: TypeAlias = tuple[Role, tuple[Part, ...], Marks]

_NO_MARKS: Marks = []
_NO_UNKNOWN: dict[int, Unknown] = {}

#: An empty assistant message: it keeps its place here; other wires leave it out.
_EMPTY: tuple[Part, ...] = (Opaque(WIRE, MESSAGE_FIELDS, '{"content":null}'),)

REQUEST: LenientDecoder[types.ChatRequest] = LenientDecoder(types.ChatRequest)
PART: LenientDecoder[types.ContentPart | OtherBlock] = LenientDecoder(types.ContentPart)
TOOL: LenientDecoder[types.ToolDefinition | OtherBlock] = LenientDecoder(types.ToolDefinition)

_decode_text = msgspec.json.Decoder(str).decode
_decode_image = msgspec.json.Decoder(types.ImageUrl).decode
_decode_audio = msgspec.json.Decoder(types.InputAudio).decode
_decode_file = msgspec.json.Decoder(types.File).decode
_decode_thinking = msgspec.json.Decoder(list[types.ThinkingText]).decode


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong."""
    request, unknown = REQUEST.decode(body, "$", request_error)
    inner = unknown.take_elements("messages") if unknown is not None else _NO_UNKNOWN
    read = [
        _read_message(message, inner.get(index), index)
        for index, message in enumerate(request.messages)
    ]
    marks: list[MarkRequest] = []
    blocks = _system_blocks(read[0], marks) if read else None
    if blocks is not None:
        del read[0]
    messages = []
    for name, (role, parts, placed) in zip(message_ids(len(read)), read, strict=True):
        messages.append(Message(id=name, role=role, parts=parts))
        if placed:
            marks += [PartMark(name, *mark) for mark in placed]
    params, cache, extras = read_params(request, unknown)
    plan = PromptCachePlan(marks=tuple(marks), **cache)
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=blocks or (), cache=plan),
        model=request.model,
        tools=_read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


def _system_blocks(first: _ReadMessage, marks: list[MarkRequest]) -> tuple[PromptBlock, ...] | None:
    """The system prompt, if the first message is one and holds only texts."""
    role, parts, placed = first
    texts = [part for part in parts if isinstance(part, Text)]
    if role != "system" or len(texts) < len(parts):
        return None
    marks += [BlockMark(path[0], ttl, extras) for path, ttl, extras in placed]
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


@MEMO.remember(TOOL_LISTS)
def _read_tools(listed: bytes) -> tuple[AnyTool, ...]:
    """Remembered: the same list comes with every turn."""
    elements = enumerate(list_elements(listed, "$.tools", request_error))
    return tuple([_read_tool(raw, f"$.tools[{index}]") for index, raw in elements])


def _read_tool(raw: msgspec.Raw, path: str) -> AnyTool:
    """A function with its schema as written; any other tool whole."""
    tool, unknown = TOOL.decode(raw, path, request_error)
    if isinstance(tool, OtherBlock) or tool.function is None:
        kind = tool.tag if isinstance(tool, OtherBlock) else "function"
        return ProviderTool(WIRE, kind, bytes(raw).decode())
    function = tool.function
    schema = bytes(function.parameters)
    if schema == b"null":
        schema = b'{"properties":{},"type":"object"}'
    extras = unknown.extras(WIRE) if unknown is not None else None
    return Tool(
        function.name, function.description or "", schema.decode(), function.strict, extras=extras
    )


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _read_message(
    message: types.RequestMessage | OtherBlock, unknown: Unknown | None, index: int
) -> _ReadMessage:
    if unknown is None:
        # Nearly every message.
        if type(message) is types.UserMessage and type(message.content) is str:
            return "user", (Text(message.content),), _NO_MARKS
        if type(message) is types.ToolMessage and type(message.content) is str:
            result = ToolResult(message.tool_call_id or "", message.content)
            return "tool", (result,), _NO_MARKS
        if type(message) is types.AssistantMessage and type(message.content) is str:
            return "assistant", read_assistant(message, None, "", _NO_MARKS), _NO_MARKS
    path = f"$.messages[{index}]"
    marks: Marks = []
    if isinstance(message, OtherBlock):
        raise request_error(f"{message.tag!r} is not a role here", f"{path}.role")
    if isinstance(message, types.AssistantMessage):
        return "assistant", read_assistant(message, unknown, path, marks) or _EMPTY, marks
    if isinstance(message, types.ToolMessage):
        return "tool", (_read_result(message, unknown, path, marks),), marks
    parts: tuple[Part, ...]
    if isinstance(message.content, str):
        parts = (Text(message.content),)
    else:
        inner = unknown.take_elements("content") if unknown is not None else _NO_UNKNOWN
        parts = tuple(read_content(message.content, inner, f"{path}.content", marks))
    is_user = isinstance(message, types.UserMessage)
    if not is_user:
        parts = with_role(
            parts, "system" if isinstance(message, types.SystemMessage) else "developer"
        )
    if unknown is not None:
        parts = (*parts, *message_fields(unknown))
    return "user" if is_user else "system", parts, marks


def _read_result(
    message: types.ToolMessage, unknown: Unknown | None, path: str, marks: Marks
) -> ToolResult:
    call_id, content = message.tool_call_id or "", message.content
    inner, name, extras = _NO_UNKNOWN, None, None
    if unknown is not None:
        inner = unknown.take_elements("content")
        members = unknown.remaining()
        extras = extras_of(WIRE, members)
        name = _decode_text(members["name"]) if "name" in members else None
    if content is None or isinstance(content, str):
        return ToolResult(call_id, content or "", name=name, extras=extras)
    parts: list[ResultPart] = []
    for index, part in enumerate(read_content(content, inner, f"{path}.content", marks, (0,))):
        if not isinstance(part, Text | Image | Document | Audio | Opaque):
            raise request_error("may not stand in a tool result", f"{path}.content[{index}]")
        parts.append(part)
    return ToolResult(call_id, tuple(parts), name=name, extras=extras)


def read_assistant(
    message: types.AssistantMessage | types.ReplyMessage,
    unknown: Unknown | None,
    path: str,
    marks: Marks,
    *,
    fail: ErrorFactory = request_error,
) -> tuple[Part, ...]:
    """Reasoning, content, refusal, tool calls, and last the unknown fields of the message.

    In a reply empty texts are left out; in a request they are kept.
    """
    is_reply = type(message) is types.ReplyMessage
    parts: list[Part] = []
    others: Members = {}
    if message.reasoning_content is not NULL or message.reasoning is not NULL:
        _read_reasoning(message, parts, others)
    content = message.content
    if type(content) is str:
        if content or not is_reply:
            parts.append(Text(content))
    elif content is not None:
        inner = unknown.take_elements("content") if unknown is not None else _NO_UNKNOWN
        first = len(parts)
        parts += read_content(content, inner, f"{path}.content", marks, first=first, fail=fail)
    if message.refusal:
        parts.append(Refusal(message.refusal))
    if message.tool_calls:
        inner = unknown.take_elements("tool_calls") if unknown is not None else _NO_UNKNOWN
        for index, call in enumerate(message.tool_calls):
            parts.append(_read_call(call, inner.get(index)))
    if is_reply:
        for name in ("annotations", "audio", "function_call"):
            raw = getattr(message, name)
            if raw is not NULL and bytes(raw) not in (b"null", b"[]"):
                others[name] = raw
    if unknown is not None or others:
        parts += message_fields(unknown, others)
    return tuple(parts)


def _read_reasoning(
    message: types.AssistantMessage | types.ReplyMessage, parts: list[Part], others: Members
) -> None:
    """The first field of reasoning that has a text becomes a part; any other is kept as it is."""
    for name in REASONING_FIELDS:
        raw = getattr(message, name)
        if bytes(raw) == b"null":
            continue
        if parts or bytes(raw)[:1] != b'"':
            others[name] = raw
        elif (text := _decode_text(raw)) or type(message) is not types.ReplyMessage:
            parts.append(Thinking(text, provider=WIRE, extras=reasoning_extras(name)))


def message_fields(unknown: Unknown | None, others: Members | None = None) -> list[Part]:
    """Unknown fields of a message, as a part that other wires leave out."""
    members = unknown.remaining() if unknown is not None else {}
    if others:
        members |= others
    if not members:
        return []
    return [Opaque(WIRE, MESSAGE_FIELDS, encode_members(members).decode())]


def _read_call(call: types.FunctionCall | OtherBlock, unknown: Unknown | None) -> Part:
    """A function call with its arguments as the model wrote them; any other call whole."""
    if isinstance(call, OtherBlock):
        return Opaque(WIRE, OTHER_CALL, bytes(call.raw).decode())
    function = call.function
    if function is None:
        members = unknown.remaining() if unknown is not None else {}
        members["type"] = msgspec.Raw(b'"function"')
        if call.id is not None:
            members["id"] = msgspec.Raw(string(call.id))
        return Opaque(WIRE, OTHER_CALL, encode_members(members).decode())
    try:
        text = _decode_text(function.arguments)
    except DECODE_ERRORS:
        arguments = bytes(function.arguments)
        if arguments[:1] == b'"':
            raise
        text = "" if arguments == b"null" else arguments.decode()
    extras = unknown.extras(WIRE) if unknown is not None else None
    return ToolCall(call.id or "", function.name or "", text, extras)


def reasoning_extras(field: str, members: bytes = b"") -> Extras:
    """The extras of reasoning: the field it came in, and further members."""
    return {WIRE: f'{{"field":"{field}"{"," if members else ""}{members.decode()}}}'}


# ── Content parts ────────────────────────────────────────────────────────────────────────────────


def read_content(
    content: types.Content,
    unknown: dict[int, Unknown],
    path: str,
    marks: Marks,
    below: tuple[int, ...] = (),
    *,
    first: int = 0,
    fail: ErrorFactory = request_error,
) -> list[Part]:
    """The parts of a message's content. Marks count from `first`, below the path `below`."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)]
    return [
        read_part(
            part, unknown.get(index), f"{path}[{index}]", (*below, first + index), marks, fail
        )
        for index, part in enumerate(content)
    ]


def read_part(
    part: types.ContentPart | OtherBlock,
    unknown: Unknown | None,
    path: str,
    position: tuple[int, ...] = (),
    marks: Marks | None = None,
    fail: ErrorFactory = request_error,
) -> Part:
    """A content part with its unknown fields as extras; one of another type or source whole."""
    if isinstance(part, OtherBlock):
        return _opaque(part.tag, part.members)
    if isinstance(part, types.RefusalPart):
        return Refusal(part.refusal, unknown.extras(WIRE) if unknown is not None else None)
    if not isinstance(part, types.ThinkingPart) and part.prompt_cache_breakpoint is not None:
        field = "prompt_cache_breakpoint"
        ttl = breakpoint_ttl(part.prompt_cache_breakpoint, f"{path}.{field}", fail) or "30m"
        inner = unknown.take(field) if unknown is not None else None
        extras = inner.extras(WIRE) if inner is not None else None
        if marks is not None:
            marks.append((position, ttl, extras))
    members = unknown.remaining() if unknown is not None else {}
    if isinstance(part, types.TextPart):
        return Text(part.text, extras_of(WIRE, members))
    kind = str(type(part).__struct_config__.tag)
    source: msgspec.Raw = getattr(part, kind)
    try:
        value = _READERS[type(part)](source, members)
    except DECODE_ERRORS:
        value = None
    return value if value is not None else _opaque(kind, {kind: source, **members})


def _opaque(kind: str, members: Members) -> Opaque:
    """A part that is sent back as it came, without its marker."""
    whole = {"type": msgspec.Raw(string(kind))}
    whole |= {
        name: raw for name, raw in members.items() if name != "type" and bytes(raw) != b"null"
    }
    taken = kind in (MESSAGE_FIELDS, OTHER_CALL)
    return Opaque(WIRE, f"part {kind}" if taken else kind, encode_members(whole).decode())


def _read_image(source: msgspec.Raw, members: Members) -> Image:
    image = _decode_image(source)
    url = decode_data_url(image.url) or Url(image.url)
    return Image(url, image.detail, extras_of(WIRE, members))


def _read_audio(source: msgspec.Raw, members: Members) -> Audio | None:
    audio = _decode_audio(source)
    media_type = "audio/mpeg" if audio.format == "mp3" else f"audio/{audio.format}"
    data = decode_base64(audio.data, media_type)
    return None if data is None else Audio(data, extras_of(WIRE, members))


def _read_file(source: msgspec.Raw, members: Members) -> Document | None:
    file = _decode_file(source)
    if (file.file_data is None) == (file.file_id is None):
        return None
    extras = extras_of(WIRE, members)
    if file.file_id is not None:
        return Document(FileId("openai", file.file_id), file.filename, extras=extras)
    data = decode_data_url(file.file_data or "")
    if data is None or file.filename is None:
        return None
    return Document(data, file.filename, extras=extras)


def _read_thinking(source: msgspec.Raw, members: Members) -> Thinking:
    """Reasoning in a content part. The pieces are kept where they are not one text."""
    text = "".join(piece.text for piece in _decode_thinking(source) if piece.type == "text")
    if msgspec.json.decode(source) != [{"type": "text", "text": text}]:
        members = {"thinking": source, **members}
    extras = reasoning_extras(IN_CONTENT, encode_members(members)[1:-1])
    return Thinking(text, provider=WIRE, extras=extras)


_READERS: dict[type, Any] = {
    types.ImagePart: _read_image,
    types.AudioPart: _read_audio,
    types.FilePart: _read_file,
    types.ThinkingPart: _read_thinking,
}


# ── Splitting ────────────────────────────────────────────────────────────────────────────────────

_KINDS = {
    "text": Kind.TEXT,
    "image_url": Kind.IMAGE,
    "file": Kind.DOCUMENT,
    "input_audio": Kind.AUDIO,
}

#: A dialect's markers, decoded; None for OpenAI's.
_DialectMarkers: TypeAlias = dict[Ttl, dict[str, Any]] | None


class _Block(msgspec.Struct):
    """A content part without its breakpoint."""

    data: bytes
    kind: Kind
    markable: bool
    ttl: Ttl | None = None


class _PlainMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with nothing else in it, as most are."""

    role: str
    content: msgspec.Raw


_decode_plain = msgspec.json.Decoder(_PlainMessage).decode
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The request cut into chunks from its own bytes, with its breakpoints as marks.

    The order of keys and the spelling of numbers and strings stay as sent, so that a cache is
    billed, and a miss explained, by the bytes of the request. Only breakpoints and white space
    between the outermost fields are removed. `markers` are those of a dialect.
    """
    members = dict(body) if isinstance(body, dict) else object_members(body, "$", request_error)
    if "model" not in members:
        raise request_error("is missing", "$.model")
    model = decode_value(members.pop("model"), str, "$.model", request_error)
    raws = list_elements(members.pop("messages", NULL), "$.messages", request_error)
    listed = bytes(members.pop("tools", NULL))
    # Messages are cut differently in each dialect.
    context = None if markers is None else repr(markers)
    decoded = None if markers is None else _decode_markers(markers)
    system = tools = None
    if raws:
        system = MEMO.split_section(
            f"system{context}", bytes(raws[0]), lambda raw: _split_system(raw, decoded)
        )
    tools = MEMO.split_section("tools", listed, _split_tools)
    runs = [section[0] for section in (system, tools) if section is not None]
    marks = list(system[1]) if system is not None else []
    first = sum(run.count for run in runs)
    if system is not None:
        del raws[0]
    messages = _split_messages(raws, system is not None, first, marks, decoded, context)
    if messages is not None:
        runs.append(messages)
    elif system is not None:
        runs[0] = msgspec.structs.replace(runs[0], close=close("system"))
    else:
        raise InvalidRequest("at least one message with content", path="$.messages")
    rest = encode_members(members)[1:-1]
    head, tail = b'{"model":' + string(model), (b"," + rest if rest else b"") + b"}"
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=Envelope(
            source=None,
            path=PATH,
            headers=headers,
            head=head + b",",
            tail=tail,
            cache_params=_cache_params(head + tail),
        ),
        body_order=(1, 0, *range(2, len(runs))) if system is not None and tools else None,
        markers=MARKERS if markers is None else markers,
        marks=tuple(marks),
    )


def _split_system(raw: bytes, markers: _DialectMarkers) -> SplitSection | None:
    """The first message, if it is a system message with content."""
    message = object_members(raw, "$.messages[0]", request_error)
    role = _text(message.pop("role", NULL), "$.messages[0].role")
    if role not in ("system", "developer"):
        return None
    blocks = _split_content(message, "$.messages[0].content", markers)
    if not blocks:
        return None
    labels = [f"system{index}" for index in range(len(blocks))]
    lead = b'"messages":[' + _opening(role, message)
    cut = [(block.data, block.markable) for block in blocks]
    run = split_run("system", cut, labels, lead=lead, place="messages[0].content")
    marks = [Mark(index, block.ttl) for index, block in enumerate(blocks) if block.ttl is not None]
    return run, tuple(marks)


def _split_tools(listed: bytes) -> SplitSection | None:
    tools = list_elements(listed, "$.tools", request_error)
    if not tools:
        return None
    labels = []
    for index, raw in enumerate(tools):
        path = f"$.tools[{index}]"
        function = object_members(raw, path, request_error).get("function", NULL)
        name = None
        if bytes(function) != b"null":
            inner = object_members(function, f"{path}.function", request_error)
            name = _text(inner.get("name", NULL), f"{path}.function.name")
        labels.append(f"tool {name}" if name else f"tools{index}")
    cut = [(bytes(raw), False) for raw in tools]
    return split_run("tools", cut, labels, lead=b'"tools":[', close=b"],"), ()


def _split_messages(
    messages: list[msgspec.Raw],
    behind_system: bool,
    first: int,
    marks: list[Mark],
    markers: _DialectMarkers,
    context: str | None,
) -> ChunkRun | None:
    log = MEMO.request_log(messages, context)
    append, last_role = log.append, log.last_role
    for index in range(log.known, len(messages)):
        raw = messages[index]
        plain = _plain_text(raw)
        if plain is not None:
            role, data, markable = plain
            kind = Kind.TOOL_RESULT if role == "tool" else Kind.TEXT
            append.item(role, kind, glue(last_role) + data, BEFORE_BRACE if markable else None)
            log.end_message()
            last_role = role
            continue
        path = f"$.messages[{index + behind_system}]"
        message = object_members(raw, path, request_error)
        if "role" not in message:
            raise request_error("is missing", f"{path}.role")
        role = decode_value(message.pop("role"), str, f"{path}.role", request_error)
        placed: list[Mark] = []
        if role == "assistant":
            kind = Kind.TOOL_CALL if "tool_calls" in message else Kind.TEXT
            append.item(role, kind, glue(last_role) + bytes(raw), None)
            last_role = role
        else:
            blocks = _split_content(message, f"{path}.content", markers)
            for position, block in enumerate(blocks):
                data = b"," + block.data
                if position == 0:
                    append.open(role)
                    data = glue(last_role) + _opening(role, message) + block.data
                if block.ttl is not None:
                    placed.append(Mark(log.count, block.ttl))
                kind = Kind.TOOL_RESULT if role == "tool" else block.kind
                append.chunk(kind, data, BEFORE_BRACE if block.markable else None)
            last_role = role if blocks else last_role
        log.end_message(placed)
    if not log.count or last_role is None:
        return None
    chunks = log.finish()
    marks += log.marks(first)
    return ChunkRun(
        "messages",
        chunks,
        log.count,
        role=SegmentRole.CONVERSATION,
        lead=glue("system") if behind_system else b'"messages":[',
        close=close(last_role),
        source=MEMO.placeholder_messages(len(messages)),
        first_message=int(behind_system),
    )


def _plain_text(raw: msgspec.Raw) -> tuple[str, bytes, bool] | None:
    """Role, bytes, and whether a breakpoint may be set, of a message that is only a text; None for
    any other."""
    try:
        message = _decode_plain(raw)
    except DECODE_ERRORS:
        return None
    role, content = message.role, bytes(message.content)
    if content[:1] != b'"':
        return None
    if role == "assistant":
        return role, bytes(raw), False
    data = b'{"role":%b,"content":[{"type":"text","text":%b}' % (string(role), content)
    return role, data, content != b'""'


def _opening(role: str, message: Members) -> bytes:
    """A message up to its first part; role and content are taken out of `message`."""
    rest = encode_members(message)[1:-1]
    return b'{"role":' + string(role) + (b"," + rest if rest else b"") + b',"content":['


def _split_content(message: Members, path: str, markers: _DialectMarkers) -> list[_Block]:
    """The parts of a message's content, which is taken out of it."""
    raw = bytes(message.pop("content", NULL))
    if raw == b"null":
        return []
    if raw[:1] == b'"':
        return [_Block(b'{"type":"text","text":' + raw + b"}", Kind.TEXT, raw != b'""')]
    elements = list_elements(raw, path, request_error)
    return [_split_part(part, f"{path}[{i}]", markers) for i, part in enumerate(elements)]


def _split_part(part: msgspec.Raw, path: str, markers: _DialectMarkers) -> _Block:
    """A part without its breakpoint, byte for byte otherwise. It is always written anew: a part has
    the same bytes with and without a breakpoint."""
    members = object_members(part, path, request_error)
    ttl = None
    if markers is not None:
        ttl = _take_dialect_marker(members, markers)
    elif "prompt_cache_breakpoint" in members:
        marked, ttl, _ = take_breakpoint(members, path, WIRE)
        ttl = ttl or "30m" if marked else None
    if "type" not in members:
        raise request_error("is missing", f"{path}.type")
    kind = decode_value(members["type"], str, f"{path}.type", request_error)
    empty = kind == "text" and _text(members.get("text", NULL), f"{path}.text") == ""
    markable = ttl is not None or (kind in MARKABLE and not empty)
    return _Block(encode_members(members), _KINDS.get(kind, Kind.OTHER), markable, ttl)


def _decode_markers(markers: Mapping[Ttl, bytes]) -> _DialectMarkers:
    return {ttl: msgspec.json.decode(b"{" + data[1:] + b"}") for ttl, data in markers.items()}


def _take_dialect_marker(members: Members, markers: dict[Ttl, dict[str, Any]]) -> Ttl | None:
    """Takes a dialect's marker out of a part; its TTL."""
    for ttl, marker in markers.items():
        if all(
            name in members and msgspec.json.decode(members[name]) == value
            for name, value in marker.items()
        ):
            for name in marker:
                del members[name]
            return ttl
    return None


def _text(raw: msgspec.Raw, path: str) -> str | None:
    text: str | None = decode_value(raw, str | None, path, request_error)
    return text
