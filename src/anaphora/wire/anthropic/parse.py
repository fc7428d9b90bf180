"""Reads an Anthropic request into a call.

Positions and spelling are kept: arguments and schemas keep their text, markers become the caller's
marks, unknown fields become extras. Only these forms are normalised:

- text content becomes a list with one text block, and a system text one system block;
- `null`, an empty description and `is_error: false` mean the same as a missing field;
- a `cache_control` with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

import base64
from typing import TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.prompt import (
    BlockMark,
    Call,
    Earlier,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Segment,
    ToolMark,
)
from anaphora.values import (
    AnyTool,
    Bytes,
    Conversation,
    Document,
    Extras,
    FileId,
    Image,
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
    Ttl,
    Url,
)
from anaphora.wire.lenient import LenientDecoder, OtherBlock, Unknown
from anaphora.wire.markers import INNER_LEVELS
from anaphora.wire.memo import SYSTEM_PROMPTS, TOOL_LISTS
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    ErrorFactory,
    Members,
    converts_errors,
    decode_elements,
    decode_members,
    decode_value,
    encode_members,
    known_text,
    numbered,
    request_error,
)
from anaphora.wire.tables import BlockType
from anaphora.wire.walking import Walk

from . import types
from .fields import TABLE
from .params import AUTOMATIC_FIELDS, PARAMS, marker_of, read_marker, take_marker
from .types import MEMO, MESSAGE_FIELDS, UNSIGNED_KEY, WIRE

_REQUEST = LenientDecoder[types.MessagesRequest](types.MessagesRequest)
_SYSTEM = LenientDecoder[types.TextBlock | OtherBlock](types.TextBlock)
_TOOL = LenientDecoder[types.ToolDefinition](types.ToolDefinition)
_SOURCE = LenientDecoder[types.MediaSource | OtherBlock](types.MediaSource)
_NOTHING: dict[int, Unknown] = {}

#: Parts that a tool result may hold.
_InResult: TypeAlias = Text | Image | Document | Opaque


# ── Content blocks ────────────────────────────────────────────────────────────────────────────────


class BlockReader:
    """Reads content blocks into parts, and collects the markers on them."""

    __slots__ = ("fail", "marks", "message", "root")

    def __init__(self, root: str, fail: ErrorFactory) -> None:
        self.root = root
        """The path of the blocks' object, with a placeholder for the message's index."""
        self.fail = fail
        self.message = 0
        self.marks: list[MarkRequest] = []

    def path(self, position: tuple[int, ...]) -> str:
        """The JSON path of a block."""
        inner = "".join(f".content[{index}]" for index in position)
        return self.root.format(self.message) + inner

    def content(
        self, blocks: list[types.ContentBlock], unknown: dict[int, Unknown] = _NOTHING
    ) -> tuple[Part, ...]:
        """The parts of a message or reply."""
        parts: list[Part] = []
        own: Unknown | None = None
        for index, block in enumerate(blocks):
            if unknown:
                own = unknown.get(index)
            parts.append(self.block(block, own, (index,)))
        return tuple(parts)

    def block(
        self,
        block: types.ContentBlock | OtherBlock,
        unknown: Unknown | None,
        position: tuple[int, ...],
    ) -> Part:
        """The part of one block: unknown members become extras, unknown kinds opaque parts."""
        part: Part
        marker = None
        if type(block) is OtherBlock:
            members = {name: raw for name, raw in block.members.items() if name != "type"}
            marker = take_marker(members, self.path(position), self.fail)
            self._take_inner_marks(block.tag, members, position)
            part = _opaque(block.tag, members)
        else:
            if block.cache_control is not None:
                marker = marker_of(block, unknown, self.path(position), self.fail)
            if type(block) is types.TextBlock:
                part = Text(block.text, None if unknown is None else unknown.extras(WIRE))
            elif type(block) is types.ToolResultBlock:
                part = self._tool_result(block, unknown, position)
            elif type(block) is types.ToolUseBlock:
                extras = None if unknown is None else unknown.extras(WIRE)
                part = ToolCall(block.id, block.name, str(block.input, "utf-8"), extras)
            elif type(block) is types.ThinkingBlock:
                extras = _extras(unknown)
                if block.signature is None and self.fail is request_error:
                    extras = {**(extras or {}), UNSIGNED_KEY: "{}"}
                part = Thinking(block.thinking, block.signature or "", provider=WIRE, extras=extras)
            elif type(block) is types.RedactedBlock:
                part = Thinking(data=block.data, provider=WIRE, extras=_extras(unknown))
            else:
                part = self._media(block, unknown, position)
        if marker is not None:
            self.marks.append(PartMark(f"m{self.message}", position, *marker))
        return part

    def _take_inner_marks(self, kind: str, members: Members, position: tuple[int, ...]) -> None:
        """Remove the markers from the blocks inside a block that is kept whole: they use slots like
        any other."""
        row = TABLE.blocks.get(kind, TABLE.other)
        if row.inside:
            for inside, marker in _inner_markers(row, members, self.path(position), self.fail):
                self.marks.append(PartMark(f"m{self.message}", position + inside, *marker))

    def _tool_result(
        self, block: types.ToolResultBlock, unknown: Unknown | None, position: tuple[int, ...]
    ) -> ToolResult:
        content: str | tuple[ResultPart, ...] = ""
        if isinstance(block.content, str):
            content = block.content
        elif block.content is not None:
            below = _NOTHING if unknown is None else unknown.take_elements("content")
            parts: list[ResultPart] = []
            for index, each in enumerate(block.content):
                part = self.block(each, below.get(index), (*position, index))
                if not isinstance(part, _InResult):
                    path = self.path((*position, index))
                    raise self.fail("is not allowed in a tool result", path)
                parts.append(part)
            content = tuple(parts)
        extras = None if unknown is None else unknown.extras(WIRE)
        return ToolResult(block.tool_use_id, content, block.is_error or False, None, extras)

    def _media(
        self,
        block: types.ImageBlock | types.DocumentBlock,
        unknown: Unknown | None,
        position: tuple[int, ...],
    ) -> Image | Document | Opaque:
        source = self._source(block.source, position)
        is_image = isinstance(block, types.ImageBlock)
        if source is None:
            members = unknown.remaining() if unknown is not None else {}
            members["source"] = block.source
            for name in ("title", "context"):
                if (text := getattr(block, name, None)) is not None:
                    members[name] = msgspec.Raw(string(text))
            kind = "image" if is_image else "document"
            self._take_inner_marks(kind, members, position)
            return _opaque(kind, members)
        if isinstance(block, types.ImageBlock):
            return Image(source, extras=_extras(unknown))
        return Document(source, block.title, block.context, _extras(unknown))

    def _source(self, raw: msgspec.Raw, position: tuple[int, ...]) -> Source | None:
        """None for sources that `Source` cannot hold: their block stays opaque."""
        path = f"{self.path(position)}.source"
        source, unknown = _SOURCE.decode(raw, path, self.fail)
        if unknown is not None:
            return None
        match source:
            case types.UrlSource():
                return Url(source.url)
            case types.FileSource():
                return FileId(WIRE, source.file_id)
            case types.TextSource(media_type="text/plain"):
                return Bytes(source.data.encode(), "text/plain")
            case types.Base64Source():
                try:
                    data = base64.b64decode(source.data, validate=True)
                except ValueError as problem:  # of binascii, or for letters that are not ASCII
                    raise self.fail(f"not base64: {problem}", f"{path}.data") from None
                return None if source.media_type == "text/plain" else Bytes(data, source.media_type)
        return None


#: A block inside another: its path there, and the marker on it.
_InnerMarker: TypeAlias = tuple[tuple[int, ...], tuple[Ttl, Extras | None]]


def _inner_markers(
    row: BlockType, members: Members, path: str, fail: ErrorFactory, level: int = 0
) -> list[_InnerMarker]:
    """Remove the markers from the blocks inside a block, at all levels. Each level is encoded
    again, so a block has the same bytes with and without markers."""
    found: list[_InnerMarker] = []
    for place in row.inside if level < INNER_LEVELS else ():
        holder, _, rest = place.partition(".")
        raw = members.get(holder)
        first = b"" if raw is None else bytes(memoryview(raw)[:1])
        if raw is None or first not in (b"{", b"["):
            continue
        where = f"{path}.{holder}"
        if rest and first == b"{":
            inner = decode_members(raw)
            found += _inner_markers(BlockType(inside=(rest,)), inner, where, fail, level + 1)
            members[holder] = msgspec.Raw(encode_members(inner))
        elif not rest:
            blocks = decode_elements(raw) if first == b"[" else [raw]
            for index, each in enumerate(blocks):
                if bytes(memoryview(each)[:1]) == b"{":
                    where = f"{path}.{holder}[{index}]"
                    blocks[index], inside = _without_markers(each, where, fail, level + 1)
                    found += [((index, *below), marker) for below, marker in inside]
            listed = b"[" + b",".join(map(bytes, blocks)) + b"]"
            members[holder] = msgspec.Raw(listed) if first == b"[" else blocks[0]
    return found


def _without_markers(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, level: int
) -> tuple[msgspec.Raw, list[_InnerMarker]]:
    members = decode_members(raw)
    marker = take_marker(members, path, fail)
    row = TABLE.blocks.get(known_text(members, "type"), TABLE.other)
    found = _inner_markers(row, members, path, fail, level)
    if marker is not None:
        found.append(((), marker))
    return msgspec.Raw(encode_members(members)), found


def _extras(unknown: Unknown | None) -> Extras | None:
    return None if unknown is None else unknown.extras(WIRE)


def _opaque(kind: str, members: Members) -> Opaque:
    """A block that is sent back unchanged, without its marker."""
    typed = {"type": msgspec.Raw(string(kind)), **members}
    kind = f"part {kind}" if kind == MESSAGE_FIELDS else kind
    return Opaque(WIRE, kind, encode_members(typed).decode())


# ── Parsing ───────────────────────────────────────────────────────────────────────────────────────


@converts_errors(request_error)
def parse(body: bytes, path: str = "", first: int = 0) -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong. With `first`, the
    messages are those of a conversation after so many others."""
    request, unknown = _REQUEST.decode(body, "$", request_error)
    tools, tool_marks = _tools(bytes(request.tools))
    blocks, block_marks = _system(bytes(request.system))
    reader = BlockReader("$.messages[{}]", request_error)
    conversation = _conversation(request, unknown, reader, first)
    automatic, marker_extras = marker_of(request, unknown, "$", request_error) or (None, None)
    extras = _extras(unknown)
    if marker_extras is not None:
        extras = {**(extras or {}), AUTOMATIC_FIELDS: marker_extras[WIRE]}
    params, _ = PARAMS.decode(request)
    asked = request.diagnostics
    marks = (*tool_marks, *block_marks, *reader.marks)
    cache = NO_CACHE_PLAN
    if marks or automatic is not None or asked is not None or request.max_tokens == 0:
        earlier = asked.previous_message_id if asked is not None else None
        cache = PromptCachePlan(
            marks=marks,
            automatic=automatic,
            diagnose=asked is not None,
            compare_with=None if earlier is None else Earlier(WIRE, earlier),
            prewarm=request.max_tokens == 0,
        )
    segment = Segment(SegmentRole.CONVERSATION, conversation)
    return Call(
        ir=PromptIR(system_blocks=blocks, segments=(segment,), cache=cache),
        model=request.model,
        tools=tools,
        params=params,
        extras=extras,
    )


def _conversation(
    request: types.MessagesRequest, unknown: Unknown | None, reader: BlockReader, first: int
) -> Conversation:
    messages: list[tuple[Role, tuple[Part, ...]]] = []
    fields = unknown.take_elements("messages") if unknown is not None else _NOTHING
    own: Unknown | None = None
    inner = _NOTHING
    parts: tuple[Part, ...]
    for index, message in enumerate(request.messages):
        if fields:
            own = fields.get(index)
            inner = _NOTHING if own is None else own.take_elements("content")
        content = message.content
        if isinstance(content, str):
            parts = (Text(content),) if content else ()
        else:
            reader.message = first + index
            parts = reader.content(content, inner)
        if own is not None:
            parts += tuple(fields_part(WIRE, MESSAGE_FIELDS, own.remaining()))
        messages.append((message.role, parts))
    return numbered(messages, first)


@MEMO.remember(SYSTEM_PROMPTS)
def _system(raw: bytes) -> tuple[tuple[PromptBlock, ...], tuple[MarkRequest, ...]]:
    """The system blocks, and the marks on them; the same prompt comes with every turn."""
    if raw[:1] != b"[":
        text = decode_value(raw, str | list[msgspec.Raw] | None, "$.system", request_error)
        return () if text is None else (PromptBlock("system0", text),), ()
    blocks: list[PromptBlock] = []
    marks: list[MarkRequest] = []
    for index, found in enumerate(Walk(TABLE).section(raw, "$.system")):
        path = found.path
        block, unknown = _SYSTEM.decode(found.raw, path, request_error)
        if type(block) is OtherBlock:
            raise request_error(
                f"{block.tag!r} is not allowed in the system prompt", f"{path}.type"
            )
        if (marker := marker_of(block, unknown, path, request_error)) is not None:
            marks.append(BlockMark(index, *marker))
        blocks.append(PromptBlock(f"system{index}", block.text, extras=_extras(unknown)))
    return tuple(blocks), tuple(marks)


@MEMO.remember(TOOL_LISTS)
def _tools(raw: bytes) -> tuple[tuple[AnyTool, ...], tuple[MarkRequest, ...]]:
    """The tools, and the marks on them; the same list comes with every turn."""
    tools: list[AnyTool] = []
    marks: list[MarkRequest] = []
    walk = Walk(TABLE)
    for block in walk.tools(raw, "$.tools"):
        if "input_schema" in block.members:
            tool, unknown = _TOOL.decode(block.raw, block.path, request_error)
            marker = marker_of(tool, unknown, block.path, request_error)
            schema, about = bytes(tool.input_schema).decode(), tool.description or ""
            tools.append(Tool(tool.name, about, schema, tool.strict, extras=_extras(unknown)))
        else:
            found = block.marker
            marker = None if found is None else read_marker(found, block.path, request_error)
            json = encode_members(block.members).decode()
            tools.append(ProviderTool(WIRE, walk.function_name(block), json))
        if marker is not None:
            marks.append(ToolMark(tools[-1].name, *marker))
    return tuple(tools), tuple(marks)
