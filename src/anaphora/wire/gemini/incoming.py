"""Parts as Gemini says them, read. Requests and answers share it."""

from __future__ import annotations

import base64
import binascii

import msgspec

from anaphora.values import (
    Audio,
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
    Url,
)
from anaphora.wire.fields import Fields
from anaphora.wire.reading import ErrorFactory

from .naming import WIRE, camel, elements, named, nested
from .parts import CONTENT_FIELDS, extras_of
from .results import read_response

#: Fields that stand beside what a part is.
_BESIDE = frozenset(
    {
        "thought",
        "thoughtSignature",
        "mediaProcessing",
        "mediaResolution",
        "partMetadata",
        "speechMetadata",
        "videoMetadata",
    }
)
_URL_SAFE = str.maketrans("-_", "+/")
_OWN_FILES = ("gs://", "files/", "https://generativelanguage.googleapis.com/")


def read_part(raw: msgspec.Raw, path: str, fail: ErrorFactory) -> Part:
    """Any part: known fields by name, unknown ones as extras, unknown kinds whole.

    A call without an id, and a result without one, get the empty id: whoever knows the whole
    conversation gives them another.
    """
    fields = named(raw, path, fail)
    fields.drop_nulls()
    kinds = [kind for kind in _READERS if kind in fields]
    part = _READERS[kinds[0]](fields) if len(kinds) == 1 else None
    # Known or not, the others go back the way they came.
    return part if part is not None else _whole(raw)


def _whole(raw: msgspec.Raw) -> Opaque:
    names = map(camel, msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))
    kind = next((name for name in names if name not in _BESIDE), "part")
    return Opaque(WIRE, f"part {kind}" if kind == CONTENT_FIELDS else kind, bytes(raw).decode())


def read_parts(raws: list[msgspec.Raw], path: str, fail: ErrorFactory) -> list[Part]:
    return [read_part(raw, f"{path}[{index}]", fail) for index, raw in enumerate(raws)]


def content_fields(fields: Fields) -> list[Part]:
    """Fields of a content that have no name here, as a part that other wires leave out."""
    fields.drop_nulls()
    rest = fields.rest()
    return [Opaque(WIRE, CONTENT_FIELDS, (b"{" + rest + b"}").decode())] if rest else []


def _text(fields: Fields) -> Part | None:
    said = fields.known("text", str)
    if said is None:
        return None
    if fields.known("thought", bool):
        signature = fields.known("thoughtSignature", str)
        extras = fields.rest_for(WIRE)
        return Thinking(said, signature, provider=WIRE, extras=extras)
    return Text(said, fields.rest_for(WIRE))


def _call(fields: Fields) -> Part | None:
    said = nested(fields, "functionCall")
    if said is None:
        return None
    name = said.maybe("name", str) or ""
    call_id = said.maybe("id", str) or ""
    arguments = said.raw("args")
    said.drop_nulls()
    text = "{}" if arguments in (None, b"null") else arguments.decode()
    return ToolCall(call_id, name, text, extras_of(said, "functionCall", fields))


def _result(fields: Fields) -> Part | None:
    said = nested(fields, "functionResponse")
    if said is None:
        return None
    name = said.maybe("name", str)
    call_id = said.maybe("id", str) or ""
    response = said.raw("response")
    media = elements(said, "parts")
    parts = [_medium(raw, f"{said.path}.parts[{at}]", said.failure) for at, raw in enumerate(media)]
    said.drop_nulls()
    extras = extras_of(said, "functionResponse", fields)
    text, error, form = read_response("null" if response is None else response.decode())
    if form is not None:
        extras = {**(extras or {}), **form}
    content: str | tuple[ResultPart, ...] = text
    if parts:
        # An empty object beside them says nothing of its own.
        bare = (response or b"{}").translate(None, b" \t\r\n") == b"{}"
        content = tuple(parts) if bare else (Text(text), *parts)
    return ToolResult(call_id, content, error, name, extras)


def _medium(raw: msgspec.Raw, path: str, fail: ErrorFactory) -> ResultPart:
    part = read_part(raw, path, fail)
    if isinstance(part, Text | Image | Document | Audio | Opaque):
        return part
    raise fail("may not stand in a tool's answer", path)


def _inline(fields: Fields) -> Part | None:
    said = nested(fields, "inlineData")
    if said is None:
        return None
    media_type, data = said.known("mimeType", str), said.known("data", str)
    found = None if data is None else decoded(data)
    if media_type is None or found is None:
        return None
    return _media(Bytes(found, media_type), media_type, extras_of(said, "inlineData", fields))


def _file(fields: Fields) -> Part | None:
    said = nested(fields, "fileData")
    if said is None:
        return None
    media_type, address = said.known("mimeType", str), said.known("fileUri", str)
    if media_type is None or address is None:
        return None
    source: Source = Url(address, media_type)
    if address.startswith(_OWN_FILES):
        source = FileId("google", address, media_type)
    return _media(source, media_type, extras_of(said, "fileData", fields))


def _media(source: Source, media_type: str, extras: Extras | None) -> Part | None:
    if media_type.startswith("image/"):
        return Image(source, extras=extras)
    if media_type.startswith("audio/"):
        return Audio(source, extras=extras)
    if media_type.startswith("video/"):
        return None  # nobody else has a place for it
    return Document(source, extras=extras)


def decoded(data: str) -> bytes | None:
    """Bytes in base64, in either alphabet, padded or not."""
    text = data.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


_READERS = {
    "text": _text,
    "functionCall": _call,
    "functionResponse": _result,
    "inlineData": _inline,
    "fileData": _file,
}
