"""How providers refuse unknown models and unsupported media, as dated rows.

    unknown_model("deepseek", "openai_chat").status             400
    media_types("anthropic", "anthropic", "image").accepts("image/tiff")     False

The rows are in `request_errors.toml`; the last matching row counts.
"""

from __future__ import annotations

import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from .load import SHIPPED
from .values import Named, decode_structs, read_toml

FILE = "request_errors.toml"

MediaKind: TypeAlias = Literal["image", "file"]
"""`file` is every medium but an image."""


class UnknownModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The error for a model that a provider does not have."""

    provider: str = ""
    """Empty: every provider of the wire."""
    wire: Named
    status: Annotated[int, msgspec.Meta(ge=400, le=499)]
    code: str | None = None
    param: str | None = None
    message: Named
    retired: Named
    """The message for a model that the provider has retired."""
    source: Named
    date: datetime.date

    def write(self, model: str, *, retired: bool = False) -> str:
        return (self.retired if retired else self.message).replace("{model}", model)


class MediaTypes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The accepted types of one kind of inline media, and the error for others."""

    provider: Named
    wire: Named
    kind: MediaKind
    types: tuple[str, ...]
    """Patterns."""
    code: str | None = None
    message: Named
    source: Named
    date: datetime.date

    def accepts(self, media_type: str) -> bool:
        name = media_type.partition(";")[0].strip().lower()
        return any(fnmatchcase(name, pattern) for pattern in self.types)

    def write(self, path: str, media_type: str) -> str:
        return self.message.replace("{path}", path).replace("{type}", media_type)


def unknown_model(provider: str, wire: str) -> UnknownModel:
    """The row of a provider on a wire; without one, the row of the wire's own provider."""
    rows: tuple[UnknownModel, ...] = _rows()[0]
    return [row for row in rows if row.wire == wire and row.provider in ("", provider)][-1]


def media_types(provider: str, wire: str, kind: MediaKind) -> MediaTypes | None:
    """None if no source says which types the provider accepts."""
    rows: tuple[MediaTypes, ...] = _rows()[1]
    key = provider, wire, kind
    return next((row for row in reversed(rows) if (row.provider, row.wire, row.kind) == key), None)


def _rows() -> list[tuple[Any, ...]]:
    return SHIPPED.table(FILE, _decode)


def _decode(text: str) -> list[tuple[Any, ...]]:
    return decode_structs(read_toml(text, FILE), FILE, unknown_model=UnknownModel, media=MediaTypes)
