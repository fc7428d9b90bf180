"""Images, documents and audio on Converse, encoded and read."""

from __future__ import annotations

import base64
import re

from blake3 import blake3
from msgspec import Raw

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.values import Audio, Bytes, Document, Extras, FileId, Image, Notice, Source, Text
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.parts import check_image, merged
from anaphora.wire.reading import ErrorFactory, Members, encode_members, request_error

from . import types
from .types import FORM, NULL, WIRE

Notices = list[Notice]

#: The formats of documents, and their media types.
DOCUMENTS = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html",
    "txt": "text/plain",
    "md": "text/markdown",
}
_DOCUMENT_FORMATS = {media_type: name for name, media_type in DOCUMENTS.items()}
#: The formats of images and audio whose media type has another name.
MEDIA_TYPES = {"jpg": "jpeg", "mp3": "mpeg", "m4a": "mp4"}
_MEDIA_FORMATS = {"mpeg": "mp3", "x-wav": "wav"}
_NAME_LIMIT = 200
#: Characters that the name of a document may not have.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9 _()\[\]-]+|\s{2,}")


_MEDIA = LenientDecoder[types.MediaObject](types.MediaObject)
_DOCUMENT = LenientDecoder[types.DocumentObject](types.DocumentObject)
_SOURCE = LenientDecoder[types.MediaSource](types.MediaSource)


def read_form(extras: Extras | None) -> bytes:
    """The form in which a value was read, as JSON; empty if there is none."""
    return extras[FORM].encode() if extras is not None and FORM in extras else b""


def encode_image(part: Image, notices: Notices) -> bytes | None:
    check_image(part.source)
    if part.detail is not None:
        reason = "Bedrock has no image detail; left out"
        notices.append(Notice("detail_unsupported", reason, "detail"))
    return _media("image", part.source, part.extras, notices)


def encode_audio(part: Audio, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, Bytes) and not source.media_type.startswith("audio/"):
        reason = f"{source.media_type} is not an audio type; left out"
        notices.append(Notice("audio_source", reason))
        return None
    return _media("audio", source, part.extras, notices)


def _media(kind: str, source: Source, extras: Extras | None, notices: Notices) -> bytes | None:
    encoded = _source(source, notices)
    if encoded is None:
        return None
    name = (source.media_type or f"{kind}/").partition("/")[2] or _extension(source)
    format = string(_MEDIA_FORMATS.get(name, name))
    return merged(
        b'{"%b":{"format":%b,"source":%b}}' % (kind.encode(), format, encoded), extras, WIRE
    )


def encode_document(part: Document, notices: Notices) -> bytes | None:
    source = part.source
    media_type = source.media_type or DOCUMENTS.get(_extension(source), "")
    format = _DOCUMENT_FORMATS.get(media_type.partition(";")[0])
    if format is None and not isinstance(source, Bytes):
        format = "pdf"  # what most of them are
    if format is None:
        reason = f"Bedrock takes no document of the type {media_type}; left out"
        notices.append(Notice("document_type", reason))
        return None
    as_text = read_form(part.extras) == b'"text"'
    encoded = _text_source(source) if as_text else _source(source, notices)
    if encoded is None:
        return None
    name = string(document_name(part, notices))
    context = b"" if part.context is None else b',"context":' + string(part.context)
    begin = b'{"document":{"name":%b,"format":"%b","source":%b' % (name, format.encode(), encoded)
    return merged(begin + context + b"}}", part.extras, WIRE)


def document_name(part: Document, notices: Notices) -> str:
    """The name, which Bedrock requires: one made of the content if the document has no title."""
    if part.title is None or not part.title.strip():
        source = part.source
        data = source.data if isinstance(source, Bytes) else _address(source).encode()
        return f"document-{blake3(data).hexdigest()[:8]}"
    name = _NOT_IN_NAMES.sub(lambda found: " " if found[0].isspace() else "-", part.title)
    name = name[:_NAME_LIMIT]
    if name != part.title:
        reason = f"Bedrock takes no such name of a document; sent as {name!r}"
        notices.append(Notice("document_renamed", reason, "title"))
    return name


def _source(source: Source, notices: Notices) -> bytes | None:
    if isinstance(source, Bytes):
        return b'{"bytes":"' + base64.b64encode(source.data) + b'"}'
    if isinstance(source, FileId) and source.provider == WIRE:
        return b'{"s3Location":{"uri":' + string(source.id) + b"}}"
    if isinstance(source, FileId):
        reason = f"a file id of {source.provider} is unknown to Bedrock; left out"
        notices.append(Notice("foreign_file", reason))
    elif source.url.startswith("s3://"):
        return b'{"s3Location":{"uri":' + string(source.url) + b"}}"
    else:
        reason = "Bedrock fetches nothing but s3:// addresses; give the bytes instead; left out"
        notices.append(Notice("url_unsupported", reason))
    return None


def _text_source(source: Source) -> bytes:
    assert isinstance(source, Bytes)
    try:
        return b'{"text":' + string(source.data.decode()) + b"}"
    except UnicodeDecodeError as problem:
        reason = f"text is not UTF-8 at byte {problem.start}"
        raise InvalidRequest(reason, path="source.data") from None


def _address(source: Source) -> str:
    return source.id if isinstance(source, FileId) else getattr(source, "url", "")


def _extension(source: Source) -> str:
    return _address(source).rpartition(".")[2].lower()


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def read_media(
    kind: str, raw: Raw, beside: Members, path: str, fail: ErrorFactory
) -> Image | Document | Audio | None:
    """An image, document or audio; None if it has a form that a part cannot hold."""
    decoder: LenientDecoder[types.MediaObject] | LenientDecoder[types.DocumentObject]
    decoder = _DOCUMENT if kind == "document" else _MEDIA
    media, unknown = decoder.decode(raw, path, fail)
    format = media.format
    media_type = DOCUMENTS.get(format) if kind == "document" else _media_type(kind, format)
    source, form = None, ""
    if media_type is not None and media.source != NULL:
        source, form = _read_source(media.source, media_type, fail)
    if source is None:
        return None
    if unknown is not None and (inner := unknown.remaining()):
        beside[kind] = Raw(encode_members(inner))
    extras: dict[str, str] = {WIRE: encode_members(beside).decode()} if beside else {}
    if form:
        extras[FORM] = f'"{form}"'
    kept = FrozenExtras(extras) if extras else None
    if isinstance(media, types.DocumentObject):
        return Document(source, media.name, media.context, kept)
    return Image(source, extras=kept) if kind == "image" else Audio(source, extras=kept)


def _media_type(kind: str, format: str) -> str | None:
    """None without a format, and for one that would be written differently."""
    name = MEDIA_TYPES.get(format, format)
    return f"{kind}/{name}" if name and _MEDIA_FORMATS.get(name, name) == format else None


def _read_source(raw: Raw, media_type: str, fail: ErrorFactory) -> tuple[Source | None, str]:
    """The source, and its form if that is not the usual one."""
    source, unknown = _SOURCE.decode(raw, "source", fail)
    if unknown is not None:
        return None, ""
    data, text, file = source.bytes, source.text, source.s3Location
    if data is not None and text is None and file is None:
        decoded = types.decode_base64(data)
        return (None if decoded is None else Bytes(decoded, media_type)), ""
    if text is not None and data is None and file is None:
        return Bytes(text.encode(), media_type), "text"
    if file is not None and data is None and text is None:
        return FileId(WIRE, file.uri, media_type), ""
    return None, ""


_CITED = LenientDecoder[types.CitationsContent](types.CitationsContent)


def read_cited(raw: Raw, unknown: Unknown | None) -> Text | None:
    """A text with citations. The citations, and all else beside the text, are its extras."""
    cited, inner = _CITED.decode(raw, "citationsContent", request_error)
    texts = [each.text for each in cited.content or ()]
    if inner is not None and inner.take_elements("content"):
        return None  # a text has unknown members
    beside = {} if inner is None else inner.remaining()
    if len(texts) > 1 or "content" in beside or texts == [""] or cited.content == []:
        return None
    members = {} if unknown is None else unknown.remaining()
    members["citationsContent"] = Raw(encode_members(beside))
    return Text("".join(texts), FrozenExtras({WIRE: encode_members(members).decode()}))
