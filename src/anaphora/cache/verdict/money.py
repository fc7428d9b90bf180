"""What it cost that tokens were not read: what was paid for them, less what reading costs."""

from __future__ import annotations

from decimal import Decimal, localcontext

from anaphora.catalog import Price, Rates
from anaphora.values import TTL_SECONDS, Usage, WriteTtl

_NOTHING = Decimal(0)


def lost_usd(usage: Usage | None, lost: int, price: Price | None) -> Decimal | None:
    """The tokens that were lost stand first behind what was read: they were written again as far
    as anything was, the longest TTL first, and else paid for as input."""
    if not lost:
        return _NOTHING
    if usage is None or price is None:
        return None
    rates = price.at(usage.input or 0)
    read = rates.read
    total, left = Decimal(0), lost
    with localcontext(prec=60):
        for ttl, tokens in sorted((usage.written or {}).items(), key=_longest_first):
            again = min(left, tokens)
            paid = _written(rates, ttl)
            if again and (paid is None or read is None):
                return None
            if again and paid is not None and read is not None:
                total += again * (paid - read)
            left -= again
        if left:
            if rates.input is None or read is None:
                return None
            total += left * (rates.input - read)
        return total.scaleb(-6)


def saved_usd(usage: Usage | None, price: Price | None) -> Decimal | None:
    """What the same input would have cost without a cache, less what it did cost; below 0 where
    more was written than read."""
    tokens = usage.input if usage is not None else None
    if usage is None or price is None or tokens is None:
        return None
    rates = price.at(tokens)
    if rates.input is None:
        return None
    total = Decimal(0)
    if usage.read:
        if rates.read is None:
            return None
        total += usage.read * (rates.input - rates.read)
    for ttl, tokens in (usage.written or {}).items():
        paid = _written(rates, ttl)
        if tokens and paid is None:
            return None
        if tokens and paid is not None:
            total -= tokens * (paid - rates.input)
    return total.scaleb(-6)


def _longest_first(written: tuple[WriteTtl, int]) -> int:
    ttl = written[0]
    return 0 if ttl == "unsplit" else -TTL_SECONDS[ttl]


def _written(rates: Rates, ttl: WriteTtl) -> Decimal | None:
    return rates.writing(None if ttl == "unsplit" else ttl)
