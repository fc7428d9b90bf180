"""The most that parts of a request can be billed: dated rows of `billing_bounds.toml`.

    overhead_of("anthropic").request           tokens that are billed and have no text
    bounds_of("openai", "gpt-6.1-sol").media.image    tokens of the largest image
    server_tool_of("anthropic", "web_search_20260209", "claude-opus-5-5").usd_per_call
    price_multiple("anthropic", "speed", "fast")

Rows match by provider and by globs of types and models; the last one that matches counts.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from .load import SHIPPED
from .rows import decode_structs, read_toml

FILE = "billing_bounds.toml"

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date
    provider: str = ""
    """Empty: every provider."""
    models: tuple[str, ...] = ("*",)

    def fits(self, provider: str, model: str) -> bool:
        return self.provider in ("", provider) and _matches(model, self.models)


class Overhead(_Row, frozen=True, kw_only=True):
    """Tokens that are billed beyond the bytes of a prompt."""

    wire: str = ""
    request: Tokens
    block: Tokens
    """Of each block of the prompt."""
    tools: Tokens
    """Once, for having tools."""
    tool: Tokens
    """Of each tool."""


class ThinkingBounds(_Row, frozen=True, kw_only=True):
    """Thinking that the limit of the output does not include."""

    tokens: Tokens


class MediaBounds(_Row, frozen=True, kw_only=True):
    """Tokens of the largest medium of a kind."""

    image: Tokens
    document: Tokens


class ServerToolBounds(_Row, frozen=True, kw_only=True):
    """What a tool of the provider can cost."""

    types: tuple[str, ...]
    tokens: Tokens
    """Of its definition, which has no bytes in the request."""
    usd_per_call: Decimal = Decimal(0)
    usd_per_request: Decimal = Decimal(0)
    loops: bool = False
    """The provider runs it: after a call the model reads the prompt again, with the result."""
    most_calls: int | None = None
    """Of one request that sets no limit; None: there is none."""


class ToolModel(_Row, frozen=True, kw_only=True):
    """Models that call tools of their host without being asked."""


class MediaModel(_Row, frozen=True, kw_only=True):
    """Models that answer with images or sounds without being asked."""


class PriceMultiple(_Row, frozen=True, kw_only=True):
    """A field of a request that multiplies its price."""

    field: str
    value: str
    factor: Decimal


_Found = TypeVar("_Found", bound=_Row)


class ModelBounds(msgspec.Struct, frozen=True):
    """What the rows say of one model."""

    media: MediaBounds
    thinking: int = 0
    """Tokens of thinking on top of the limit of the output; 0 where that includes it."""
    calls_own_tools: bool = False
    """It calls tools of its host without being asked."""
    answers_with_media: bool = False
    """It answers with images or sounds without being asked: they have prices of their own."""


@functools.lru_cache(maxsize=1024)
def bounds_of(provider: str, model: str) -> ModelBounds:
    tables = _tables()
    media: MediaBounds | None = _last(tables[1], provider, model)
    assert media is not None, "the first row fits every model"
    thinking: ThinkingBounds | None = _last(tables[5], provider, model)
    return ModelBounds(
        media=media,
        thinking=0 if thinking is None else thinking.tokens,
        calls_own_tools=_last(tables[3], provider, model) is not None,
        answers_with_media=_last(tables[6], provider, model) is not None,
    )


def overhead_of(wire: str) -> Overhead:
    rows: tuple[Overhead, ...] = _tables()[0]
    return [row for row in rows if row.wire in ("", wire)][-1]


def server_tool_of(provider: str, type: str, model: str) -> ServerToolBounds | None:
    """None: it is not known what this tool can cost."""
    rows: tuple[ServerToolBounds, ...] = _tables()[2]
    return _last((row for row in rows if _matches(type, row.types)), provider, model)


def price_multiple(provider: str, field: str, value: str) -> Decimal | None:
    """By how much a field's value multiplies the price; None: not known."""
    rows: tuple[PriceMultiple, ...] = _tables()[4]
    found = [row for row in rows if row.field == field and fnmatchcase(value, row.value)]
    row = _last(found, provider, "")
    return None if row is None else row.factor


@functools.cache
def _tables() -> list[tuple[Any, ...]]:
    content = read_toml(SHIPPED.read(FILE).decode(), FILE, parse_float=Decimal)
    for row in (row for rows in content.values() for row in rows):
        for name in ("factor", "usd_per_call", "usd_per_request"):
            if isinstance(row.get(name), int):
                row[name] = Decimal(row[name])
    return decode_structs(
        content,
        FILE,
        overhead=Overhead,
        media=MediaBounds,
        server_tool=ServerToolBounds,
        tool_model=ToolModel,
        multiple=PriceMultiple,
        thinking=ThinkingBounds,
        media_model=MediaModel,
    )


def _last(rows: Iterable[_Found], provider: str, model: str) -> _Found | None:
    found: _Found | None = None
    for row in rows:
        if row.fits(provider, model):
            found = row
    return found


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
