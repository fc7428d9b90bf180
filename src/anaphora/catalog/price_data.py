"""Base prices as genai-prices lists them. It is imported here, when money is asked for, and nowhere
else: it brings an HTTP client along, which nothing here uses, so no price is ever fetched."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import msgspec

from anaphora.values import Ttl

from .price_rows import PriceRow

#: Our providers by the name that genai-prices has for them.
NAMES = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "azure": "azure",
    "bedrock": "aws",
    "minimax": "minimax",
    "deepseek": "deepseek",
    "xai": "x-ai",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "zai": "zai",
    "groq": "groq",
    "cerebras": "cerebras",
    "openrouter": "openrouter",
    "together": "together",
}

#: Words for the service that everybody gets.
STANDARD = frozenset({"", "auto", "default", "standard", "standard_only"})

_KEYS = {"input": "input_mtok", "output": "output_mtok", "read": "cache_read_mtok"}


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What a list says of prompts above so many tokens, in dollars per million tokens."""

    above: int = 0
    input: Decimal | None = None
    output: Decimal | None = None
    read: Decimal | None = None
    write: dict[Ttl | None, Decimal] = {}
    """By TTL; None: whatever a write is by default."""


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """All that is listed for one model."""

    levels: tuple[Listed, ...]
    """The price of short prompts first."""
    source: str
    date: datetime.date | None
    """The day it was seen, or from which it holds; None where the data do not say."""


def installed() -> bool:
    """Whether prices can be asked for: `anaphora[money]` is there."""
    from importlib.util import find_spec

    return find_spec("genai_prices") is not None


class Service(msgspec.Struct, frozen=True):
    """What a call asks for that may have a price of its own."""

    tier: str = ""
    batch: bool = False

    @property
    def usual(self) -> bool:
        return not self.context

    @property
    def context(self) -> dict[str, str]:
        """In the words of genai-prices."""
        context = {} if self.tier in STANDARD else {"service_tier": self.tier}
        return context | {"processing": "batch"} if self.batch else context


def listed(
    provider: str, model: str, when: datetime.datetime, service: Service
) -> PriceList | None:
    """What genai-prices has; None where it knows no such model, or no such service."""
    prices = _library()
    name = NAMES.get(provider)
    if name is None:
        return None
    context = service.context
    try:
        found = prices.calc_price(
            prices.Usage(),
            model,
            provider_id=name,
            genai_request_timestamp=when,
            price_context=context or None,
        )
    except LookupError:
        return None
    if context and not _has_variant(found.model, context):
        return None
    source = f"genai-prices {prices.__version__}, {found.provider.id}: {found.model.id}"
    return PriceList(
        levels=_levels(found.model_price), source=source, date=_since(found.model, when)
    )


def from_row(row: PriceRow) -> PriceList:
    """Our own row in the same form."""
    base = Listed(input=row.input, output=row.output)
    tiers = (Listed(above=t.above, input=t.input, output=t.output) for t in row.tiers)
    return PriceList(levels=(base, *tiers), source=row.source, date=row.date)


def _library() -> Any:
    try:
        import genai_prices
    except ModuleNotFoundError as problem:
        if problem.name != "genai_prices":
            raise
        message = "prices need genai-prices; install it with: pip install 'anaphora[money]'"
        raise ModuleNotFoundError(message, name="genai_prices") from None
    return genai_prices


def _has_variant(model: Any, context: dict[str, str]) -> bool:
    """Whether the data price that service: without, they would give the usual price for it."""
    return all(
        any(variant.when.get(key) == value for variant in model.price_variants or ())
        for key, value in context.items()
    )


def _since(model: Any, when: datetime.datetime) -> datetime.date | None:
    """From when on the price in force holds, where that is what chose it."""
    if not isinstance(model.prices, list):
        return None
    for conditional in reversed(model.prices):
        if conditional.constraint is None:
            return None
        if conditional.constraint.active(when):
            since: datetime.date | None = getattr(conditional.constraint, "start_date", None)
            return since
    return None


def _levels(prices: Any) -> tuple[Listed, ...]:
    """One for each length from which on anything costs something else."""
    values = {ours: getattr(prices, theirs) for ours, theirs in _KEYS.items()}
    writes: dict[Ttl | None, Any] = {
        None: prices.cache_write_mtok,
        "5m": prices.cache_write_5m_mtok,
        "1h": prices.cache_write_1h_mtok,
    }
    every = [*values.values(), *writes.values()]
    starts = {tier.start for value in every for tier in getattr(value, "tiers", ())}
    return tuple(
        Listed(
            above=above,
            write={ttl: price for ttl, value in writes.items() if (price := _at(value, above))},
            **{name: _at(value, above) for name, value in values.items()},
        )
        for above in sorted({0, *starts})
    )


def _at(value: Any, above: int) -> Decimal | None:
    """A price, or the one of its tiers for prompts just above that length."""
    if value is None or isinstance(value, Decimal):
        return value
    price: Decimal = value.base
    for tier in value.tiers:
        if tier.start <= above:
            price = tier.price
    return price
