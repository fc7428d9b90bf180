"""The parts of messages, tools, and notices.

Parts are frozen values that survive a round trip through JSON. Data that providers want back
unchanged (arguments, signatures, encrypted reasoning, unknown blocks) is kept as the text that was
received, so no round trip can reorder or reformat it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from . import media
from .fields import check_extras, check_fields
from .stability import CachePolicy

if TYPE_CHECKING:
    from pathlib import Path

#: Fields of a provider's block without a name here: wire name -> JSON object text.
Extras: TypeAlias = Mapping[str, str]


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of values: immutable, of the declared types, strict when decoded, compact when encoded.

    Parts are made by the thousand. Those that replies and histories mostly consist of look at the
    types of their fields themselves, and call `check_fields` for all but the usual ones.
    """

    def __post_init__(self) -> None:
        check_fields(self)


class _Part(Value, frozen=True, tag_field="type", gc=False):
    """No part can hold itself, so the garbage collector need not look at them."""


class Bytes(_Part, tag="bytes", frozen=True):
    """Content inside the request."""

    data: bytes
    media_type: str


class Url(_Part, tag="url", frozen=True):
    """Content that the provider fetches."""

    url: str
    media_type: str | None = None


class FileId(_Part, tag="file_id", frozen=True):
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


class Text(_Part, tag="text", frozen=True):
    text: str
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if type(self.text) is not str:
            check_fields(self)
        elif self.extras is not None:
            check_extras(self)


class Image(_Part, tag="image", frozen=True):
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


class Document(_Part, tag="document", frozen=True):
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


class Audio(_Part, tag="audio", frozen=True):
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


class ToolCall(_Part, tag="tool_call", frozen=True):
    """A tool call. `arguments` is the JSON text that the model wrote, unchanged."""

    id: str
    name: str
    arguments: str = "{}"
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if not (type(self.id) is type(self.name) is type(self.arguments) is str):
            check_fields(self)
        elif self.extras is not None:
            check_extras(self)


class Thinking(_Part, tag="thinking", frozen=True):
    """Reasoning that a provider wants back verbatim.

    `signature` proves `text`; `data` is encrypted or redacted reasoning. Both are opaque and valid
    for `provider` only.
    """

    text: str = ""
    signature: str | None = None
    data: str | None = None
    provider: str | None = None
    extras: Extras | None = None


class Refusal(_Part, tag="refusal", frozen=True):
    """The text of a refusal."""

    text: str
    extras: Extras | None = None


class Opaque(_Part, tag="opaque", frozen=True):
    """A provider-specific block: `json` is the object as received."""

    provider: str
    kind: str
    json: str


ResultPart: TypeAlias = Text | Image | Document | Audio | Opaque


class ToolResult(_Part, tag="tool_result", frozen=True):
    """The result of a tool; `error` means that the tool failed."""

    call_id: str
    content: str | tuple[ResultPart, ...] = ""
    error: bool = False
    name: str | None = None
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if (
            not (type(self.call_id) is type(self.content) is str)
            or type(self.error) is not bool
            or not (self.name is None or type(self.name) is str)
        ):
            check_fields(self)
        elif self.extras is not None:
            check_extras(self)


Part: TypeAlias = (
    Text | Image | Document | Audio | ToolCall | ToolResult | Thinking | Refusal | Opaque
)


class Tool(Value, frozen=True, tag_field="type", tag="function"):
    """A function tool. `schema` is canonical JSON text."""

    field_hints: ClassVar[dict[str, str]] = {
        "schema": "; write json.dumps(…), or give the whole tool as a dict with an input_schema"
    }

    name: str
    description: str = ""
    schema: str = '{"properties":{},"type":"object"}'
    strict: bool | None = None
    cache: CachePolicy = CachePolicy.NONE
    extras: Extras | None = None


class ProviderTool(Value, frozen=True, tag_field="type", tag="provider"):
    """A provider's built-in tool (web search, code execution): `json` is its definition."""

    provider: str
    name: str
    json: str
    cache: CachePolicy = CachePolicy.NONE


AnyTool: TypeAlias = Tool | ProviderTool


class Notice(Value, frozen=True):
    """What could not be expressed, or was expressed differently: part of the result, never logged.

    `code` is for programs, `message` for people, `path` is the place.
    """

    code: str
    message: str
    path: str = ""
    tokens: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
