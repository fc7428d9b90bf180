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
from typing import TypeAlias

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
    Segment,
    ToolMark,
)
from anaphora.rendered import DeferredTool, Kind, Rendered
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
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    ErrorFactory,
    LenientDecoder,
    Members,
    OtherBlock,
    Unknown,
    converts_errors,
    encode_members,
    known_text,
    list_elements,
    numbered,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    BEFORE_BRACE,
    PARAM_SETS,
    SYSTEM_PROMPTS,
    TOOL_LISTS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    required_text,
)

from . import types
from .messages import RoleWithFields
from .params import AUTOMATIC_FIELDS, MARKERS, PARAMS, PATH, marker_of, take_marker
from .parts import placed
from .render import CLOSE, WIRE_ROLES, joins, opening
from .types import MARKABLE_OPAQUE, MEMO, MESSAGE_FIELDS, WIRE

_REQUEST = LenientDecoder[types.MessagesRequest](types.MessagesRequest)
_SYSTEM = LenientDecoder[str | list[types.TextBlock | OtherBlock] | None](
    str | list[types.TextBlock] | None
)
_TOOL = LenientDecoder[types.ToolDefinition](types.ToolDefinition)
_SOURCE = LenientDecoder[types.MediaSource | OtherBlock](types.MediaSource)
_NOTHING: dict[int, Unknown] = {}

#: What a tool result may hold here.
_InResult: TypeAlias = Text | Image | Document | Opaque


# ── Content blocks ────────────────────────────────────────────────────────────────────────────────


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
                signature = block.signature or ""
                part = Thinking(block.thinking, signature, provider=WIRE, extras=_extras(unknown))
            elif type(block) is types.RedactedBlock:
                part = Thinking(data=block.data, provider=WIRE, extras=_extras(unknown))
            else:
                part = self._media(block, unknown, position)
        if marker is not None:
            self.marks.append(PartMark(f"m{self.message}", position, *marker))
        return part

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
                    raise self.fail("may not stand inside a tool result", path)
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
            return _opaque("image" if is_image else "document", members)
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


def _extras(unknown: Unknown | None) -> Extras | None:
    return None if unknown is None else unknown.extras(WIRE)


def _opaque(kind: str, members: Members) -> Opaque:
    """A block that is sent back as it came, less its marker."""
    typed = {"type": msgspec.Raw(string(kind)), **members}
    return Opaque(WIRE, kind, encode_members(typed).decode())


# ── Parsing ───────────────────────────────────────────────────────────────────────────────────────


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
    request: types.MessagesRequest, unknown: Unknown | None, reader: BlockReader
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
            parts = (Text(content),)
        else:
            reader.message = index
            parts = reader.content(content, inner)
        if own is not None:
            parts += tuple(fields_part(WIRE, MESSAGE_FIELDS, own.remaining()))
        messages.append((message.role, parts))
    return numbered(messages)


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
        if type(block) is OtherBlock:
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
        path = f"$.tools[{index}]"
        members = object_members(element, path, request_error)
        if "input_schema" in members:
            tool, unknown = _TOOL.decode(element, path, request_error)
            marker = marker_of(tool, unknown, path, request_error)
            schema, about = bytes(tool.input_schema).decode(), tool.description or ""
            tools.append(Tool(tool.name, about, schema, tool.strict, extras=_extras(unknown)))
        else:
            marker = take_marker(members, path, request_error)
            json = encode_members(members).decode()
            tools.append(ProviderTool(WIRE, known_text(members, "name"), json))
        if marker is not None:
            marks.append(ToolMark(tools[-1].name, *marker))
    return tuple(tools), tuple(marks)


# ── Splitting ─────────────────────────────────────────────────────────────────────────────────────

_KINDS = {
    "text": Kind.TEXT,
    "image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
}
#: The offsets of markers in a block (None: at its end), and their TTLs.
_Marks: TypeAlias = list[tuple[int | None, Ttl]]
_MARKABLE = {"text", "image", "document", "tool_use", "tool_result", *MARKABLE_OPAQUE}
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    request.add_section("tools", request.take("tools"), functools.partial(_split_section, "tools"))
    request.add_section(
        "system", request.take("system"), functools.partial(_split_section, "system")
    )
    messages = request.add_messages(
        request.take_elements("messages"),
        _split_message,
        lead=b'"messages":[',
        glue=lambda _: b"]},",
        close=lambda _: CLOSE,
        joins=joins,
    )
    if messages is None:
        raise InvalidRequest("at least one message with content is needed", path="$.messages")
    automatic = take_marker(request.members, "$", request_error)
    envelope = request.envelope(model, PATH, headers, _cache_params)
    return request.finish(
        msgspec.structs.replace(envelope, binds_thinking=True),
        wire=WIRE,
        model=model,
        markers=MARKERS,
        request_markers=MARKERS,
        automatic=automatic[0] if automatic is not None else None,
    )


def _split_section(section: Section, raw: bytes) -> SplitSection | None:
    """The tools or system blocks of a request."""
    if raw[:1] == b'"' and section == "system":
        raw = b'[{"type":"text","text":' + raw + b"}]"
    blocks: list[SplitBlock] = []
    labels: list[str] = []
    deferred: list[DeferredTool] = []
    paths: list[str] = []
    elements = list_elements(raw, f"$.{section}", request_error)
    read = [_unmarked(each, f"$.{section}[{index}]") for index, each in enumerate(elements)]
    tools = section == "tools"
    # Where all are deferred, which the provider rejects, they are compared as any others.
    may_defer = tools and not all(_is_deferred(members) for members, _ in read)
    for index, (members, marks) in enumerate(read):
        name = known_text(members, "name") if tools else ""
        if may_defer and _is_deferred(members):
            deferred.append(placed(name, len(blocks), encode_members(members)))
            continue
        labels.append(f"tool {name}" if name else f"{section}{index}")
        splice = BEFORE_BRACE if tools or not _is_blank_block(members) else None
        blocks.append(SplitBlock(Kind.OTHER, encode_members(members), splice, marks))
        paths.append(f"{section}[{index}]")
    lead = b'"%b":[' % section.encode()
    if not deferred:
        return cut_section(section, blocks, labels, lead=lead, close=b"],")
    cut = cut_section(section, blocks, labels, lead=lead, close=b"],", paths=tuple(paths))
    if cut is None:
        return None
    return msgspec.structs.replace(cut[0], deferred=tuple(deferred)), cut[1]


def _is_deferred(members: Members) -> bool:
    return bytes(members.get("defer_loading", b"")) == b"true"


def _split_message(raw: msgspec.Raw, path: str) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if "content" not in members:
        raise request_error("is missing", f"{path}.content")
    del members["role"]
    content = members.pop("content")
    if role not in WIRE_ROLES:
        raise request_error(f"{role!r} is not a role here", f"{path}.role")
    if members and (rest := Unknown(dict(members)).remaining()):
        role = RoleWithFields(role, encode_members(rest)[1:-1])
    if bytes(content)[:1] == b'"':
        text = b'{"type":"text","text":' + bytes(content) + b"}"
        splice = None if _is_blank(bytes(content)) else BEFORE_BRACE
        return SplitMessage(role, opening(role), [SplitBlock(Kind.TEXT, text, splice)])
    path = f"{path}.content"
    elements = enumerate(list_elements(content, path, request_error))
    blocks = [_split_block(block, f"{path}[{index}]") for index, block in elements]
    return SplitMessage(role, opening(role), blocks)


def _split_block(raw: msgspec.Raw, path: str) -> SplitBlock:
    members, marks = _unmarked(raw, path)
    kind = required_text(members, "type", path)
    if kind == "tool_result" and bytes(members.get("content", b""))[:1] == b"[":
        marks = [*_take_inner_marks(members, f"{path}.content"), *marks]
    splice = BEFORE_BRACE if kind in _MARKABLE and not _is_blank_block(members) else None
    return SplitBlock(_KINDS.get(kind, Kind.OTHER), encode_members(members), splice, marks)


def _is_blank_block(members: Members) -> bool:
    """A text block without text, on which the provider rejects a marker."""
    return known_text(members, "type") == "text" and _is_blank(bytes(members.get("text", b"")))


def _is_blank(text: bytes) -> bool:
    # Decoded only where it does not begin with a letter or the like.
    if b"!" <= text[1:2] <= b"~" and text[1:2] not in b'"\\':
        return False
    return not known_text({"text": msgspec.Raw(text)}, "text").strip()


def _take_inner_marks(members: Members, path: str) -> _Marks:
    """Takes the markers out of the blocks in a tool result; where they stood in its bytes."""
    names = list(members)
    before = {name: members[name] for name in names[: names.index("content")]}
    offset = len(encode_members({**before, "content": msgspec.Raw(b"")})) - 1 + len(b"[")
    blocks: list[bytes] = []
    marks: _Marks = []
    for index, block in enumerate(list_elements(members["content"], path, request_error)):
        inner, own = _unmarked(block, f"{path}[{index}]")
        blocks.append(encode_members(inner))
        offset += len(blocks[-1])
        marks += [(offset - 1, ttl) for _, ttl in own]
        offset += len(b",")
    members["content"] = msgspec.Raw(b"[" + b",".join(blocks) + b"]")
    return marks


def _unmarked(raw: msgspec.Raw, path: str) -> tuple[Members, _Marks]:
    """The members of a block without its marker. A block has the same bytes with and without one:
    it is always written anew."""
    members = object_members(raw, path, request_error)
    marker = take_marker(members, path, request_error)
    return members, [] if marker is None else [(None, marker[0])]
