"""Images, documents and sound: parts of messages that contain or reference other content. The media
type is found by the first bytes, then by the file name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from anaphora.errors import InvalidRequest

from .fields import Extras, PartValue

if TYPE_CHECKING:
    from pathlib import Path


MediaKind: TypeAlias = Literal["image", "document", "audio"]

#: The part for each kind, and the formats that it accepts.
_CLASSES = {"image": "Image", "document": "Document", "audio": "Audio"}
_TAKEN = {
    "image": "PNG, JPEG, GIF, WebP or HEIC",
    "document": "PDF or text in UTF-8",
    "audio": "WAV, MP3, FLAC or Ogg",
}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_SUFFIXES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "heic": "image/heic",
    "pdf": "application/pdf",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
}
#: Formats that no provider accepts, and what to do instead.
_REFUSED = (
    (b"PK\x03\x04", "a ZIP or Office file; save it as PDF or text"),
    (b"\xd0\xcf\x11\xe0", "an old Office file; save it as PDF or text"),
    (b"{\\rtf", "an RTF file; save it as PDF or text"),
    (b"BM", "a BMP image; save it as PNG"),
    (b"II*\x00", "a TIFF image; save it as PNG"),
    (b"MM\x00*", "a TIFF image; save it as PNG"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; save it as UTF-8"),
)
_BOM = b"\xef\xbb\xbf"
_RTF = b"{\\rtf"


class Bytes(PartValue, tag="bytes", frozen=True):
    """Content inside the request."""

    data: bytes
    media_type: str


class Url(PartValue, tag="url", frozen=True):
    """Content that the provider fetches."""

    url: str
    media_type: str | None = None


class FileId(PartValue, tag="file_id", frozen=True):
    """Content uploaded earlier; the id is valid for that provider only."""

    provider: str
    id: str
    media_type: str | None = None


Source: TypeAlias = Bytes | Url | FileId


def _file(path: str | Path, kind: MediaKind) -> Bytes:
    return Bytes(*media_of(read_file(path), kind, name=str(path)))


def _url(url: str, kind: MediaKind) -> Bytes | Url:
    checked = url_of(url, kind)
    return Url(checked) if isinstance(checked, str) else Bytes(*checked)


class Image(PartValue, tag="image", frozen=True):
    source: Source
    detail: str | None = None
    extras: Extras | None = None

    @classmethod
    def from_file(cls, path: str | Path, *, detail: str | None = None) -> Image:
        """The image in a PNG, JPEG, GIF, WebP or HEIC file. The file is read at once; in an event
        loop, use `asyncio.to_thread(Image.from_file, path)` for large ones."""
        return cls(_file(path, "image"), detail)

    @classmethod
    def from_bytes(
        cls, data: bytes, media_type: str | None = None, *, detail: str | None = None
    ) -> Image:
        """Without `media_type`, the first bytes decide."""
        return cls(Bytes(*media_of(data, "image", media_type=media_type)), detail)

    @classmethod
    def from_url(cls, url: str, *, detail: str | None = None) -> Image:
        """An image that the provider fetches, or a data URL."""
        return cls(_url(url, "image"), detail)


class Document(PartValue, tag="document", frozen=True):
    """A PDF or a text file. Plain text is `text/plain` bytes."""

    source: Source
    title: str | None = None
    context: str | None = None
    extras: Extras | None = None

    @classmethod
    def from_file(
        cls, path: str | Path, *, title: str | None = None, context: str | None = None
    ) -> Document:
        """A PDF file, or any text file in UTF-8. Its name is the title unless another is given. The
        file is read at once, as in `Image.from_file`."""
        source = _file(path, "document")
        return cls(source, file_name(path) if title is None else title, context)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        media_type: str | None = None,
        *,
        title: str | None = None,
        context: str | None = None,
    ) -> Document:
        """Without `media_type`, the first bytes decide."""
        return cls(Bytes(*media_of(data, "document", media_type=media_type)), title, context)

    @classmethod
    def from_url(
        cls, url: str, *, title: str | None = None, context: str | None = None
    ) -> Document:
        """A document that the provider fetches, or a data URL."""
        return cls(_url(url, "document"), title, context)


class Audio(PartValue, tag="audio", frozen=True):
    source: Source
    extras: Extras | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> Audio:
        """The sound in a WAV, MP3, FLAC or Ogg file, read as in `Image.from_file`."""
        return cls(_file(path, "audio"))

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str | None = None) -> Audio:
        """Without `media_type`, the first bytes decide."""
        return cls(Bytes(*media_of(data, "audio", media_type=media_type)))


# ── Media types ──────────────────────────────────────────────────────────────────────────────────


def _no_reader(path: str | Path) -> bytes:
    raise InvalidRequest("files cannot be read here", path=str(path))


#: Reads a file. Set by `anaphora/__init__.py`: values do no I/O.
read_file: Callable[[str | Path], bytes] = _no_reader


def file_name(path: str | Path) -> str:
    return str(path).replace("\\", "/").rstrip("/").rpartition("/")[2]


def media_of(
    data: object, kind: MediaKind, *, media_type: str | None = None, name: str = ""
) -> tuple[bytes, str]:
    """The bytes and their media type; raises if they are of another kind. `name` is the file's."""
    place = name or "data"
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidRequest(
            f"must be bytes, not {type(data).__name__}; {_CLASSES[kind]}.from_file reads a file",
            path=place,
        )
    data = bytes(data)
    if not data:
        raise InvalidRequest("is empty" if name else "must not be empty", path=place)
    if media_type is not None:
        return data, media_type
    found = _signature(data)
    if found is None and kind == "document" and _is_text(data) and not data.startswith(_RTF):
        return data.removeprefix(_BOM), "text/plain"
    if found is None and not _is_text(data):
        found = _SUFFIXES.get(file_name(name).rpartition(".")[2].lower())
    if found is None or kind != _kind_of(found):
        raise InvalidRequest(_refusal(data, found, kind), path=place)
    return data, found


def url_of(url: object, kind: MediaKind) -> str | tuple[bytes, str]:
    """A checked URL; bytes and media type for a data URL."""
    if not isinstance(url, str):
        raise InvalidRequest(f"must be a text, not {type(url).__name__}", path="url")
    if url.startswith("data:"):
        import base64  # loaded when it is needed

        head, comma, body = url[len("data:") :].partition(",")
        media_type, _, encoding = head.partition(";")
        try:
            if not comma or encoding != "base64":
                raise ValueError
            return media_of(base64.b64decode(body, validate=True), kind, media_type=media_type)
        except ValueError:
            raise InvalidRequest(
                "not a data URL: write data:image/png;base64,…", path="url"
            ) from None
    if "://" not in url:
        raise InvalidRequest(
            f"{url[:80]!r} is not a URL; {_CLASSES[kind]}.from_file reads a file", path="url"
        )
    return url


def _signature(data: bytes) -> str | None:
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        return "image/heic"
    return next((kind for begin, kind in _SIGNATURES if data.startswith(begin)), None)


def _kind_of(media_type: str) -> str:
    kind = media_type.partition("/")[0]
    return "document" if kind == "application" else kind


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refusal(data: bytes, found: str | None, kind: MediaKind) -> str:
    if found is not None:
        return f"is {found}; use {_CLASSES[_kind_of(found)]}.from_file"
    other = next((what for begin, what in _REFUSED if data.startswith(begin)), None)
    if other is None and _is_text(data):
        other = "text; use Document.from_file"
    taken = f"{_CLASSES[kind]} takes {_TAKEN[kind]}"
    return taken if other is None else f"is {other} ({taken})"
