"""Images, documents and sound: parts of messages that hold or name other content."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from . import media
from .fields import Extras, PartValue

if TYPE_CHECKING:
    from pathlib import Path


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


def _file(path: str | Path, kind: media.MediaKind) -> Bytes:
    return Bytes(*media.media_of(media.read_file(path), kind, name=str(path)))


def _url(url: str, kind: media.MediaKind) -> Bytes | Url:
    checked = media.url_of(url, kind)
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
        return cls(Bytes(*media.media_of(data, "image", media_type=media_type)), detail)

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
        return cls(source, media.file_name(path) if title is None else title, context)

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
        return cls(Bytes(*media.media_of(data, "document", media_type=media_type)), title, context)

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
        return cls(Bytes(*media.media_of(data, "audio", media_type=media_type)))
