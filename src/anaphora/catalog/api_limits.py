"""Limits of providers' APIs, and the maximum bill of parts of a request, as dated rows.

    output_limits("openai_responses").least_tokens    the smallest `max_tokens` that is accepted
    batch_limits("anthropic").most_requests           requests of one batch
    bounds_of("openai", "gpt-6.1-sol").media.image    tokens of the largest image
    server_tool_of("anthropic", "web_search_20260209", "claude-opus-5-5").usd_per_call
    price_multiple("anthropic", "speed", "fast")
    stops_when_cut("openai")                          whether a closed stream ends the bill
    fastest_tokens("openai", "gpt-6.1-sol")           maximum output tokens per second

Limits are in `api_limits.toml` and apply to every model, bounds in `billing_bounds.toml`. Bounds
match by provider and by globs of types and models; the last matching row counts.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from .load import SHIPPED
from .values import Limit, Named, decode_structs, read_toml, with_decimals

LIMITS_FILE = "api_limits.toml"
BOUNDS_FILE = "billing_bounds.toml"

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Named
    date: datetime.date


class OutputLimits(_Row, frozen=True, kw_only=True):
    """Limits of the output that a request may set."""

    wire: str = ""
    """Empty: every wire."""
    least_tokens: Limit
    rejected_by: tuple[str, ...] = ()
    """Providers known to reject less."""


class BatchLimits(_Row, frozen=True, kw_only=True):
    """The size of one batch."""

    provider: Named
    most_requests: Limit
    most_bytes: Limit
    """Of the whole body, or of the file with the requests."""


def output_limits(wire: str) -> OutputLimits:
    rows: tuple[OutputLimits, ...] = _limits()[0]
    return [row for row in rows if row.wire in ("", wire)][-1]


def batch_limits(provider: str) -> BatchLimits | None:
    """None if no Batch API of the provider is known."""
    rows: tuple[BatchLimits, ...] = _limits()[1]
    return next((row for row in reversed(rows) if row.provider == provider), None)


def _limits() -> list[tuple[Any, ...]]:
    return SHIPPED.table(LIMITS_FILE, _decode_limits)


def _decode_limits(text: str) -> list[tuple[Any, ...]]:
    return decode_structs(
        read_toml(text, LIMITS_FILE), LIMITS_FILE, output=OutputLimits, batch=BatchLimits
    )


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────


class _Bound(_Row, frozen=True, kw_only=True):
    provider: str = ""
    """Empty: every provider."""
    models: tuple[str, ...] = ("*",)

    def fits(self, provider: str, model: str) -> bool:
        return self.provider in ("", provider) and _matches(model, self.models)


class Overhead(_Bound, frozen=True, kw_only=True):
    """Tokens that are billed beyond the bytes of a prompt."""

    wire: str = ""
    request: Tokens
    block: Tokens
    """Per block of the prompt."""
    tools: Tokens
    """Once, if there are tools."""
    tool: Tokens
    """Per tool."""


class ThinkingBounds(_Bound, frozen=True, kw_only=True):
    """Thinking that is not included in the output limit."""

    tokens: Tokens


class MediaBounds(_Bound, frozen=True, kw_only=True):
    """Tokens of the largest medium of a kind."""

    image: Tokens
    document: Tokens
    audio_factor: Decimal | None = None
    """The price of a token of audio, in prices of a token of text; None: unknown."""


class ServerToolBounds(_Bound, frozen=True, kw_only=True):
    """The maximum cost of a provider's tool."""

    types: tuple[str, ...]
    tokens: Tokens
    """Tokens of its definition, which has no bytes in the request."""
    usd_per_call: Decimal = Decimal(0)
    usd_per_request: Decimal = Decimal(0)
    loops: bool = False
    """The provider runs it: after a call the model reads the prompt again, with the result."""
    most_calls: int | None = None
    """Maximum calls in a request that sets no limit; None: unlimited."""


class ToolModel(_Bound, frozen=True, kw_only=True):
    """Models that call tools of their host unprompted."""


class MediaModel(_Bound, frozen=True, kw_only=True):
    """Models that answer with images or audio unprompted."""


class PriceMultiple(_Bound, frozen=True, kw_only=True):
    """A field of a request that multiplies its price."""

    field: str
    value: str
    factor: Decimal


class CutStream(_Bound, frozen=True, kw_only=True):
    """What a provider does when the connection of a stream is closed before its end."""

    on_abort: Literal["stops", "goes_on"]
    """`stops`: generating and billing end. `goes_on`: the whole answer is billed."""


class WritingSpeed(_Bound, frozen=True, kw_only=True):
    """The maximum output speed of a model."""

    tokens_per_second: Limit


_Found = TypeVar("_Found", bound=_Bound)
_KINDS: dict[str, type[_Bound]] = {
    "overhead": Overhead,
    "media": MediaBounds,
    "server_tool": ServerToolBounds,
    "tool_model": ToolModel,
    "multiple": PriceMultiple,
    "thinking": ThinkingBounds,
    "media_model": MediaModel,
    "cut_stream": CutStream,
    "speed": WritingSpeed,
}


class ModelBounds(msgspec.Struct, frozen=True, kw_only=True):
    """All bounds of one model."""

    media: MediaBounds
    thinking: int = 0
    """Tokens of thinking on top of the output limit; 0 if the limit includes it."""
    calls_own_tools: bool = False
    """It calls tools of its host unprompted."""
    answers_with_media: bool = False
    """It answers with images or audio unprompted, which are priced separately."""
    overhead: Overhead
    """Of requests on the wire that it is called by."""


class _Tables:
    """All rows, by kind."""

    def __init__(self, text: str) -> None:
        fields = ("factor", "audio_factor", "usd_per_call", "usd_per_request")
        content = with_decimals(read_toml(text, BOUNDS_FILE, parse_float=Decimal), fields)
        rows = decode_structs(content, BOUNDS_FILE, **_KINDS)
        self._rows: dict[type, tuple[Any, ...]] = dict(zip(_KINDS.values(), rows, strict=True))
        self.bounds_of = lru_cache(maxsize=1024)(self._bounds_of)

    def rows(self, kind: type[_Found]) -> tuple[_Found, ...]:
        return self._rows[kind]

    def last(self, kind: type[_Found], provider: str, model: str) -> _Found | None:
        return _last(self.rows(kind), provider, model)

    def _bounds_of(self, provider: str, model: str, wire: str) -> ModelBounds:
        media = self.last(MediaBounds, provider, model)
        assert media is not None, "the first row fits every model"
        thinking = self.last(ThinkingBounds, provider, model)
        overheads = {row.wire: row for row in self.rows(Overhead)}
        return ModelBounds(
            media=media,
            thinking=0 if thinking is None else thinking.tokens,
            calls_own_tools=self.last(ToolModel, provider, model) is not None,
            answers_with_media=self.last(MediaModel, provider, model) is not None,
            overhead=overheads.get(wire) or overheads[""],
        )


def _bounds() -> _Tables:
    return SHIPPED.table(BOUNDS_FILE, _Tables)


def bounds_of(provider: str, model: str, wire: str = "") -> ModelBounds:
    return _bounds().bounds_of(provider, model, wire)


def server_tool_of(provider: str, type: str, model: str) -> ServerToolBounds | None:
    """None if the maximum cost of this tool is unknown."""
    rows = (row for row in _bounds().rows(ServerToolBounds) if _matches(type, row.types))
    return _last(rows, provider, model)


def price_multiple(provider: str, field: str, value: str) -> Decimal | None:
    """The factor by which a field's value multiplies the price; None: unknown."""
    rows = _bounds().rows(PriceMultiple)
    found = [row for row in rows if row.field == field and fnmatchcase(value, row.value)]
    row = _last(found, provider, "")
    return None if row is None else row.factor


def stops_when_cut(provider: str) -> bool:
    """Whether a provider stops generating and billing when a stream is closed. Without streaming,
    every provider bills the whole response."""
    row = _bounds().last(CutStream, provider, "")
    return row is not None and row.on_abort == "stops"


def fastest_tokens(provider: str, model: str) -> int:
    """The maximum output tokens per second of a model."""
    row = _bounds().last(WritingSpeed, provider, model)
    assert row is not None, "the first row fits every model"
    return row.tokens_per_second


def _last(rows: Iterable[_Found], provider: str, model: str) -> _Found | None:
    found: _Found | None = None
    for row in rows:
        if row.fits(provider, model):
            found = row
    return found


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
