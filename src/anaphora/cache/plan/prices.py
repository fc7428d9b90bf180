"""What keeping a prefix costs, against sending it anew: in multiples of the input price."""

from __future__ import annotations

from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl

from .gaps import Gaps


def write_price(rules: CacheRules, ttl: Ttl) -> float:
    figure = rules.write_price.get(ttl)
    return 1.0 if figure is None else figure.value


def by_itself(rules: CacheRules) -> tuple[Ttl, float] | None:
    """How long, and at what price, a provider caches what nobody marked; None where it does not."""
    if rules.mechanism.value != "both" or rules.default_ttl is None:
        return None
    if rules.automatic_breakpoint.value not in ("granules", "units"):
        return None
    price = rules.read_price if rules.automatic_read_price is None else rules.automatic_read_price
    return rules.default_ttl.value, price.value


def expected_cost(
    rules: CacheRules, gaps: Gaps, ttl: Ttl | None, at: float, usual: float | None = None
) -> float:
    """What one token of a prefix costs over the uses to come: marked for so long, or not marked.

    A marked token is written once, read at every use within its lifetime, and written again after
    a longer pause. One that is not is paid for at every use, unless the provider caches by itself.
    """
    uses = gaps.horizon(usual)
    write, read = 1.0, 1.0
    if ttl is not None:
        write, read = write_price(rules, ttl), rules.read_price.value
    elif (own := by_itself(rules)) is not None:
        ttl, read = own
    if ttl is None:
        return 1.0 + uses
    return _marked_cost(write, read, uses, gaps.within(TTL_SECONDS[ttl], at))


def _marked_cost(write: float, read: float, uses: float, found: float) -> float:
    return write + uses * (found * read + (1 - found) * write)


class Lifetimes:
    """What each lifetime costs by the rules: asked for at every turn, so put together once."""

    __slots__ = ("_marked", "_read", "_unmarked")

    def __init__(self, rules: CacheRules) -> None:
        self._read = rules.read_price.value
        # The shorter one first, for a tie: it binds less.
        self._marked = [
            (ttl, TTL_SECONDS[ttl], write_price(rules, ttl)) for ttl in reversed(rules.ttls.value)
        ]
        own = by_itself(rules)
        self._unmarked = None if own is None else (TTL_SECONDS[own[0]], own[1])

    def best(self, gaps: Gaps, at: float, usual: float | None = None) -> Ttl | None:
        """The lifetime that pays for these pauses; None where no marker does. `usual` is how often
        something like it is used in all, where that is known."""
        uses, read = gaps.horizon(usual), self._read
        best, least = None, 1.0 + uses
        if self._unmarked is not None:
            seconds, own = self._unmarked
            least = _marked_cost(1.0, own, uses, gaps.within(seconds, at))
        for ttl, seconds, write in self._marked:
            found = gaps.within(seconds, at)
            cost = write + uses * (found * read + (1 - found) * write)
            if cost < least:
                best, least = ttl, cost
        return best
