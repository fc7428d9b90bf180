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

from collections.abc import Sequence
from functools import partial
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
from anaphora.rendered import Kind, Rendered
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
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.markers import DialectMarkers, PlacedMark, marker_bytes, take_dialect_marker
from anaphora.wire.openai import (
    body_order,
    decode_base64,
    decode_data_url,
    function_name,
    read_breakpoint,
    split_tools,
    system_blocks,
    take_breakpoint,
    with_role,
)
from anaphora.wire.parts import fields_part, following
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    LenientDecoder,
    Members,
    OtherBlock,
    Unknown,
    converts_errors,
    encode_members,
    extras_of,
    known_text,
    list_elements,
    message_ids,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    BEFORE_BRACE,
    PARAM_SETS,
    TOOL_LISTS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    required_text,
)

from . import types
from .params import PARAMS, read_params
from .render import close, glue
from .types import (
    IN_CONTENT,
    MARKABLE,
    MARKERS,
    MEMO,
    MESSAGE_FIELDS,
    NULL,
    OTHER_CALL,
    PATH,
    REASONING_FIELDS,
    WIRE,
)

#: A message's role, its parts and its breakpoints.
_ReadMessage: TypeAlias = tuple[Role, tuple[Part, ...], Sequence[PlacedMark[Ttl]]]

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
    inner = _elements(unknown, "messages")
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
    return system_blocks(texts)


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
            return "user", (Text(message.content),), ()
        if type(message) is types.ToolMessage and type(message.content) is str:
            return "tool", (ToolResult(message.tool_call_id or "", message.content),), ()
        if type(message) is types.AssistantMessage and type(message.content) is str:
            return "assistant", MessageReader("", request_error).assistant(message, None), ()
    return MessageReader(f"$.messages[{index}]", request_error).message(message, unknown)


class MessageReader:
    """Reads one message of a request or a reply; errors name its path."""

    __slots__ = ("_fail", "_path", "marks")

    def __init__(self, path: str, fail: ErrorFactory) -> None:
        self._path = path
        self._fail = fail
        self.marks: list[PlacedMark[Ttl]] = []

    def message(
        self, message: types.RequestMessage | OtherBlock, unknown: Unknown | None
    ) -> _ReadMessage:
        """A message of a request."""
        if isinstance(message, OtherBlock):
            raise self._fail(f"{message.tag!r} is not a role here", f"{self._path}.role")
        if isinstance(message, types.AssistantMessage):
            return "assistant", self.assistant(message, unknown) or _EMPTY, self.marks
        if isinstance(message, types.ToolMessage):
            return "tool", (self._result(message, unknown),), self.marks
        parts: tuple[Part, ...]
        if isinstance(message.content, str):
            parts = (Text(message.content),)
        else:
            parts = tuple(self._content(message.content, _elements(unknown, "content")))
        role: Role = "user"
        if not isinstance(message, types.UserMessage):
            role = "system"
            is_system = isinstance(message, types.SystemMessage)
            parts = with_role(parts, "system" if is_system else "developer")
        if unknown is not None:
            parts = (*parts, *message_fields(unknown))
        return role, parts, self.marks

    def _result(self, message: types.ToolMessage, unknown: Unknown | None) -> ToolResult:
        call_id, content = message.tool_call_id or "", message.content
        inner = _elements(unknown, "content")
        members = unknown.remaining() if unknown is not None else {}
        name = _decode_text(members["name"]) if "name" in members else None
        extras = extras_of(WIRE, members)
        if content is None or isinstance(content, str):
            return ToolResult(call_id, content or "", name=name, extras=extras)
        parts: list[ResultPart] = []
        for index, part in enumerate(self._content(content, inner, (0,))):
            if not isinstance(part, Text | Image | Document | Audio | Opaque):
                path = f"{self._path}.content[{index}]"
                raise self._fail("may not stand in a tool result", path)
            parts.append(part)
        return ToolResult(call_id, tuple(parts), name=name, extras=extras)

    def assistant(
        self, message: types.AssistantMessage | types.ReplyMessage, unknown: Unknown | None
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
        if type(content) is not str:
            inner = _elements(unknown, "content")
            parts += self._content(content, inner, first=len(parts))
        elif content or not is_reply:
            parts.append(Text(content))
        if message.refusal:
            parts.append(Refusal(message.refusal))
        if message.tool_calls:
            inner = _elements(unknown, "tool_calls")
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

    def _content(
        self,
        content: types.Content,
        unknown: dict[int, Unknown],
        below: tuple[int, ...] = (),
        first: int = 0,
    ) -> list[Part]:
        """The parts of a message's content. Marks count from `first`, below the path `below`."""
        if content is None or isinstance(content, str):
            return [] if content is None else [Text(content)]
        return [
            self.part(part, unknown.get(i), f"{self._path}.content[{i}]", (*below, first + i))
            for i, part in enumerate(content)
        ]

    def part(
        self,
        part: types.ContentPart | OtherBlock,
        unknown: Unknown | None,
        path: str,
        position: tuple[int, ...] = (),
    ) -> Part:
        """A content part with its unknown fields as extras; one of another type or source whole."""
        if isinstance(part, OtherBlock):
            return _opaque(part.tag, part.members)
        if isinstance(part, types.RefusalPart):
            return Refusal(part.refusal, unknown.extras(WIRE) if unknown is not None else None)
        if not isinstance(part, types.ThinkingPart) and part.prompt_cache_breakpoint is not None:
            ttl, extras = read_breakpoint(part, unknown, WIRE, path, self._fail)
            self.marks.append((position, ttl or "30m", extras))
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


def _elements(unknown: Unknown | None, name: str) -> dict[int, Unknown]:
    return unknown.take_elements(name) if unknown is not None else {}


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
    return fields_part(WIRE, MESSAGE_FIELDS, members | (others or {}))


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

_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
    markers: DialectMarkers | None = None,
) -> Rendered:
    """The request as chunks, with its breakpoints as marks. `markers` are those of a dialect."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    raws = request.take_elements("messages")
    # Messages are cut differently in each dialect.
    context = None if markers is None else repr(markers)
    system = None
    if raws:
        system = request.add_section(
            f"system{context}", bytes(raws[0]), lambda raw: _split_system(raw, markers)
        )
    if system is not None:
        del raws[0]
    request.add_section("tools", request.take("tools"), _split_tools)
    messages = request.add_messages(
        raws,
        partial(_split_message, markers=markers),
        lead=b'"messages":[' if system is None else glue("system"),
        glue=glue,
        close=close,
        context=context,
        first_message=int(system is not None),
    )
    if messages is None:
        if system is None:
            raise InvalidRequest("at least one message with content", path="$.messages")
        request.runs[0] = msgspec.structs.replace(system, close=close("system"))
    return request.finish(
        request.envelope(model, PATH, headers, _cache_params),
        wire=WIRE,
        model=model,
        body_order=body_order(request.runs),
        markers=MARKERS if markers is None else marker_bytes(markers),
    )


def _split_system(raw: bytes, markers: DialectMarkers | None) -> SplitSection | None:
    """The first message, if it is a system message with content."""
    message = _split_message(raw, "$.messages[0]", markers)
    if message.role not in ("system", "developer"):
        return None
    labels = [f"system{index}" for index in range(len(message.blocks))]
    lead = b'"messages":[' + message.opening
    return cut_section("system", message.blocks, labels, lead=lead, place="messages[0].content")


def _split_tools(raw: bytes) -> SplitSection | None:
    return split_tools(raw, function_name, b'"tools":[', b"],")


def _split_message(
    raw: bytes | msgspec.Raw, path: str, markers: DialectMarkers | None
) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if role == "assistant":
        kind = Kind.TOOL_CALL if "tool_calls" in members else Kind.TEXT
        return SplitMessage(role, b"", [SplitBlock(kind, bytes(raw))])
    del members["role"]
    content = bytes(members.pop("content", NULL))
    kind = Kind.TOOL_RESULT if role == "tool" else Kind.TEXT
    if content[:1] == b'"':
        splice = BEFORE_BRACE if content != b'""' else None
        blocks = [SplitBlock(kind, b'{"type":"text","text":' + content + b"}", splice)]
    else:
        path = f"{path}.content"
        elements = enumerate(list_elements(content, path, request_error))
        blocks = [_split_part(raw, f"{path}[{i}]", role, markers) for i, raw in elements]
    opening = b'{"role":' + string(role) + following(members) + b',"content":['
    return SplitMessage(role, opening, blocks)


def _split_part(
    raw: msgspec.Raw, path: str, role: str, markers: DialectMarkers | None
) -> SplitBlock:
    """A part without its breakpoint, byte for byte otherwise. It is always written anew: a part has
    the same bytes with and without a breakpoint."""
    members = object_members(raw, path, request_error)
    ttl: Ttl | None = None
    if markers is not None:
        ttl = take_dialect_marker(members, markers)
    elif "prompt_cache_breakpoint" in members:
        marked, ttl, _ = take_breakpoint(members, path, WIRE)
        ttl = ttl or "30m" if marked else None
    kind = required_text(members, "type", path)
    empty = kind == "text" and not known_text(members, "text")
    markable = ttl is not None or (kind in MARKABLE and not empty)
    return SplitBlock(
        Kind.TOOL_RESULT if role == "tool" else _KINDS.get(kind, Kind.OTHER),
        encode_members(members),
        BEFORE_BRACE if markable else None,
        () if ttl is None else ((None, ttl),),
    )
