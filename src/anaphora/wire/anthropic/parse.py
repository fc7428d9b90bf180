"""An Anthropic request, read into a call (`parse`) or cut into chunks of its own bytes (`split`).

`parse` keeps everything where it stood and as it was written: arguments and schemas keep their
text, markers become the caller's marks, unknown fields become extras. It normalises only:

- text content becomes a list with one text block, and a system text one system block;
- `null`, an empty description and `is_error: false` mean the same as a missing field;
- a `cache_control` with the default TTL loses that TTL;
- messages get ids by position.

`split` normalises nothing: key order and the spelling of numbers and strings stay, so that a cache
is billed, and a miss explained, by what was sent. Only markers are taken out (they become marks),
and white space between the members of a block.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    Earlier,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    ToolMark,
)
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Rendered
from anaphora.values import (
    AnyTool,
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
    Section,
    SegmentRole,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.memo import PARAM_SETS, SYSTEM_PROMPTS, TOOL_LISTS, SplitSection
from anaphora.wire.reading import (
    ErrorFactory,
    LenientDecoder,
    Members,
    OtherBlock,
    Unknown,
    converts_errors,
    decode_members,
    decode_value,
    encode_members,
    known_text,
    list_elements,
    message_ids,
    object_members,
    request_error,
)

from .markers import MARKERS, marker_of, take_marker
from .params import AUTOMATIC_FIELDS, PARAMS, PATH
from .render import CLOSE, WIRE_ROLES, RoleWithFields, glue, joins, opening
from .types import (
    MARKABLE_OPAQUE,
    MEMO,
    MESSAGE_FIELDS,
    WIRE,
    Base64Source,
    ContentBlock,
    DocumentBlock,
    FileSource,
    ImageBlock,
    MessagesRequest,
    RedactedBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)

_REQUEST = LenientDecoder[MessagesRequest](MessagesRequest)
_SYSTEM = LenientDecoder[str | list[TextBlock] | None](str | list[TextBlock] | None)
_TOOL = LenientDecoder[ToolDefinition](ToolDefinition)
_SOURCE = LenientDecoder[Base64Source | UrlSource | FileSource | TextSource | OtherBlock](
    Base64Source | UrlSource | FileSource | TextSource
)
_NOTHING: dict[int, Unknown] = {}


# ── Content blocks ───────────────────────────────────────────────────────────────────────────────


#: Blocks that hold nothing but their own values.
_SIMPLE: dict[type, Callable[[Any, Extras | None], Part]] = {
    TextBlock: lambda block, extras: Text(block.text, extras),
    ToolUseBlock: lambda block, extras: ToolCall(
        block.id, block.name, str(block.input, "utf-8"), extras
    ),
    ThinkingBlock: lambda block, extras: Thinking(
        block.thinking, block.signature, provider=WIRE, extras=extras
    ),
    RedactedBlock: lambda block, extras: Thinking(data=block.data, provider=WIRE, extras=extras),
}


class BlockReader:
    """Reads content blocks into parts, and collects the markers on them."""

    __slots__ = ("fail", "marks", "message", "root")

    def __init__(self, root: str, fail: ErrorFactory) -> None:
        self.root = root
        """The path of what holds the blocks, with a gap for the index of the message."""
        self.fail = fail
        self.message = 0
        self.marks: list[MarkRequest] = []

    def path(self, position: tuple[int, ...]) -> str:
        """The JSON path of a block."""
        inner = "".join(f".content[{index}]" for index in position)
        return self.root.format(self.message) + inner

    def content(
        self, blocks: list[ContentBlock], unknown: dict[int, Unknown] = _NOTHING
    ) -> tuple[Part, ...]:
        """The parts of a message or reply."""
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            read = _SIMPLE.get(type(block))
            if read is None or unknown or block.cache_control is not None:
                parts.append(self.block(block, unknown.get(index), (index,)))
            else:
                parts.append(read(block, None))
        return tuple(parts)

    def block(
        self, block: ContentBlock | OtherBlock, unknown: Unknown | None, position: tuple[int, ...]
    ) -> Part:
        """The part of one block: unknown members become extras, unknown kinds opaque parts."""
        if isinstance(block, OtherBlock):
            members = dict(block.members)
            del members["type"]
            marker = take_marker(members, self.path(position), self.fail)
            part: Part = _opaque(block.tag, members)
        else:
            marker = None
            if block.cache_control is not None:
                marker = marker_of(block, unknown, self.path(position), self.fail)
            part = self._known(block, unknown, position)
        if marker is not None:
            self.marks.append(PartMark(f"m{self.message}", position, *marker))
        return part

    def _known(
        self, block: ContentBlock, unknown: Unknown | None, position: tuple[int, ...]
    ) -> Part:
        if isinstance(block, ToolResultBlock):
            return self._tool_result(block, unknown, position)
        if isinstance(block, ImageBlock | DocumentBlock):
            return self._media(block, unknown, position)
        return _SIMPLE[type(block)](block, _extras(unknown))

    def _tool_result(
        self, block: ToolResultBlock, unknown: Unknown | None, position: tuple[int, ...]
    ) -> ToolResult:
        content = block.content
        inner: str | tuple[ResultPart, ...] = content if isinstance(content, str) else ""
        if isinstance(content, list):
            below = unknown.take_elements("content") if unknown is not None else _NOTHING
            inner = tuple(
                self._inner(each, below.get(index), (*position, index))
                for index, each in enumerate(content)
            )
        error = block.is_error or False
        return ToolResult(block.tool_use_id, inner, error, extras=_extras(unknown))

    def _inner(
        self, block: ContentBlock, unknown: Unknown | None, position: tuple[int, ...]
    ) -> ResultPart:
        part = self.block(block, unknown, position)
        if isinstance(part, Text | Image | Document | Opaque):
            return part
        raise self.fail("may not stand inside a tool result", self.path(position))

    def _media(
        self,
        block: ImageBlock | DocumentBlock,
        unknown: Unknown | None,
        position: tuple[int, ...],
    ) -> Image | Document | Opaque:
        source, extras = self._source(block.source, position), _extras(unknown)
        if isinstance(block, ImageBlock):
            if source is not None:
                return Image(source, extras=extras)
            return _opaque("image", {**_members(extras), "source": block.source})
        if source is not None:
            return Document(source, block.title, block.context, extras)
        members = {**_members(extras), "source": block.source}
        for name, value in (("title", block.title), ("context", block.context)):
            if value is not None:
                members[name] = msgspec.Raw(string(value))
        return _opaque("document", members)

    def _source(self, raw: msgspec.Raw, position: tuple[int, ...]) -> Source | None:
        """None for sources that `Source` cannot hold: their block stays opaque."""
        path = f"{self.path(position)}.source"
        source, unknown = _SOURCE.decode(raw, path, self.fail)
        if unknown is not None:
            return None
        match source:
            case UrlSource():
                return Url(source.url)
            case FileSource():
                return FileId(WIRE, source.file_id)
            case TextSource(media_type="text/plain"):
                return Bytes(source.data.encode(), "text/plain")
            case Base64Source():
                try:
                    data = base64.b64decode(source.data, validate=True)
                except ValueError as problem:  # of binascii, or for letters that are not ASCII
                    raise self.fail(f"not base64: {problem}", f"{path}.data") from None
                return None if source.media_type == "text/plain" else Bytes(data, source.media_type)
        return None


def _extras(unknown: Unknown | None) -> Extras | None:
    return None if unknown is None else unknown.extras(WIRE)


def _members(extras: Extras | None) -> Members:
    return {} if extras is None else decode_members(extras[WIRE])


def _opaque(kind: str, members: Members) -> Opaque:
    """A block that is sent back as it came, less its marker."""
    typed = {"type": msgspec.Raw(string(kind)), **members}
    return Opaque(WIRE, kind, encode_members(typed).decode())


# ── Parsing ──────────────────────────────────────────────────────────────────────────────────────


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong."""
    request, unknown = _REQUEST.decode(body, "$", request_error)
    tools, tool_marks = _tools(bytes(request.tools))
    blocks, block_marks = _system(bytes(request.system))
    reader = BlockReader("$.messages[{}]", request_error)
    conversation = _conversation(request, unknown, reader)
    automatic, marker_extras = marker_of(request, unknown, "$", request_error) or (None, None)
    extras = _extras(unknown)
    if marker_extras is not None:
        extras = {**(extras or {}), AUTOMATIC_FIELDS: marker_extras[WIRE]}
    params, _ = PARAMS.decode(request)
    asked = request.diagnostics
    earlier = asked.previous_message_id if asked is not None else None
    cache = PromptCachePlan(
        marks=(*tool_marks, *block_marks, *reader.marks),
        automatic=automatic,
        diagnose=asked is not None,
        compare_with=None if earlier is None else Earlier(WIRE, earlier),
        prewarm=request.max_tokens == 0,
    )
    return Call(
        ir=PromptIR.chat(conversation, system=blocks, cache=cache),
        model=request.model,
        tools=tools,
        params=params,
        extras=extras,
    )


def _conversation(
    request: MessagesRequest, unknown: Unknown | None, reader: BlockReader
) -> Conversation:
    messages: list[Message] = []
    fields = unknown.take_elements("messages") if unknown is not None else _NOTHING
    ids = message_ids(len(request.messages))
    for index, message in enumerate(request.messages):
        content, own = message.content, fields.get(index)
        parts: tuple[Part, ...]
        if isinstance(content, str):
            parts = (Text(content),)
        else:
            reader.message = index
            inner = own.take_elements("content") if own is not None else _NOTHING
            parts = reader.content(content, inner)
        if own is not None and (rest := own.remaining()):
            parts += (Opaque(WIRE, MESSAGE_FIELDS, encode_members(rest).decode()),)
        messages.append(Message(id=ids[index], role=message.role, parts=parts))
    return Conversation(messages)


@MEMO.remember(SYSTEM_PROMPTS)
def _system(raw: bytes) -> tuple[tuple[PromptBlock, ...], tuple[MarkRequest, ...]]:
    """The system blocks, and the marks on them; the same prompt comes with every turn."""
    content, unknown = _SYSTEM.decode_list(raw, "$.system", request_error)
    if isinstance(content, str):
        return (PromptBlock("system", content),), ()
    blocks = []
    marks: list[MarkRequest] = []
    for index, block in enumerate(content or ()):
        path, own = f"$.system[{index}]", unknown.get(index)
        if isinstance(block, OtherBlock):
            raise request_error(f"{block.tag!r} may not stand in the system prompt", f"{path}.type")
        if (marker := marker_of(block, own, path, request_error)) is not None:
            marks.append(BlockMark(index, *marker))
        blocks.append(PromptBlock(f"system{index}", block.text, extras=_extras(own)))
    return tuple(blocks), tuple(marks)


@MEMO.remember(TOOL_LISTS)
def _tools(raw: bytes) -> tuple[tuple[AnyTool, ...], tuple[MarkRequest, ...]]:
    """The tools, and the marks on them; the same list comes with every turn."""
    tools: list[AnyTool] = []
    marks: list[MarkRequest] = []
    for index, element in enumerate(list_elements(raw, "$.tools", request_error)):
        tool, marker = _tool(element, f"$.tools[{index}]")
        tools.append(tool)
        if marker is not None:
            marks.append(ToolMark(tool.name, *marker))
    return tuple(tools), tuple(marks)


def _tool(raw: msgspec.Raw, path: str) -> tuple[AnyTool, tuple[Ttl, Extras | None] | None]:
    members = object_members(raw, path, request_error)
    if "input_schema" not in members:
        marker = take_marker(members, path, request_error)
        return ProviderTool(
            WIRE, known_text(members, "name"), encode_members(members).decode()
        ), marker
    tool, unknown = _TOOL.decode(raw, path, request_error)
    marker = marker_of(tool, unknown, path, request_error)
    schema, extras = bytes(tool.input_schema).decode(), _extras(unknown)
    return Tool(tool.name, tool.description or "", schema, tool.strict, extras=extras), marker


# ── Splitting ────────────────────────────────────────────────────────────────────────────────────

_KINDS = {
    "text": Kind.TEXT,
    "image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
}
_MARKABLE = {"text", "image", "document", "tool_use", "tool_result", *MARKABLE_OPAQUE}


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks."""
    fields = dict(body) if isinstance(body, dict) else object_members(body, "$", request_error)
    if "model" not in fields:
        raise request_error("is missing", "$.model")
    model: str = decode_value(fields.pop("model"), str, "$.model", request_error)
    marks: list[Mark] = []
    runs: list[ChunkRun] = []
    count = 0
    for name, cut in _SECTIONS.items():
        raw = fields.pop(name, None)
        section = None if raw is None else MEMO.split_section(name, bytes(raw), cut)
        if section is not None:
            run, section_marks = section
            runs.append(run)
            marks += [Mark(count + mark.chunk, mark.ttl) for mark in section_marks]
            count += run.count
    runs.append(_split_messages(fields.pop("messages", msgspec.Raw(b"[]")), count, marks))
    automatic = take_marker(fields, "$", request_error)
    rest = encode_members(fields)[1:-1]
    head, tail = b'{"model":' + string(model), (b"," + rest if rest else b"") + b"}"
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=count + runs[-1].count,
        envelope=Envelope(
            source=None,
            path=PATH,
            headers=headers,
            head=head + b",",
            tail=tail,
            cache_params=_cache_params(head + tail),
        ),
        markers=MARKERS,
        request_markers=MARKERS,
        binds_thinking=True,
        marks=tuple(marks),
        automatic=automatic[0] if automatic is not None else None,
    )


def _split_section(section: Section, raw: bytes) -> SplitSection | None:
    """The tools or system blocks of a request."""
    if raw == b"null":
        return None
    append = LogAppend()
    labels: list[str] = []
    marks: list[Mark] = []
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    if raw[:1] == b'"' and section == "system":
        raw = b'[{"type":"text","text":' + raw + b"}]"
    for index, element in enumerate(list_elements(raw, f"$.{section}", request_error)):
        data, ttl, members = _cut(element, f"$.{section}[{index}]")
        name = known_text(members, "name") if section == "tools" else ""
        labels.append(f"tool {name}" if name else f"{section}{index}")
        if ttl is not None:
            marks.append(Mark(index, ttl))
        append.chunk(kind, b"," + data if index else data, -1)
    if not labels:
        return None
    log = ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))
    lead = b'"%b":[' % section.encode()
    run = ChunkRun(section, log, len(log), lead=lead, close=b"],", source=tuple(labels))
    return run, tuple(marks)


_SECTIONS: dict[Section, Callable[[bytes], SplitSection | None]] = {
    "tools": functools.partial(_split_section, "tools"),
    "system": functools.partial(_split_section, "system"),
}


def _split_messages(raw: msgspec.Raw, first: int, marks: list[Mark]) -> ChunkRun:
    messages = list_elements(raw, "$.messages", request_error)
    log = MEMO.request_log(messages)
    append, last_role = log.append, log.last_role
    for index in range(log.known, len(messages)):
        role, blocks = _walk(messages[index], f"$.messages[{index}]")
        lead, opens = glue(role, last_role), not joins(role, last_role)
        placed: list[Mark] = []
        for data, kind, splice, ttl, inner in blocks:
            if opens:
                append.open(role)
                last_role, opens = role, False
            if inner:
                size = len(lead) if log.count else len(b'"messages":[' + opening(role))
                placed += [Mark(log.count, each, size + offset) for offset, each in inner]
            if ttl is not None:
                placed.append(Mark(log.count, ttl))
            append.chunk(kind, lead + data, splice)
            lead = b","
        log.end_message(placed)
    if not log.count:
        raise InvalidRequest("at least one message with content is needed", path="$.messages")
    chunks = log.finish()
    marks += log.marks(first)
    return ChunkRun(
        "messages",
        chunks,
        log.count,
        role=SegmentRole.CONVERSATION,
        lead=b'"messages":[' + opening(chunks.roles[0]),
        close=CLOSE,
        source=MEMO.placeholder_messages(len(messages)),
    )


#: A block's bytes without markers, its kind, splice and TTL, and the offsets and TTLs of the
#: markers inside it.
_CutBlock = tuple[bytes, Kind, int | None, Ttl | None, list[tuple[int, Ttl]]]


def _walk(raw: msgspec.Raw, path: str) -> tuple[str, list[_CutBlock]]:
    """The role of a message, and its blocks."""
    members = object_members(raw, path, request_error)
    for name in ("role", "content"):
        if name not in members:
            raise request_error("is missing", f"{path}.{name}")
    role = decode_value(members.pop("role"), str, f"{path}.role", request_error)
    content = members.pop("content")
    if role not in WIRE_ROLES:
        raise request_error(f"{role!r} is not a role here", f"{path}.role")
    if members and (rest := Unknown(dict(members)).remaining()):
        role = RoleWithFields(role, encode_members(rest)[1:-1])
    if bytes(content)[:1] == b'"':
        text = b'{"type":"text","text":' + bytes(content) + b"}"
        return role, [(text, Kind.TEXT, -1, None, [])]
    path = f"{path}.content"
    return role, [
        _cut_block(block, f"{path}[{index}]")
        for index, block in enumerate(list_elements(content, path, request_error))
    ]


def _cut_block(raw: msgspec.Raw, path: str) -> _CutBlock:
    data, ttl, members = _cut(raw, path)
    if "type" not in members:
        raise request_error("is missing", f"{path}.type")
    kind = decode_value(members["type"], str, f"{path}.type", request_error)
    inner: list[tuple[int, Ttl]] = []
    if kind == "tool_result":
        data, inner = _cut_result(members, path)
    blank = kind == "text" and not known_text(members, "text").strip()
    splice = -1 if kind in _MARKABLE and not blank else None
    return data, _KINDS.get(kind, Kind.OTHER), splice, ttl, inner


def _cut_result(members: Members, path: str) -> tuple[bytes, list[tuple[int, Ttl]]]:
    """A tool result without the markers of its inner blocks, and where those stood."""
    content = members.get("content")
    if content is None or bytes(content)[:1] != b"[":
        return encode_members(members), []
    names = list(members)
    before = {name: members[name] for name in names[: names.index("content")]}
    offset = len(encode_members({**before, "content": msgspec.Raw(b"")})) - 1 + len(b"[")
    blocks: list[bytes] = []
    marks: list[tuple[int, Ttl]] = []
    for index, block in enumerate(list_elements(content, f"{path}.content", request_error)):
        bare, ttl, _ = _cut(block, f"{path}.content[{index}]")
        offset += len(bare)
        if ttl is not None:
            marks.append((offset - 1, ttl))
        offset += len(b",")
        blocks.append(bare)
    whole = {**members, "content": msgspec.Raw(b"[" + b",".join(blocks) + b"]")}
    return encode_members(whole), marks


def _cut(raw: msgspec.Raw, path: str) -> tuple[bytes, Ttl | None, Members]:
    """A block without its marker and the white space between its members; the marker's TTL; and the
    members. A block has the same bytes with and without a marker."""
    members = object_members(raw, path, request_error)
    marker = take_marker(members, path, request_error)
    return encode_members(members), None if marker is None else marker[0], members


@MEMO.remember(PARAM_SETS)
def _cache_params(body: bytes) -> tuple[tuple[str, bytes], ...]:
    return PARAMS.sent_cache_params(body)
