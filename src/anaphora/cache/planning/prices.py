"""What keeping a prefix costs, against sending it anew: in multiples of the input price."""

from __future__ import annotations

from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl

from .gaps import Gaps


def write_price(rules: CacheRules, ttl: Ttl) -> float:
    figure = rules.write_price.get(ttl)
    return 1.0 if figure is None else figure.value


def expected_cost(rules: CacheRules, gaps: Gaps, ttl: Ttl | None) -> float:
    """What one token of a prefix costs over the uses to come: kept for so long, or never.

    A kept token is written once, read at every use within its lifetime, and written again after a
    longer pause.
    """
    uses = gaps.horizon
    if ttl is None:
        return 1.0 + uses
    write, read = write_price(rules, ttl), rules.read_price.value
    found = gaps.within(TTL_SECONDS[ttl])
    return write + uses * (found * read + (1 - found) * write)


def best_ttl(rules: CacheRules, gaps: Gaps) -> Ttl | None:
    """The lifetime that pays for these pauses; None where nothing does."""
    choices: list[Ttl | None] = [None, *reversed(rules.ttls.value)]
    # The shorter one on a tie: it binds less.
    return min(choices, key=lambda ttl: expected_cost(rules, gaps, ttl))
