"""Reads a Converse request into a call.

Arguments and schemas keep their text, markers become the caller's marks, unknown fields extras, and
unknown kinds of blocks opaque parts. A marker that follows no block which can be marked stays a
block. The forms that are normalised are listed in `tests/support/roundtrip/bedrock_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import Raw

from anaphora.prompt import (
    BlockMark,
    Call,
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
    Audio,
    Conversation,
    Document,
    Extras,
    Image,
    Opaque,
    Part,
    ProviderTool,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
)
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.memo import SYSTEM_PROMPTS, TOOL_LISTS
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    ErrorFactory,
    Members,
    converts_errors,
    decode_elements,
    decode_members,
    encode_members,
    known_text,
    list_elements,
    numbered,
    reply_error,
    request_error,
)

from . import types
from .media import read_cited, read_media
from .params import read_marker, read_params, read_path
from .types import FORM, MEMO, MESSAGE_FIELDS, NULL, SERVER_TOOL, WIRE

_REQUEST = LenientDecoder[types.ConverseRequest](types.ConverseRequest)
_SYSTEM = LenientDecoder[types.SystemBlock](types.SystemBlock)
_CONFIG = LenientDecoder[types.ToolConfig](types.ToolConfig)
_TOOL = LenientDecoder[types.ToolObject](types.ToolObject)
_NOTHING: dict[int, Unknown] = {}
#: Key in the extras: the text is that of a JSON value.
_AS_JSON: Extras = FrozenExtras({FORM: '"json"'})
_NO_RESULT = Text("null", _AS_JSON)

#: A marker: the message and block that it marks, and its TTL and unknown members.
_Marker: TypeAlias = tuple[int, int, tuple[Ttl, Extras | None]]
#: Returns the raw JSON of a block, by its message and position.
_RawBlock: TypeAlias = Callable[[int, int], Raw]


# ── Content blocks ───────────────────────────────────────────────────────────────────────────────


class BlockReader:
    """Reads the blocks of messages or of a reply into parts, and the markers between them. `raw`
    returns the JSON of a block, by its message and its position there."""

    __slots__ = ("_fail", "_is_reply", "_path", "_raw", "markers", "message")

    def __init__(self, raw: _RawBlock, path: str, fail: ErrorFactory) -> None:
        self._raw = raw
        self._path = path
        self._fail = fail
        self._is_reply = fail is reply_error
        """Then results are those of the provider's tools, and nothing is a mark."""
        self.message = 0
        self.markers: list[_Marker] = []

    def content(
        self, blocks: list[types.Block], unknown: dict[int, Unknown] = _NOTHING
    ) -> list[Part]:
        parts: list[Part] = []
        own: Unknown | None = None
        for index, block in enumerate(blocks):
            if unknown:
                own = unknown.get(index)
            if block.cachePoint is not None and parts and self._mark(block, own, parts, index):
                continue
            parts.append(self.block(block, own, index))
        return parts

    def _mark(
        self, block: types.Block, unknown: Unknown | None, parts: list[Part], index: int
    ) -> bool:
        """Whether a block is the marker of the part before it."""
        place = self.message, len(parts) - 1
        taken = self._is_reply or (self.markers and self.markers[-1][:2] == place)
        only = len(decode_members(self._raw(self.message, index))) == 1
        if taken or not only or not can_be_marked(parts[-1]):
            return False
        assert block.cachePoint is not None
        marker = read_marker(block.cachePoint, unknown)
        if marker is not None:
            self.markers.append((*place, marker))
        return marker is not None

    def block(self, block: types.Block, unknown: Unknown | None, index: int) -> Part:
        """The part of one block. One that is not exactly one of the known kinds is kept whole."""
        part: Part | None = None
        text, call, result = block.text, block.toolUse, block.toolResult
        rest = (
            block.reasoningContent is None
            and block.cachePoint is None
            and block.image is block.document is block.audio is block.citationsContent is NULL
        )
        if rest:
            if text is not None and call is None and result is None:
                return Text(text, None if unknown is None else unknown.extras(WIRE))
            if call is not None and text is None and result is None:
                part = _call(call, unknown)
            elif result is not None and text is None and call is None and not self._is_reply:
                part = self._result(result, unknown, index)
        elif text is None and call is None and result is None:
            part = self._other(block, unknown)
        return part or _opaque(self._raw(self.message, index))

    def _other(self, block: types.Block, unknown: Unknown | None) -> Part | None:
        if block.reasoningContent is not None:
            only = _is_only(block, "reasoningContent")
            return _reasoning(block.reasoningContent, unknown) if only else None
        if block.citationsContent != NULL:
            only = _is_only(block, "citationsContent")
            return read_cited(block.citationsContent, unknown) if only else None
        return self._media(block, unknown)

    def _media(
        self, block: types.Block | types.ResultBlock, unknown: Unknown | None
    ) -> Part | None:
        for kind in ("image", "document", "audio"):
            raw = getattr(block, kind, NULL)
            if raw != NULL and _is_only(block, kind):
                extras = {} if unknown is None else unknown.remaining()
                return read_media(kind, raw, extras, f"{self._path}.{kind}", self._fail)
        return None

    def _result(
        self, result: types.ToolResultObject, unknown: Unknown | None, index: int
    ) -> ToolResult | None:
        """A tool's result; None if it has a type: then it is that of a tool of the provider."""
        given, failed = result.content or (), result.status == "error"
        if unknown is None and len(given) == 1 and given[0].text:
            block = given[0]
            if block.json is block.image is block.document is NULL:
                return ToolResult(result.toolUseId, block.text or "", failed)
        below, extras = _NOTHING, None
        if unknown is not None:
            inner = unknown.members.get("toolResult")
            inside = inner if type(inner) is Unknown else Unknown({})
            if "type" in inside.members:
                return None
            below, extras = inside.take_elements("content"), unknown.extras(WIRE)
        parts = [
            self._result_part(block, below.get(at), index, at) for at, block in enumerate(given)
        ]
        content: str | tuple[ResultPart, ...] = tuple(parts)
        if parts == [_NO_RESULT]:
            content = ""  # an empty list is refused, so null is sent in place of it
        return ToolResult(result.toolUseId, content, failed, None, extras)

    def _result_part(
        self, block: types.ResultBlock, unknown: Unknown | None, index: int, at: int
    ) -> ResultPart:
        if block.text is not None and _is_only(block, "text"):
            return Text(block.text, None if unknown is None else unknown.extras(WIRE))
        result = decode_members(decode_members(self._raw(self.message, index))["toolResult"])
        members = decode_members(decode_elements(result["content"])[at])
        if "json" in members and len(members) == 1:
            return Text(bytes(members["json"]).decode(), _AS_JSON)
        part = self._media(block, unknown)
        assert part is None or isinstance(part, Image | Document | Opaque)
        return part or _opaque(Raw(encode_members(members)))


def can_be_marked(part: Part) -> bool:
    """Whether a marker after a part is the caller's mark on it. After others it stays a block."""
    if isinstance(part, Opaque):
        return part.kind in ("guardContent", "searchResult")
    return not isinstance(part, Thinking | Audio)


def _is_only(block: msgspec.Struct, name: str) -> bool:
    """Whether no other kind of block is given."""
    return all(
        getattr(block, field) is None or getattr(block, field) == NULL
        for field in block.__struct_fields__
        if field != name
    )


def _call(call: types.ToolUse, unknown: Unknown | None) -> ToolCall | None:
    """A call; None for one that the provider runs itself."""
    if unknown is not None:
        inner = unknown.members.get("toolUse")
        kind = inner.members.get("type") if type(inner) is Unknown else None
        if kind == Raw(b'"%b"' % SERVER_TOOL.encode()):
            return None
    extras = None if unknown is None else unknown.extras(WIRE)
    return ToolCall(call.toolUseId, call.name, str(call.input, "utf-8"), extras)


def _reasoning(content: types.ReasoningContent, unknown: Unknown | None) -> Thinking | None:
    text, data = content.reasoningText, content.redactedContent
    extras = None if unknown is None else unknown.extras(WIRE)
    if text is not None and data is None:
        return Thinking(text.text, text.signature, provider=WIRE, extras=extras)
    if text is None and data is not None:
        return Thinking(data=data, provider=WIRE, extras=extras)
    return None


def _opaque(raw: Raw) -> Opaque:
    kind = next(iter(decode_members(raw)), "block")
    kind = f"part {kind}" if kind == MESSAGE_FIELDS else kind
    return Opaque(WIRE, kind, bytes(raw).decode())


# ── Parsing ──────────────────────────────────────────────────────────────────────────────────────


@converts_errors(request_error)
def parse(body: bytes, path: str = "", first: int = 0) -> Call:
    """The call of a request; `InvalidRequest` names the field that is wrong. The path names the
    model and whether to stream. With `first`, the messages are those of a conversation after so
    many others."""
    model, stream = read_path(path)
    request, unknown = _REQUEST.decode(body, "$", request_error)
    fields = unknown.take_elements("messages") if unknown is not None else _NOTHING
    rest = {} if unknown is None else unknown.remaining()
    config, tools, tool_marks = _read_config(request.toolConfig, rest)
    blocks: tuple[PromptBlock, ...] | None
    blocks, block_marks = _system(bytes(request.system))
    if blocks is None:
        rest["system"] = request.system
    conversation, marks = _conversation(request, fields, body, first)
    model = model or request.modelId or ""
    params, extras = read_params(request, config, rest, model, stream)
    marks = (*tool_marks, *block_marks, *marks)
    cache = PromptCachePlan(marks=marks) if marks else NO_CACHE_PLAN
    segment = Segment(SegmentRole.CONVERSATION, conversation)
    return Call(
        ir=PromptIR(system_blocks=blocks or (), segments=(segment,), cache=cache),
        model=model,
        tools=tools,
        params=params,
        extras=extras,
    )


def _conversation(
    request: types.ConverseRequest, fields: dict[int, Unknown], body: bytes, first: int
) -> tuple[Conversation, tuple[MarkRequest, ...]]:
    messages: list[tuple[Role, tuple[Part, ...]]] = []
    sent: list[Raw] = []
    last: dict[int, list[Raw]] = {}
    """The blocks of the message that is being read."""

    def raw_block(message: int, block: int) -> Raw:
        if not sent:
            sent.extend(decode_elements(decode_members(body)["messages"]))
        if message not in last:
            last.clear()
            last[message] = decode_elements(decode_members(sent[message])["content"])
        return last[message][block]

    reader = BlockReader(raw_block, "$.messages", request_error)
    own: Unknown | None = None
    read, inner = reader.block, _NOTHING
    for index, message in enumerate(request.messages or ()):
        if fields:
            own = fields.get(index)
            inner = _NOTHING if own is None else own.take_elements("content")
        content = message.content
        reader.message = index
        if len(content) == 1 and own is None:
            messages.append((message.role, (read(content[0], None, 0),)))
            continue
        parts = reader.content(content, inner)
        if own is not None:
            parts += fields_part(WIRE, MESSAGE_FIELDS, own.remaining())
        messages.append((message.role, tuple(parts)))
    marks = [PartMark(f"m{first + of}", (at,), *marker) for of, at, marker in reader.markers]
    return numbered(messages, first), tuple(marks)


@MEMO.remember(SYSTEM_PROMPTS)
def _system(raw: bytes) -> tuple[tuple[PromptBlock, ...] | None, tuple[MarkRequest, ...]]:
    """The system blocks, and the marks on them; None if there are others than texts."""
    blocks: list[PromptBlock] = []
    marks: list[MarkRequest] = []
    marked = -1
    for index, each in enumerate(list_elements(raw, "$.system", request_error)):
        block, unknown = _SYSTEM.decode(each, f"$.system[{index}]", request_error)
        if block.text is not None and block.cachePoint is None:
            extras = unknown.extras(WIRE) if unknown is not None else None
            blocks.append(PromptBlock(f"system{len(blocks)}", block.text, extras=extras))
            continue
        marker, last = None, len(blocks) - 1
        if block.cachePoint is not None and last > marked and len(decode_members(each)) == 1:
            marker = read_marker(block.cachePoint, unknown)
        if marker is None:
            return None, ()
        marks.append(BlockMark(last, *marker))
        marked = last
    return tuple(blocks), tuple(marks)


def _read_config(
    raw: Raw, rest: Members
) -> tuple[types.ToolConfig | None, tuple[AnyTool, ...], tuple[MarkRequest, ...]]:
    """The tool configuration, its tools, and the marks on them."""
    if raw == NULL:
        return None, (), ()
    config, unknown = _CONFIG.decode(raw, "$.toolConfig", request_error)
    tools, marks = _tools(bytes(config.tools))
    left = {} if unknown is None else unknown.remaining()
    if not tools and config.toolChoice is not None:
        # Without tools no choice is written.
        left["toolChoice"] = decode_members(raw)["toolChoice"]
        config = types.ToolConfig()
    if left:
        rest["toolConfig"] = Raw(encode_members(left))
    return config, tools, marks


@MEMO.remember(TOOL_LISTS)
def _tools(raw: bytes) -> tuple[tuple[AnyTool, ...], tuple[MarkRequest, ...]]:
    """The tools, and the marks on them; the same list comes with every turn."""
    tools: list[AnyTool] = []
    marks: list[MarkRequest] = []
    marked = -1
    for index, each in enumerate(list_elements(raw, "$.toolConfig.tools", request_error)):
        path = f"$.toolConfig.tools[{index}]"
        found, unknown = _TOOL.decode(each, path, request_error)
        if found.toolSpec is not None and found.cachePoint is None:
            function = _function(found.toolSpec, unknown)
            tools.append(function or _own_tool(each))
            continue
        marker, last = None, len(tools) - 1
        if found.cachePoint is not None and last > marked and len(decode_members(each)) == 1:
            marker = read_marker(found.cachePoint, unknown)
        if marker is not None:
            marks.append(ToolMark(tools[last].name, *marker))
            marked = last
        else:
            tools.append(_own_tool(each))
    return tuple(tools), tuple(marks)


def _own_tool(raw: Raw) -> ProviderTool:
    """A tool of Bedrock's own, or one that is kept whole."""
    members = decode_members(raw)
    kind = next(iter(members), "tool")
    value = bytes(members.get(kind, b""))
    name = known_text(decode_members(value), "name") if value[:1] == b"{" else ""
    return ProviderTool(WIRE, name or kind, bytes(raw).decode())


def _function(spec: types.ToolSpec, unknown: Unknown | None) -> Tool | None:
    """A function; None if its schema is not that alone."""
    schema = decode_members(spec.inputSchema) if bytes(spec.inputSchema)[:1] == b"{" else {}
    if [*schema] != ["json"] or bytes(schema["json"])[:1] != b"{":
        return None
    extras = unknown.extras(WIRE) if unknown is not None else None
    text = bytes(schema["json"]).decode()
    return Tool(spec.name, spec.description or "", text, spec.strict, extras=extras)
