"""Prices by provider, model and time of a call, and the models that have none."""

from __future__ import annotations

import datetime

from anaphora import catalog
from anaphora.catalog import Price


class PriceBook:
    """Each price is looked up once."""

    def __init__(self, now: float) -> None:
        """`now` is the time of calls whose own is not known, in unix seconds."""
        self._now = datetime.datetime.fromtimestamp(now, datetime.UTC)
        self._prices: dict[tuple[object, ...], Price | None] = {}
        self._unpriced: dict[str, None] = {}

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price, as `provider/model`."""
        return tuple(self._unpriced)

    def price(
        self,
        provider: str,
        model: str,
        at: float | None,
        wire: str | None = None,
        service_tier: str = "",
    ) -> Price | None:
        """The price at a time in unix seconds."""
        slot = None if at is None else at // catalog.PRICE_SLOT
        key = provider, model, wire, service_tier, slot
        if key not in self._prices:
            when = self._moment(at)
            price = catalog.price(provider, model, when, wire=wire, service_tier=service_tier)
            self._prices[key] = price
            if price is None:
                self._unpriced[f"{provider}/{model}"] = None
        return self._prices[key]

    def _moment(self, at: float | None) -> datetime.datetime:
        try:
            return self._now if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC)
        except (OverflowError, OSError, ValueError):
            return self._now
