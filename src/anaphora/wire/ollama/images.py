"""Pictures: base64 in the message's `images`, and nothing said of what they are."""

from __future__ import annotations

import base64
import binascii

from anaphora.canonical import dumps, string
from anaphora.errors import InvalidRequest
from anaphora.values import Bytes, Image, Notice, Opaque
from anaphora.wire.fields import Fields
from anaphora.wire.reading import request_error

from .carried import OTHER_IMAGE, WIRE, Notices, no_place

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def media_type(data: bytes) -> str | None:
    """What a picture is, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _BEGINNINGS if data.startswith(begin)), None)


def image(part: Image | Opaque, notices: Notices) -> bytes | None:
    """One entry of `images`; None where there is only an address, and then a notice."""
    if isinstance(part, Opaque):
        return string(Fields(part.json, "json", request_error).take("data", str))
    source = part.source
    if not isinstance(source, Bytes):
        notices.append(Notice("image_source", "Ollama takes an image as bytes only; left out"))
        return None
    if not source.media_type.startswith("image/"):
        raise InvalidRequest(
            f"{source.media_type!r} is no image; use a Document", path="source.media_type"
        )
    if media_type(source.data) != source.media_type:
        why = "an image has no media type here, and its bytes do not tell this one"
        notices.append(Notice("media_type_left_out", why, "source.media_type"))
    if part.detail is not None:
        notices.append(Notice("detail_unsupported", "an image has no detail here", "detail"))
    no_place(part.extras, notices)
    return b'"' + base64.b64encode(source.data) + b'"'


def read_image(said: str) -> Image | Opaque:
    """A picture of a kind that is known; anything else as it came."""
    try:
        data = base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    kind = media_type(data)
    if kind is None or base64.b64encode(data).decode() != said:
        return Opaque(WIRE, OTHER_IMAGE, dumps({"data": said}).decode())
    return Image(Bytes(data, kind))


def is_image(part: object) -> bool:
    if isinstance(part, Opaque):
        return (part.provider, part.kind) == (WIRE, OTHER_IMAGE)
    return isinstance(part, Image)
