"""What a finding costs: the tokens behind it, paid for again at every call."""

from __future__ import annotations

from decimal import Decimal, localcontext

import msgspec

from anaphora.catalog import CacheRules, Price
from anaphora.values import Ttl

_CALLS = 1000


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Prices and rules of where the prompt goes; None where nobody said."""

    rules: CacheRules | None = None
    price: Price | None = None
    marked: bool = False
    """The prompt carries markers, so what is not read is written."""

    @property
    def minimum(self) -> int:
        return 0 if self.rules is None else self.rules.minimum_tokens.value

    def per_thousand(self, tokens: int, total: int) -> Decimal | None:
        """The dollars for tokens that could have been read, in a thousand calls of that length."""
        if self.price is None or self.rules is None:
            return None
        rates = self.price.at(total)
        paid, usual = rates.input, self.rules.default_ttl
        if self.marked and self.rules.slots.value and usual is not None:
            paid = rates.writing(usual.value)
        if paid is None or rates.read is None:
            return None
        return _usd(tokens, paid - rates.read)

    def premium(self, tokens: int, total: int, ttl: Ttl) -> Decimal | None:
        """What writing costs more than sending, where nobody reads what is written."""
        rates = None if self.price is None else self.price.at(total)
        paid = None if rates is None else rates.writing(ttl)
        if rates is None or paid is None or rates.input is None:
            return None
        return _usd(tokens, paid - rates.input)


def _usd(tokens: int, rate: Decimal) -> Decimal:
    """Of a rate per million, for a thousand calls."""
    with localcontext(prec=60):
        return (tokens * _CALLS * rate).scaleb(-6)
