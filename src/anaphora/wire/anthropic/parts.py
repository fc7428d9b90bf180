"""Encodes tools, system blocks and parts as JSON: one encoder for each kind.

An encoder returns the block's bytes, or None with a notice if Anthropic has no block for the part.
Fields have one fixed order, content is always an array.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptBlock
from anaphora.rendered import ChunkLog, DeferredTool, Kind
from anaphora.values import (
    AnyTool,
    Audio,
    Bytes,
    Document,
    Extras,
    Image,
    Notice,
    Opaque,
    Part,
    ProviderTool,
    Refusal,
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.values.codec import check_object
from anaphora.wire.alternating import UNSIGNED, Encoder, MessageForm
from anaphora.wire.parts import (
    check_image,
    check_part,
    following,
    is_fields_part,
    merged,
    object_arguments,
    own_members,
    render_items,
)
from anaphora.wire.reading import (
    Members,
    decode_elements,
    decode_members,
    encode_members,
    known_text,
)
from anaphora.wire.tables import BlockType

from .fields import TABLE
from .types import MESSAGE_FIELDS, UNSIGNED_KEY, WIRE

Notices: TypeAlias = list[Notice]

TEXT = b'{"type":"text","text":'
TOOL_CALL = b'{"type":"tool_use","id":%b,"name":%b,"input":%b}'
TOOL_RESULT = b'{"type":"tool_result","tool_use_id":%b,"content":['
#: The offset of a block's marker, counted back from the block's end.
BEFORE_BRACE = -1

_DEFERRED = "defer_loading"

_BLANK = Notice("blank_text", "a blank text block is refused, so it is left out")


# ── Tools and system blocks ──────────────────────────────────────────────────────────────────────


def tool_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    blocks = render_items("tools", tools, _tool, BEFORE_BRACE)
    return ChunkLog.of(blocks, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def is_deferred(tool: AnyTool) -> bool:
    """Whether a tool has `defer_loading`: the provider keeps it out of the prompt."""
    if isinstance(tool, ProviderTool):
        members = tool.json
    else:
        members = tool.extras.get(WIRE, "") if tool.extras is not None else ""
    if _DEFERRED not in members:
        return False
    decoded = msgspec.json.decode(check_object(members, path="tools"))
    return bool(decoded.get(_DEFERRED) is True)


def loaded_tools(tools: tuple[AnyTool, ...]) -> tuple[AnyTool, ...]:
    """The tools that the prompt begins with. The same tuple if none is deferred (its log is found
    by identity), or if all are, which the provider rejects."""
    if not any(map(is_deferred, tools)):
        return tools
    loaded = tuple(tool for tool in tools if not is_deferred(tool))
    return loaded or tools


def deferred_tools(tools: tuple[AnyTool, ...]) -> tuple[DeferredTool, ...]:
    """The deferred tools, each with its position among the loaded ones."""
    found: list[DeferredTool] = []
    before = 0
    for tool in tools:
        if is_deferred(tool):
            found.append(deferred_tool(tool.name, before, _tool(tool)))
        else:
            before += 1
    return tuple(found)


def deferred_tool(name: str, before: int, data: bytes) -> DeferredTool:
    """A deferred tool with its comma, after `before` loaded ones."""
    return DeferredTool(name, before, b"," + data if before else data + b",")


def system_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    texts = render_items("system", blocks, lambda b: _text_block(b.text, b.extras), BEFORE_BRACE)
    return ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    name = b'{"name":' + string(tool.name)
    definition = name + description + b',"input_schema":' + schema + strict + b"}"
    return merged(definition, tool.extras, WIRE)


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────


def _text(part: Text, notices: Notices) -> bytes | None:
    if not part.text or part.text.isspace():
        notices.append(_BLANK)
        return None
    return _text_block(part.text, part.extras)


def _assistant_text(part: Text, notices: Notices) -> bytes | None:
    """Keeps white space that the model wrote: signatures after it may depend on it."""
    return _text_block(part.text, part.extras) if part.text else _text(part, notices)


def _text_block(text: str, extras: Extras | None = None) -> bytes:
    return merged(TEXT + string(text) + b"}", extras, WIRE)


def _image(part: Image, notices: Notices) -> bytes | None:
    check_image(part.source)
    source = _source(part.source, notices)
    if source is not None and part.detail is not None:
        notices.append(
            Notice("detail_unsupported", "Anthropic has no image detail; left out", "detail")
        )
    image = b'{"type":"image","source":' + (source or b"") + b"}"
    return None if source is None else merged(image, part.extras, WIRE)


def _document(part: Document, notices: Notices) -> bytes | None:
    source = _source(part.source, notices)
    if source is None:
        return None
    title = b"" if part.title is None else b',"title":' + string(part.title)
    context = b"" if part.context is None else b',"context":' + string(part.context)
    document = b'{"type":"document","source":' + source + title + context + b"}"
    return merged(document, part.extras, WIRE)


def _audio(_: Audio, notices: Notices) -> None:
    notices.append(Notice("audio_unsupported", "Anthropic takes no audio, so it is left out"))


def _source(source: Source, notices: Notices) -> bytes | None:
    if isinstance(source, Bytes):
        if source.media_type == "text/plain":
            try:
                text = source.data.decode()
            except UnicodeDecodeError as problem:
                reason = f"text/plain is not UTF-8 at byte {problem.start}"
                raise InvalidRequest(reason, path="source.data") from None
            return b'{"type":"text","media_type":"text/plain","data":' + string(text) + b"}"
        media_type, data = string(source.media_type), base64.b64encode(source.data)
        return b'{"type":"base64","media_type":%b,"data":"%b"}' % (media_type, data)
    if isinstance(source, Url):
        return b'{"type":"url","url":' + string(source.url) + b"}"
    if source.provider != WIRE:
        reason = f"a file id of {source.provider} is unknown to Anthropic; left out"
        notices.append(Notice("foreign_file", reason))
        return None
    return b'{"type":"file","file_id":' + string(source.id) + b"}"


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    names = string(part.id), string(part.name)
    call = TOOL_CALL % (*names, object_arguments(part.arguments, notices))
    return merged(call, part.extras, WIRE)


def _tool_result(part: ToolResult, notices: Notices, as_sent: bool = False) -> bytes:
    content, opening, end = part.content, TOOL_RESULT % string(part.call_id), _result_end(part)
    if isinstance(content, str):
        if content and not content.isspace():
            return b"".join((opening, TEXT, string(content), b"}", end))
        if content and as_sent:  # accepted as a text, and refused as a block
            return opening[:-1] + string(content) + end[1:]
        if content:
            notices.append(_BLANK)
        return opening + end
    return opening + b",".join(_result_blocks(content, notices, as_sent)) + end


def _result_end(part: ToolResult) -> bytes:
    """A tool result after its last block."""
    return (
        (b'],"is_error":true' if part.error else b"]")
        + following(own_members(part.extras, WIRE))
        + b"}"
    )


def _result_blocks(
    parts: Sequence[ResultPart], notices: Notices, as_sent: bool = False
) -> list[bytes]:
    blocks = []
    for index, part in enumerate(parts):
        try:
            block = encoder_for(part, False, as_sent)[2](part, notices)
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
        if block is not None:
            blocks.append(block)
    return blocks


class InnerPlaces:
    """The places of markers on blocks inside others. Each block is read once, however many markers
    are in it."""

    def __init__(self, as_sent: bool) -> None:
        self._as_sent = as_sent
        self._known: dict[tuple[int, tuple[int, ...]], list[tuple[Any, int, bool]]] = {}
        """By the part and the path of a block in it: the blocks inside that, the bytes after each,
        and whether it takes a marker."""

    def bytes_after_marker(self, part: Part, path: tuple[int, ...]) -> int | None:
        """The bytes of a part's block from the marker on the block at `path` inside it; None if
        that takes none."""
        found: Any = part
        total = -BEFORE_BRACE
        for depth, index in enumerate(path):
            key = id(part), path[:depth]
            inside = self._known.get(key)
            if inside is None:
                inside = self._known[key] = self._inside(found)
            if not 0 <= index < len(inside):
                return None
            found, after, markable = inside[index]
            total += after
        return total if markable else None

    def _inside(self, block: Any) -> list[tuple[Any, int, bool]]:
        if isinstance(block, ToolResult):
            return self._in_result(block)
        if isinstance(block, Opaque):
            return _in_members(
                decode_members(block.json), TABLE.blocks.get(block.kind, TABLE.other)
            )
        if not isinstance(block, Raw) or bytes(memoryview(block)[:1]) != b"{":
            return []
        members = decode_members(block)
        return _in_members(members, TABLE.blocks.get(known_text(members, "type"), TABLE.other))

    def _in_result(self, result: ToolResult) -> list[tuple[Any, int, bool]]:
        content = (Text(result.content),) if isinstance(result.content, str) else result.content
        after, inside = len(_result_end(result)), list[tuple[Any, int, bool]]()
        for part in reversed(content):
            data = encoder_for(part, False, self._as_sent)[2](part, [])
            markable = self._as_sent or encoder_for(part)[1] is not None
            inside.append((part, after, markable and data is not None))
            after += 0 if data is None else len(data) + 1
        return inside[::-1]


def _in_members(members: Members, row: BlockType) -> list[tuple[Any, int, bool]]:
    """The blocks inside one that is kept whole, with the bytes after each."""
    for place in row.inside:
        holder, _, rest = place.partition(".")
        value = bytes(members.get(holder, b""))
        if value[:1] not in (b"{", b"["):
            continue
        names = list(members)
        following = {name: members[name] for name in names[names.index(holder) + 1 :]}
        after = len(encode_members(following)) - (0 if following else 1)
        inside: list[tuple[Any, int, bool]] = []
        if rest and value[:1] == b"{":
            inside = _in_members(decode_members(value), BlockType(inside=(rest,)))
        elif not rest:
            own = value[:1] == b"["
            size = int(own)
            for each in reversed(decode_elements(value) if own else [Raw(value)]):
                inside.append((each, size, bytes(memoryview(each)[:1]) == b"{"))
                size += len(bytes(each)) + 1
            inside.reverse()
        return [(each, size + after, markable) for each, size, markable in inside]
    return []


def _thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, WIRE):
        reason = f"reasoning signed by {part.provider} is unknown to Anthropic; left out"
        notices.append(Notice("foreign_thinking", reason))
        return None
    if part.signature is not None:
        if part.data is not None:
            reason = "signed reasoning holds no data; left out"
            notices.append(Notice("redacted_left_out", reason, "data"))
        start = b'{"type":"thinking","thinking":' + string(part.text)
        if part.extras is None or UNSIGNED_KEY not in part.extras:
            start += b',"signature":' + string(part.signature)
        return merged(start + b"}", part.extras, WIRE)
    if part.data is not None:
        redacted = b'{"type":"redacted_thinking","data":' + string(part.data) + b"}"
        return merged(redacted, part.extras, WIRE)
    notices.append(UNSIGNED)
    return None


def is_unsigned(part: Part, profile: Profile) -> bool:
    """Whether reasoning lacks the signature that Anthropic requires: a stream that is cut off
    leaves it empty. Other hosts of this wire may send none and still require the block back."""
    return (
        profile.provider == WIRE
        and isinstance(part, Thinking)
        and part.signature == ""
        and part.provider in (None, WIRE)
    )


def _refusal(part: Refusal, notices: Notices) -> bytes | None:
    notices.append(Notice("refusal_as_text", "Anthropic has no refusal block; sent as text"))
    return _text(Text(part.text, part.extras), notices)


def _opaque(part: Opaque, notices: Notices) -> bytes | None:
    if is_fields_part(part, (WIRE,), MESSAGE_FIELDS):
        return None  # they are part of the message
    if part.provider != WIRE:
        reason = f"a {part.kind} block of {part.provider} is unknown to Anthropic; left out"
        notices.append(Notice("foreign_block", reason))
        return None
    return check_object(part.json, path="json").encode()


def encoder_for(
    part: object, assistant: bool = False, as_sent: bool = False
) -> tuple[Kind, int | None, Encoder]:
    """The kind of a part's block in the cache rules, its marker's offset, and its encoder.
    `as_sent`: blank texts are kept."""
    if as_sent and type(part) is Text:
        splice = BEFORE_BRACE if part.text.strip() else None
        return Kind.TEXT, splice, lambda part, _: _text_block(part.text, part.extras)
    if as_sent and type(part) is ToolResult:
        return Kind.TOOL_RESULT, BEFORE_BRACE, partial(_tool_result, as_sent=True)
    if isinstance(part, Opaque):
        markable = TABLE.blocks.get(part.kind, TABLE.other).markable
        return Kind.OTHER, BEFORE_BRACE if markable else None, _opaque
    check_part(part, ENCODERS)
    if assistant and type(part) is Text and part.text.isspace():
        return Kind.TEXT, None, _assistant_text
    return (_ASSISTANT_ENCODERS if assistant else ENCODERS)[type(part)]


def is_sent(part: Part, assistant: bool = False) -> bool:
    """Whether a part becomes a block."""
    return encoder_for(part, assistant)[2](part, []) is not None


ENCODERS: dict[type, tuple[Kind, int | None, Encoder]] = {
    Text: (Kind.TEXT, BEFORE_BRACE, _text),
    Image: (Kind.IMAGE, BEFORE_BRACE, _image),
    Document: (Kind.DOCUMENT, BEFORE_BRACE, _document),
    Audio: (Kind.AUDIO, None, _audio),
    ToolCall: (Kind.TOOL_CALL, BEFORE_BRACE, _tool_call),
    ToolResult: (Kind.TOOL_RESULT, BEFORE_BRACE, _tool_result),
    Thinking: (Kind.THINKING, None, _thinking),
    Refusal: (Kind.TEXT, BEFORE_BRACE, _refusal),
}
_ASSISTANT_ENCODERS = {**ENCODERS, Text: (Kind.TEXT, BEFORE_BRACE, _assistant_text)}

FORM = MessageForm(
    wire=WIRE,
    host="Anthropic",
    fields=MESSAGE_FIELDS,
    encoder_for=encoder_for,
    is_unsigned=is_unsigned,
)
#: Messages as another program wrote them.
SENT_FORM = msgspec.structs.replace(
    FORM,
    encoder_for=partial(encoder_for, as_sent=True),
    is_unsigned=lambda _part, _profile: False,
    as_sent=True,
)
