"""Base prices of a model at a moment, for a service: from the shipped table, or from a row."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from anaphora.values import Ttl

from .price_rows import PriceRow
from .price_table import Amount, Entry, find, table_source

#: Our providers by the names that they have in the table, which are those of genai-prices.
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

#: Names of the standard service tier.
STANDARD_TIERS = frozenset({"", "auto", "default", "standard", "standard_only"})

#: Where the table has the price of a write with a TTL; None: with the default one.
_WRITES: dict[Ttl | None, str] = {None: "write", "5m": "write_5m", "1h": "write_1h"}


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of prompts above a length in tokens, in dollars per million tokens."""

    above: int = 0
    input: Decimal | None = None
    output: Decimal | None = None
    read: Decimal | None = None
    write: dict[Ttl | None, Decimal] = {}
    """By TTL; None is the default one."""


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """All prices listed for one model."""

    levels: tuple[Listed, ...]
    """The price of short prompts first."""
    source: str
    date: datetime.date | None
    """The day it was seen, or since when it applies; None where the source has no date."""


class Service(msgspec.Struct, frozen=True):
    """The part of a request that may have a price of its own."""

    tier: str = ""
    batch: bool = False

    @property
    def usual(self) -> bool:
        return self.tier in STANDARD_TIERS and not self.batch

    def fits(self, variant: Entry) -> bool:
        """Whether a variant is for this call."""
        return variant.tier in ("", self.tier) and (self.batch or not variant.batch)

    def covered(self, variants: Sequence[Entry]) -> bool:
        """Whether all that the call asks for has a price: without, it would cost as usual."""
        tier = self.tier in STANDARD_TIERS or any(one.tier == self.tier for one in variants)
        return tier and (not self.batch or any(one.batch for one in variants))


def listed(
    provider: str, model: str, when: datetime.datetime, service: Service
) -> PriceList | None:
    """What the table has; None where it has no such model, or no price for that service. `when` is
    in UTC."""
    name = NAMES.get(provider)
    found = None if name is None else find(name, model)
    if found is None:
        return None
    row, own = found
    entry = row.entry(when)
    amounts = entry.amounts()
    if not service.usual:
        # Another provider's variants say nothing of this one's services.
        variants = [one for one in row.variants if own and service.fits(one) and one.active(when)]
        if not service.covered(variants):
            return None
        for variant in reversed(variants):
            amounts |= variant.amounts()
    source = f"{table_source()}, {name}: {row.id}"
    since = entry.since if entry.active(when) else None
    return PriceList(levels=_levels(amounts), source=source, date=since)


def from_row(row: PriceRow) -> PriceList:
    """Our own row in the same form."""
    base = Listed(input=row.input, output=row.output)
    tiers = (Listed(above=t.above, input=t.input, output=t.output) for t in row.tiers)
    return PriceList(levels=(base, *tiers), source=row.source, date=row.date)


def _levels(amounts: dict[str, Amount]) -> tuple[Listed, ...]:
    """One for each prompt length above which a price changes."""
    tiered = [amount for amount in amounts.values() if isinstance(amount, dict)]
    return tuple(
        Listed(
            above=above,
            input=_at(amounts.get("input"), above),
            output=_at(amounts.get("output"), above),
            read=_at(amounts.get("read"), above),
            write={
                ttl: price
                for ttl, field in _WRITES.items()
                if (price := _at(amounts.get(field), above)) is not None
            },
        )
        for above in sorted({0, *(start for amount in tiered for start in amount)})
    )


def _at(amount: Amount | None, above: int) -> Decimal | None:
    """The price of prompts just above that length."""
    if not isinstance(amount, dict):
        return amount
    return amount[max(start for start in amount if start <= above)]
