"""Encodes items of Responses, and the parts of a message: one encoder for each kind.

An encoder returns bytes, or None with a notice if OpenAI has no form for the part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    Refusal,
    Role,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire.openai import arguments_text, data_url, file_id
from anaphora.wire.parts import (
    check_part,
    extra_members,
    following,
    merged,
    opaque_json,
    own_members,
)
from anaphora.wire.reading import DECODE_ERRORS

from .types import ITEM, UNNAMED, WIRE

Notices: TypeAlias = list[Notice]
#: Encodes a part; None if OpenAI cannot send it.
Encode: TypeAlias = Callable[[Any, Notices], bytes | None]

#: The state of a log that ends with a closed item. Otherwise it is the role of the open one.
CLOSED = "item"

# Looked up once: access to an enum member is slow.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT


class Piece(NamedTuple):
    """A chunk of a message: a part of a message item, or an item of its own."""

    kind: Kind
    data: bytes
    state: str | None
    """The state of the log after an item that begins with it; None: it continues the item."""
    markable: bool = False
    in_message: bool = False


def encode_part(part: Any, notices: Notices, role: Role, easy: bool) -> Piece | None:
    """A part of a message of that role. `easy`: a text that is a message by itself."""
    if isinstance(part, ToolCall):
        return Piece(_CALL, function_call(part), CLOSED)
    if isinstance(part, ToolResult):
        data, markable = function_output(part, notices)
        return Piece(_RESULT, data, "user", markable)
    if isinstance(part, Thinking):
        reasoning = own_reasoning(part, notices)
        return None if reasoning is None else Piece(Kind.THINKING, reasoning, CLOSED)
    if isinstance(part, Opaque) and not is_content(part.kind):
        item = _opaque(part, notices)
        return None if item is None else Piece(Kind.OTHER, item, CLOSED)
    check_part(part, _INPUT)
    if easy:
        if isinstance(part, Refusal):
            why = "a refusal without an item of OpenAI's is sent as text"
            notices.append(Notice("refusal_as_text", why))
        return Piece(_TEXT, _easy_message(part), CLOSED)
    kind, encode = (OUTPUT if role == "assistant" else _INPUT)[type(part)]
    encoded = encode(part, notices)
    if encoded is None:
        return None
    return Piece(kind, encoded, role, role != "assistant" and _markable(part), True)


def message_opening(role: str, fields: bytes = b"") -> bytes:
    """A message up to its first part. `fields` are members of the item, after a comma."""
    return b'{"type":"message","role":"%b"%b,"content":[' % (role.encode(), fields)


_INPUT_TEXT = b'{"type":"input_text","text":'


def _easy_message(part: Text | Refusal) -> bytes:
    """An assistant's text that has no item of OpenAI's: the long form requires an id and
    annotations, this one does not."""
    fields = following(own_members(part.extras, ITEM))
    return b'{"type":"message","role":"assistant"%b,"content":%b}' % (fields, string(part.text))


class _Identified(msgspec.Struct, frozen=True):
    id: Any = None


def is_easy(message: Message, position: int, inside: bool) -> bool:
    """Whether a part is an assistant's text that is alone in its message and has no id to keep."""
    part = message.parts[position]
    if message.role != "assistant" or type(part) not in (Text, Refusal):
        return False
    extras = getattr(part, "extras", None) or {}
    if WIRE in extras:
        return False
    if ITEM not in extras:
        return not inside
    if isinstance(part, Refusal):
        return False
    after = message.parts[position + 1 : position + 2]
    if after and continues_message(after[0]):
        return False
    own_id = msgspec.json.decode(extras[ITEM], type=_Identified).id
    return not isinstance(own_id, str) or not own_id


def continues_message(part: Part) -> bool:
    """Whether a part continues the message item that is open before it."""
    return in_message(part) and not begins_item(part)


def in_message(part: Part) -> bool:
    """Whether a part belongs in a message item."""
    if isinstance(part, Opaque):
        return is_content(part.kind)
    return not isinstance(part, ToolCall | ToolResult | Thinking)


def begins_item(part: Part) -> bool:
    return ITEM in (getattr(part, "extras", None) or ())


def function_call(part: ToolCall) -> bytes:
    call = string(part.id), string(part.name), arguments_text(part)
    item = b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % call
    return merged(item, part.extras, WIRE)


def own_reasoning(part: Thinking, notices: Notices) -> bytes | None:
    """A reasoning item of OpenAI's; None for any other reasoning."""
    if part.provider == WIRE:
        return reasoning_item(part)
    whose = f"signed by {part.provider}" if part.provider else "of unknown origin"
    why = f"reasoning {whose} is unknown to OpenAI; left out"
    notices.append(Notice("foreign_thinking", why))
    return None


class _ReasoningKept(msgspec.Struct, frozen=True):
    id: str | None = None
    summary: list[msgspec.Raw] | None = None


def reasoning_item(part: Thinking, default_id: str | None = None) -> bytes:
    """The original reasoning item; without a summary in its extras, its text becomes one."""
    kept = extra_members(part.extras, WIRE)
    try:
        known = msgspec.json.decode(b"{" + kept + b"}", type=_ReasoningKept)
    except DECODE_ERRORS as problem:
        raise InvalidRequest(str(problem), path="extras") from None
    fields = b""
    if known.id is None and default_id is not None:
        fields += b',"id":' + string(default_id)
    if kept:
        fields += b"," + kept
    if known.summary is None:
        text = b'{"type":"summary_text","text":' + string(part.text) + b"}" if part.text else b""
        fields += b',"summary":[' + text + b"]"
    if part.data is not None:
        fields += b',"encrypted_content":' + string(part.data)
    return b'{"type":"reasoning"' + fields + b"}"


# ── Tool outputs ─────────────────────────────────────────────────────────────────────────────────


def function_output(part: ToolResult, notices: Notices) -> tuple[bytes, bool]:
    """A tool's output without the closing brackets, and whether its end may carry a breakpoint."""
    if part.error:
        why = "OpenAI has no error flag on tool outputs; left out"
        notices.append(Notice("error_unsupported", why))
    outputs = output_parts(part, notices)
    data = _output_opening(part) + b",".join(data for _, data, _ in outputs)
    return data, bool(outputs) and outputs[-1][2]


def output_parts(result: Part, notices: Notices) -> list[tuple[int, bytes, bool]]:
    """The parts of a tool's output that are sent: index, bytes, and whether they may be marked."""
    if not isinstance(result, ToolResult):
        return []
    content = (Text(result.content),) if isinstance(result.content, str) else result.content
    outputs = []
    for index, part in enumerate(content):
        path = f"content[{index}]"
        if type(part) not in _INPUT:
            name = type(part).__name__
            raise InvalidRequest(f"{name} is not allowed in a tool result", path=path)
        try:
            data = _INPUT[type(part)][1](part, notices)
        except InvalidRequest as problem:
            raise problem.within(path) from None
        if data is not None:
            outputs.append((index, data, _markable(part)))
    return outputs


def _output_opening(part: ToolResult) -> bytes:
    """The item up to the first part of its output."""
    fields = string(part.call_id) + following(own_members(part.extras, WIRE))
    return b'{"type":"function_call_output","call_id":%b,"output":[' % fields


# ── Content parts ────────────────────────────────────────────────────────────────────────────────


def is_content(kind: str) -> bool:
    """Whether an opaque part belongs in a message, and is no item itself."""
    return kind.startswith(("input_", "output_")) or kind == "refusal"


def _markable(part: object) -> bool:
    """Whether a part of the input may carry a breakpoint. An empty text may not."""
    if isinstance(part, Opaque):
        return part.kind.startswith("input_")
    return not isinstance(part, Text | Refusal) or bool(part.text)


def text_part(text: str, extras: Extras | None) -> bytes:
    return merged(_INPUT_TEXT + string(text) + b"}", extras, WIRE)


def _input_text(part: Text, _: Notices) -> bytes:
    return text_part(part.text, part.extras)


def _input_image(part: Image, notices: Notices) -> bytes | None:
    source = _source(part.source, b"image_url", b"image_url", notices)
    if source is None:
        return None
    # The types require a detail, and `auto` is the default.
    detail = string(part.detail if part.detail is not None else "auto")
    image = b'{"type":"input_image",%b,"detail":%b}' % (source, detail)
    return merged(image, part.extras, WIRE)


def _input_file(part: Document, notices: Notices) -> bytes | None:
    source = _source(part.source, b"file_data", b"file_url", notices)
    if source is None:
        return None
    title = part.title
    unnamed = part.extras is not None and UNNAMED in part.extras
    if title is None and isinstance(part.source, Bytes) and not unnamed:
        title = f"document{_SUFFIXES.get(part.source.media_type, '')}"  # a file needs a name
    if part.context is not None:
        why = "OpenAI's files have no context; left out"
        notices.append(Notice("context_unsupported", why, "context"))
    name = b"" if title is None else b',"filename":' + string(title)
    return merged(b'{"type":"input_file",%b%b}' % (source, name), part.extras, WIRE)


def _source(source: Source, data: bytes, url: bytes, notices: Notices) -> bytes | None:
    """The field for the content: inside the request, at an address, or uploaded."""
    if isinstance(source, Bytes):
        if not source.media_type.isascii():
            raise InvalidRequest(f"{source.media_type!r} is not a media type", path="source")
        return b'"' + data + b'":' + string(data_url(source))
    if isinstance(source, Url):
        return b'"' + url + b'":' + string(source.url)
    return file_id(source, notices)


def _input_audio(_: Audio, notices: Notices) -> None:
    notices.append(Notice("audio_unsupported", "Responses takes no audio, so it is left out"))


def _refusal_as_text(part: Refusal, notices: Notices) -> bytes:
    notices.append(Notice("refusal_as_text", "only the assistant can refuse; sent as text"))
    return text_part(part.text, part.extras)


def _output_text(part: Text, _: Notices) -> bytes:
    return merged(b'{"type":"output_text","text":%b}' % string(part.text), part.extras, WIRE)


def _output_refusal(part: Refusal, _: Notices) -> bytes:
    return merged(b'{"type":"refusal","refusal":%b}' % string(part.text), part.extras, WIRE)


def _not_output(part: Image | Document | Audio, notices: Notices) -> None:
    kind = type(part).__name__.lower()
    why = f"an assistant message cannot hold {kind} here; left out"
    notices.append(Notice(f"{kind}_unsupported", why))


_opaque = partial(opaque_json, owners=(WIRE,), host="OpenAI")

_SUFFIXES = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "text/csv": ".csv",
    "text/html": ".html",
}

_INPUT: dict[type, tuple[Kind, Encode]] = {
    Text: (Kind.TEXT, _input_text),
    Image: (Kind.IMAGE, _input_image),
    Document: (Kind.DOCUMENT, _input_file),
    Audio: (Kind.AUDIO, _input_audio),
    Refusal: (Kind.TEXT, _refusal_as_text),
    Opaque: (Kind.OTHER, _opaque),
}
OUTPUT: dict[type, tuple[Kind, Encode]] = {
    Text: (Kind.TEXT, _output_text),
    Refusal: (Kind.TEXT, _output_refusal),
    Image: (Kind.IMAGE, _not_output),
    Document: (Kind.DOCUMENT, _not_output),
    Audio: (Kind.AUDIO, _not_output),
    Opaque: (Kind.OTHER, _opaque),
}
