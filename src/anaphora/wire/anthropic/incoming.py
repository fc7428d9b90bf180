"""Content blocks as Anthropic says them, read into parts. Requests and answers share it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from anaphora.prompt import MarkRequest, PartMark
from anaphora.values import (
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.fields import Fields
from anaphora.wire.markers import PlacedMark
from anaphora.wire.reading import ErrorFactory

from .blocks import WIRE


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    ttl: str | None = None


class _Block(msgspec.Struct, tag_field="type", frozen=True, forbid_unknown_fields=True):
    """The blocks that make up nearly all traffic, with all their usual fields and no others."""


class TextBlock(_Block, tag="text", frozen=True):
    text: str
    cache_control: CacheControl | None = None


class ToolUseBlock(_Block, tag="tool_use", frozen=True):
    id: str
    name: str
    input: msgspec.Raw
    cache_control: CacheControl | None = None


class ToolResultBlock(_Block, tag="tool_result", frozen=True):
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False
    cache_control: CacheControl | None = None


class ThinkingBlock(_Block, tag="thinking", frozen=True):
    thinking: str
    signature: str


Usual = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock

usual_content = msgspec.json.Decoder(str | list[Usual]).decode
some_blocks = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: The markers of a message.
Marks = list[PlacedMark[Ttl]]


def read_content(
    content: str | list[Usual], message: int, fail: ErrorFactory, marks: list[MarkRequest]
) -> tuple[Part, ...]:
    """Content with nothing unusual of the message at that index, and the markers in it."""
    if isinstance(content, str):
        return (Text(content),)
    parts: list[Part] = []
    for block in content:
        if isinstance(block, TextBlock):
            parts.append(Text(block.text))
        elif isinstance(block, ToolUseBlock):
            parts.append(ToolCall(block.id, block.name, str(block.input, "utf-8")))
        elif isinstance(block, ToolResultBlock):
            said = block.content
            inner: str | tuple[ResultPart, ...] = (
                said
                if isinstance(said, str)
                else _usual_texts(said, message, len(parts), fail, marks)
            )
            parts.append(ToolResult(block.tool_use_id, inner, block.is_error))
        else:
            parts.append(Thinking(block.thinking, block.signature, provider=WIRE))
            continue
        if block.cache_control is not None:
            marks.append(_part_mark(block.cache_control, message, (len(parts) - 1,), fail))
    return tuple(parts)


def _usual_texts(
    blocks: list[TextBlock], message: int, at: int, fail: ErrorFactory, marks: list[MarkRequest]
) -> tuple[Text, ...]:
    marks += [
        _part_mark(block.cache_control, message, (at, index), fail)
        for index, block in enumerate(blocks)
        if block.cache_control is not None
    ]
    return tuple([Text(block.text) for block in blocks])


def _part_mark(
    marker: CacheControl, message: int, at: tuple[int, ...], fail: ErrorFactory
) -> PartMark:
    path = "".join(f".content[{index}]" for index in at)
    return PartMark(f"m{message}", at, read_ttl(marker, f"$.messages[{message}]{path}", fail))


def read_block(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> Part:
    """Any block: known fields by name, unknown ones as extras, unknown types whole."""
    fields = Fields(raw, path, fail)
    kind = fields.take("type", str)
    marker = take_marker(fields)
    reader = _READERS.get(kind)
    # A block of another kind goes back the way it came, less the marker.
    part: Part = (
        Opaque(WIRE, kind, _whole(kind, fields))
        if reader is None
        else reader(fields, path, fail, at, marks)
    )
    if marker is not None:
        marks.append((at, *marker))
    return part


def take_marker(fields: Fields) -> tuple[Ttl, Extras | None] | None:
    """The lifetime of a block's marker, and the marker's fields that have no name here."""
    inner = fields.nested("cache_control")
    if inner is None:
        return None
    marker = CacheControl(inner.take("type", str), inner.maybe("ttl", str))
    inner.drop_nulls()
    return read_ttl(marker, inner.path, fields.failure), inner.rest_for(WIRE)


def read_ttl(marker: CacheControl, path: str, fail: ErrorFactory) -> Ttl:
    if marker.type != "ephemeral":
        raise fail(f"{marker.type!r} is not a kind of marker; use ephemeral", f"{path}.type")
    if marker.ttl in (None, "5m"):
        return "5m"
    if marker.ttl == "1h":
        return "1h"
    raise fail(f"{marker.ttl!r} is not a TTL; use 5m or 1h", f"{path}.ttl")


def _whole(kind: str, fields: Fields) -> str:
    rest = fields.rest().decode()
    return f'{{"type":{msgspec.json.encode(kind).decode()}{"," if rest else ""}{rest}}}'


def _text(fields: Fields, *_: Any) -> Text:
    text = fields.take("text", str)
    fields.drop_nulls()
    return Text(text, fields.rest_for(WIRE))


def _tool_use(fields: Fields, *_: Any) -> ToolCall:
    call_id, name = fields.take("id", str), fields.take("name", str)
    arguments = fields.raw("input")
    if arguments is None:
        raise fields.fail("is missing", "input")
    fields.drop_nulls()
    return ToolCall(call_id, name, arguments.decode(), fields.rest_for(WIRE))


def _thinking(fields: Fields, *_: Any) -> Thinking:
    text, signature = fields.take("thinking", str), fields.take("signature", str)
    return Thinking(text, signature, provider=WIRE, extras=fields.rest_for(WIRE))


def _redacted(fields: Fields, *_: Any) -> Thinking:
    return Thinking(data=fields.take("data", str), provider=WIRE, extras=fields.rest_for(WIRE))


def _image(fields: Fields, *_: Any) -> Part:
    raw = fields.raw("source")
    source = _source(raw, fields)
    if source is None:
        return Opaque(WIRE, "image", _with_source("image", raw, fields))
    fields.drop_nulls()
    return Image(source, extras=fields.rest_for(WIRE))


def _document(fields: Fields, *_: Any) -> Part:
    raw = fields.raw("source")
    source = _source(raw, fields)
    if source is None:
        return Opaque(WIRE, "document", _with_source("document", raw, fields))
    title, context = fields.maybe("title", str), fields.maybe("context", str)
    fields.drop_nulls()
    return Document(source, title, context, fields.rest_for(WIRE))


def _with_source(kind: str, raw: bytes | None, fields: Fields) -> str:
    whole = _whole(kind, fields)
    return whole if raw is None else f'{whole[:-1]},"source":{raw.decode()}}}'


def _source(raw: bytes | None, outer: Fields) -> Source | None:
    """None for sources that have no name here: their block is carried along whole."""
    if raw is None:
        raise outer.fail("is missing", "source")
    fields = Fields(raw, f"{outer.path}.source", outer.failure)
    kind = fields.take("type", str)
    found: Source | None = None
    if kind == "base64":
        media_type, data = fields.take("media_type", str), fields.take("data", str)
        try:
            found = Bytes(base64.b64decode(data, validate=True), media_type)
        except ValueError as problem:  # of binascii, or for letters that are not ASCII
            raise fields.fail(f"not base64: {problem}", "data") from None
        if media_type == "text/plain":
            return None
    elif kind == "url":
        found = Url(fields.take("url", str))
    elif kind == "file":
        found = FileId(WIRE, fields.take("file_id", str))
    elif kind == "text" and fields.maybe("media_type", str) == "text/plain":
        found = Bytes(fields.take("data", str).encode(), "text/plain")
    return None if fields.rest() else found


def _tool_result(
    fields: Fields, path: str, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> ToolResult:
    call_id = fields.take("tool_use_id", str)
    raw = fields.raw("content")
    content: str | tuple[ResultPart, ...] = ""
    if raw is not None and raw[:1] == b'"':
        content = msgspec.json.decode(raw, type=str)
    elif raw is not None and raw != b"null":
        blocks = _blocks(raw, f"{path}.content", fail)
        content = tuple(
            _inner(inner, f"{path}.content[{index}]", fail, (*at, index), marks)
            for index, inner in enumerate(blocks)
        )
    error = fields.maybe("is_error", bool) or False
    fields.drop_nulls()
    return ToolResult(call_id, content, error, extras=fields.rest_for(WIRE))


def _inner(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> ResultPart:
    part = read_block(raw, path, fail, at, marks)
    if isinstance(part, Text | Image | Document | Opaque):
        return part
    raise fail("may not stand inside a tool result", path)


def _blocks(raw: bytes, path: str, fail: ErrorFactory) -> list[msgspec.Raw]:
    try:
        return some_blocks(raw)
    except msgspec.DecodeError as problem:
        raise fail(f"expected text or a list of blocks: {problem}", path) from None


_READERS: dict[str, Any] = {
    "text": _text,
    "tool_use": _tool_use,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "image": _image,
    "document": _document,
    "tool_result": _tool_result,
}
