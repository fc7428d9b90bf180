"""Dollars of calls, and what the same would have cost without a cache."""

from __future__ import annotations

import datetime
from decimal import Decimal

from anaphora import catalog
from anaphora.catalog import Price
from anaphora.values import Usage

#: How many models without a price are named.
_NAMED = 5


class Till:
    """Prices by provider, model and time: some change in the course of a day."""

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now
        self._prices: dict[tuple[object, ...], Price | None] = {}
        self._unpriced: dict[str, None] = {}

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models without a known price, as `provider/model`."""
        return tuple(self._unpriced)

    def price(
        self, provider: str, model: str, at: float | None, wire: str | None = None
    ) -> Price | None:
        """The price at that moment, or now where no moment is known."""
        when = self._now if at is None else _moment(at, self._now)
        key = provider, model, wire, when.timestamp() // catalog.PRICE_SLOT
        if key not in self._prices:
            found = self._prices[key] = catalog.price(provider, model, when, wire=wire)
            if found is None:
                self._unpriced[f"{provider}/{model}"] = None
        return self._prices[key]


def unknown_said(unpriced: tuple[str, ...]) -> str:
    """Which prices are unknown, for people."""
    some = ", ".join(unpriced[:_NAMED])
    more = f" and {len(unpriced) - _NAMED} more" if len(unpriced) > _NAMED else ""
    return f"no price is known for {some}{more} (price table of {catalog.price_table_date()})"


def _moment(at: float, now: datetime.datetime) -> datetime.datetime:
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return now


def cost(price: Price | None, usage: Usage) -> Decimal | None:
    """What a call costs; None where that is unknown."""
    if price is None:
        return None
    if usage.output is None:
        # What it said is not known: the input is what caches are about.
        usage = Usage(uncached=usage.uncached, read=usage.read, written=usage.written, output=0)
    rules = catalog.rules(price.provider, price.model)
    default = rules.default_ttl.value if rules.default_ttl is not None else None
    return price.of(usage, unsplit=default)


def uncached(usage: Usage) -> Usage:
    """The same call where nothing is cached."""
    return Usage(uncached=usage.input, output=usage.output)
