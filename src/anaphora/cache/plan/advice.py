"""Advice on what markers cannot do: send a call ahead, keep a prefix alive, compact the history."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec

from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl
from anaphora.wording import counted

from .memory import Gaps, write_price


class Advice(msgspec.Struct, frozen=True):
    kind: Literal["prewarm", "keep_alive", "let_go", "compact", "keep_history"]
    saves: float
    """Input tokens that need not be paid."""
    why: str
    price: Decimal | None = None
    """Dollars for a million input tokens."""

    @property
    def cost_usd(self) -> Decimal | None:
        """What it saves in dollars; None where the price is unknown."""
        return None if self.price is None else self.price * Decimal(str(self.saves)) / 1_000_000

    def __str__(self) -> str:
        cost = self.cost_usd
        worth = f"{self.saves:,.0f} input tokens" if cost is None else f"${cost:.4f}"
        return f"{self.kind.replace('_', ' ')}: {self.why} (saves {worth})"


def before_fan_out(
    rules: CacheRules, tokens: int, calls: int, ttl: Ttl, price: Decimal | None = None
) -> Advice | None:
    """Whether to write a prefix with one call before several that start together: none of them can
    read what another is still writing."""
    if tokens < rules.minimum_tokens.value or calls < 2:
        return None
    write, read = write_price(rules, ttl), rules.read_price.value
    saves = calls * write * tokens - (write + calls * read) * tokens
    if saves <= 0:
        return None
    same = counted(tokens, "token")
    why = f"{counted(calls, 'call')} start together and would each write the same {same}"
    return Advice("prewarm", saves, why, price)


def until_next(
    rules: CacheRules, tokens: int, ttl: Ttl, gaps: Gaps, *, at: float, price: Decimal | None = None
) -> Advice:
    """Whether to keep a prefix alive by reading it once before it expires, or to let it go."""
    write, read = write_price(rules, ttl), rules.read_price.value
    first, second = gaps.within(TTL_SECONDS[ttl], at), gaps.within(2 * TTL_SECONDS[ttl], at)
    # The refresh pays where the next call comes in the second lifetime, not in the first.
    late = second - first
    gain = late * (write - read) * tokens - (1 - first) * read * tokens
    share = f"{late:.0%} of the pauses end in the {ttl} after this {ttl}"
    if gain > 0:
        why = f"{share}; a refresh costs {read:g} of the input price"
        return Advice("keep_alive", gain, why, price)
    why = f"only {share}; a refresh would cost more than it saves"
    return Advice("let_go", -gain, why, price)


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
    """Whether to cut a cached history from `before` tokens to `after`, of which the first `kept`
    stay unchanged, with `calls` calls to come. Everything behind the cut is written again."""
    write, read = write_price(rules, ttl), rules.read_price.value
    saves = calls * (before - after) * read - (after - kept) * (write - read)
    if saves > 0:
        why = f"{before - after:,} tokens fewer to read, {calls:.0f} times"
        return Advice("compact", saves, why, price)
    why = f"writing {after - kept:,} tokens again costs more than {calls:.0f} shorter reads save"
    return Advice("keep_history", -saves, why, price)
