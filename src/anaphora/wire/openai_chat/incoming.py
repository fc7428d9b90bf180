"""Messages as Chat says them, read into parts. Requests and answers share it."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    Ttl,
    Url,
)
from anaphora.wire.fields import Fields
from anaphora.wire.markers import PlacedMark
from anaphora.wire.openai_cache import take_breakpoint
from anaphora.wire.reading import DECODE_ERRORS, ErrorFactory

from .assistant import IN_CONTENT, REASONING_FIELDS
from .parts import MARKABLE_OPAQUE, MESSAGE_FIELDS, OTHER_CALL, WIRE

#: The breakpoints of a message.
Marks = list[PlacedMark[Ttl]]


# ── Content parts ────────────────────────────────────────────────────────────────────────────────


def read_part(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, at: tuple[int, ...], marks: Marks
) -> Part:
    """Any part: known fields by name, unknown ones as extras, unknown types whole."""
    fields = Fields(raw, path, fail)
    kind = fields.take("type", str)
    if kind == "text" or kind in MARKABLE_OPAQUE:
        marker = take_breakpoint(fields, WIRE)
        if marker is not None:
            marks.append((at, marker[0] or "30m", marker[1]))
    fields.drop_nulls()
    reader = _READERS.get(kind)
    whole = fields.rest()
    part: Part | None = reader(fields) if reader is not None else None
    if part is None:
        # Known or not, it goes back the way it came, less the marker.
        known_otherwise = kind in (MESSAGE_FIELDS, OTHER_CALL)
        json = b'{"type":' + string(kind) + (b"," if whole else b"") + whole + b"}"
        return Opaque(WIRE, f"part {kind}" if known_otherwise else kind, json.decode())
    return part


def read_content(
    raw: bytes | None,
    path: str,
    fail: ErrorFactory,
    marks: Marks,
    at: tuple[int, ...] = (),
    first: int = 0,
) -> list[Part]:
    """The content of a message: nothing, a text, or a list of parts. Marks count from `first`,
    below `at`."""
    if raw is None or raw == b"null":
        return []
    if raw[:1] == b'"':
        return [Text(_decoded(raw, str, path, fail))]
    found: list[msgspec.Raw] = _decoded(raw, list[msgspec.Raw], path, fail)
    return [
        read_part(part, f"{path}[{index}]", fail, (*at, first + index), marks)
        for index, part in enumerate(found)
    ]


def data_url(url: str) -> Bytes | None:
    """The bytes in a `data:` URL, when writing them again would give the same URL."""
    if not url.startswith("data:"):
        return None
    media_type, comma, data = url[len("data:") :].partition(";base64,")
    return decoded_bytes(data, media_type) if comma and media_type else None


def decoded_bytes(data: str, media_type: str) -> Bytes | None:
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Bytes(found, media_type) if base64.b64encode(found).decode() == data else None


def _text(fields: Fields) -> Text:
    return Text(fields.take("text", str), fields.rest_for(WIRE))


def _refusal(fields: Fields) -> Refusal:
    return Refusal(fields.take("refusal", str), fields.rest_for(WIRE))


class _ImageUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


def _image(fields: Fields) -> Image | None:
    said = fields.known("image_url", _ImageUrl)
    if said is None:
        return None
    source = data_url(said.url) or Url(said.url)
    return Image(source, said.detail, fields.rest_for(WIRE))


class _InputAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data: str
    format: str


def _audio(fields: Fields) -> Audio | None:
    said = fields.known("input_audio", _InputAudio)
    if said is None:
        return None
    media_type = "audio/mpeg" if said.format == "mp3" else f"audio/{said.format}"
    source = decoded_bytes(said.data, media_type)
    return None if source is None else Audio(source, fields.rest_for(WIRE))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


def _file(fields: Fields) -> Document | None:
    said = fields.known("file", _File)
    if said is None or (said.file_data is None) == (said.file_id is None):
        return None
    source: Bytes | FileId | None
    if said.file_id is not None:
        source = FileId("openai", said.file_id)
    else:
        source = data_url(said.file_data or "")
    if source is None or (isinstance(source, Bytes) and said.filename is None):
        return None
    return Document(source, said.filename, extras=fields.rest_for(WIRE))


class _Said(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


def _thinking(fields: Fields) -> Thinking | None:
    """Reasoning that came as a part. What it is made of is kept where it is not just a text."""
    raw = fields.raw("thinking")
    try:
        pieces = msgspec.json.decode(raw or b"", type=list[_Said])
    except DECODE_ERRORS:
        return None
    text = "".join(piece.text for piece in pieces if piece.type == "text")
    rest = fields.rest()
    if msgspec.json.decode(raw or b"") != [{"type": "text", "text": text}]:
        rest = b'"thinking":' + (raw or b"") + (b"," + rest if rest else b"")
    return Thinking(text, provider=WIRE, extras=told_in(IN_CONTENT, rest))


_READERS: dict[str, Any] = {
    "text": _text,
    "refusal": _refusal,
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
    "thinking": _thinking,
}


# ── The assistant's message ──────────────────────────────────────────────────────────────────────


def told_in(field: str, rest: bytes = b"") -> Extras:
    """What reasoning carries along: the field it came in."""
    return {WIRE: f'{{"field":"{field}"{"," if rest else ""}{rest.decode()}}}'}


def read_assistant(fields: Fields, marks: Marks, *, answer: bool) -> tuple[Part, ...]:
    """Reasoning, content, refusal, tool calls, and last the fields that have no name here.

    In an answer empty texts and empty annotations say nothing; in a request they are kept.
    """
    path, fail = fields.path, fields.failure
    parts: list[Part] = []
    for name in REASONING_FIELDS:
        text = fields.known(name, str)
        if text or (text is not None and not answer):
            parts.append(Thinking(text, provider=WIRE, extras=told_in(name)))
            break
    content = fields.raw("content")
    if not answer or content != b'""':
        parts += read_content(content, f"{path}.content", fail, marks, first=len(parts))
    refusal = fields.maybe("refusal", str)
    if refusal:
        parts.append(Refusal(refusal))
    for index, raw in enumerate(fields.maybe("tool_calls", list[msgspec.Raw]) or ()):
        parts.append(read_call(raw, f"{path}.tool_calls[{index}]", fail))
    if answer:
        fields.known("annotations", list[None])
    return (*parts, *message_fields(fields))


def message_fields(fields: Fields) -> list[Part]:
    """Fields of a message that have no name here, as a part that other wires leave out."""
    fields.drop_nulls()
    rest = fields.rest()
    return [Opaque(WIRE, MESSAGE_FIELDS, (b"{" + rest + b"}").decode())] if rest else []


def read_call(raw: msgspec.Raw, path: str, fail: ErrorFactory) -> Part:
    """A function call with its arguments as the model wrote them; any other call whole."""
    fields = Fields(raw, path, fail)
    kind = fields.maybe("type", str) or "function"
    inside = fields.nested("function") if kind == "function" else None
    if inside is None:
        return Opaque(WIRE, OTHER_CALL, bytes(raw).decode())
    name = inside.maybe("name", str) or ""
    arguments = inside.raw("arguments")
    if arguments is None or arguments == b"null":
        said = ""
    elif arguments[:1] == b'"':
        said = _decoded(arguments, str, f"{path}.function.arguments", fail)
    else:
        # Some hosts give the object itself.
        said = arguments.decode()
    call_id = fields.maybe("id", str) or ""
    fields.drop_nulls()
    inside.drop_nulls()
    inner, outer = inside.rest(), fields.rest()
    if inner:
        outer = outer + (b"," if outer else b"") + b'"function":{' + inner + b"}"
    return ToolCall(call_id, name, said, {WIRE: f"{{{outer.decode()}}}"} if outer else None)


def _decoded(raw: bytes, kind: Any, path: str, fail: ErrorFactory) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except DECODE_ERRORS as problem:
        raise fail(str(problem), path) from None
