"""Dollars of calls, and what the same would have cost without a cache."""

from __future__ import annotations

import datetime
from decimal import Decimal

from anaphora import catalog
from anaphora.catalog import Price
from anaphora.values import Usage

#: What to do about prices that are not there.
HOW_TO_INSTALL = "dollars need price data: pip install 'anaphora[money]'"


class Till:
    """Prices by provider, model and hour: some change in the course of a day."""

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now
        self._prices: dict[tuple[object, ...], Price | None] = {}
        self.missing = False
        """Price data are not installed."""

    def price(
        self, provider: str, model: str, at: float | None, wire: str | None = None
    ) -> Price | None:
        """The price at that moment, or now where no moment is known."""
        if self.missing:
            return None
        when = self._now if at is None else _moment(at, self._now)
        key = provider, model, wire, when.replace(minute=0, second=0, microsecond=0)
        if key not in self._prices:
            try:
                self._prices[key] = catalog.price(provider, model, when, wire=wire)
            except ModuleNotFoundError as problem:
                if problem.name != "genai_prices":
                    raise
                self.missing = True
                return None
        return self._prices[key]


def _moment(at: float, now: datetime.datetime) -> datetime.datetime:
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return now


def cost(price: Price | None, usage: Usage) -> Decimal | None:
    """What a call costs; None when nobody knows."""
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
