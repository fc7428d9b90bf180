"""What else would save money, as data: in tokens at the input price, in dollars where one knows.

It is about what the planner cannot do by marking: send a call ahead, keep a prefix alive or let it
go, cut the history.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl

from .gaps import Gaps
from .prices import write_price

Kind: TypeAlias = Literal["prewarm", "keep_alive", "let_go", "compact", "keep_history"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do, and what it saves against not doing it."""

    kind: Kind
    saves: float
    """In input tokens that need not be paid."""
    cost_usd: Decimal | None
    """None: nobody knows the price."""
    why: str

    def __str__(self) -> str:
        worth = (
            f"{self.saves:,.0f} input tokens" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        )
        return f"{self.kind.replace('_', ' ')}: {self.why} (saves {worth})"


def before_fan_out(
    rules: CacheRules, tokens: int, calls: int, ttl: Ttl, price: Decimal | None = None
) -> Advice | None:
    """Whether to write a prefix with one call ahead of several that start together: none of them
    can read what another is still writing."""
    if tokens < rules.minimum_tokens.value or calls < 2:
        return None
    write, read = write_price(rules, ttl), rules.read_price.value
    saves = calls * write * tokens - (write + calls * read) * tokens
    if saves <= 0:
        return None
    why = f"{calls} calls start together and would each write the same {tokens:,} tokens"
    return _advice("prewarm", saves, price, why)


def until_next(
    rules: CacheRules,
    tokens: int,
    ttl: Ttl,
    gaps: Gaps,
    *,
    at: float,
    price: Decimal | None = None,
) -> Advice:
    """Whether to keep a prefix alive by reading it once before it expires, or to let it go."""
    write, read = write_price(rules, ttl), rules.read_price.value
    life = TTL_SECONDS[ttl]
    # The refresh pays where the next call comes in the second lifetime, not in the first.
    second = gaps.within(2 * life, at) - gaps.within(life, at)
    late = 1 - gaps.within(life, at)
    gain = second * (write - read) * tokens - late * read * tokens
    share = f"{second:.0%} of the pauses end in the {ttl} after this {ttl}"
    if gain > 0:
        why = f"{share}; a refresh costs {read:g} of the input price"
        return _advice("keep_alive", gain, price, why)
    return _advice("let_go", -gain, price, f"only {share}; a refresh would cost more than it saves")


def at_compaction(
    rules: CacheRules,
    *,
    before: int,
    after: int,
    kept: int,
    calls: float,
    ttl: Ttl,
    price: Decimal | None = None,
) -> Advice:
    """Whether to cut a cached history of `before` tokens down to `after`, of which the first `kept`
    stay as they are, with so many calls to come. What comes behind the cut is written anew."""
    write, read = write_price(rules, ttl), rules.read_price.value
    cost = (after - kept) * (write - read)
    saves = calls * (before - after) * read - cost
    if saves > 0:
        why = f"{before - after:,} tokens fewer to read, {calls:.0f} times"
        return _advice("compact", saves, price, why)
    why = f"writing {after - kept:,} tokens anew costs more than {calls:.0f} shorter reads save"
    return _advice("keep_history", -saves, price, why)


def _advice(kind: Kind, saves: float, price: Decimal | None, why: str) -> Advice:
    cost_usd = None if price is None else price * Decimal(str(saves)) / 1_000_000
    return Advice(kind=kind, saves=saves, cost_usd=cost_usd, why=why)
