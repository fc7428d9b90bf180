"""Advice on what markers cannot do: send a call ahead, keep a prefix alive, compact the history."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl

from .memory import Gaps, write_price

AdviceKind: TypeAlias = Literal["prewarm", "keep_alive", "let_go", "compact", "keep_history"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    kind: AdviceKind
    saves: float
    """Input tokens that need not be paid."""
    cost_usd: Decimal | None
    """The same in dollars; None where the price is unknown."""
    why: str

    def __str__(self) -> str:
        worth = f"{self.saves:,.0f} input tokens"
        if self.cost_usd is not None:
            worth = f"${self.cost_usd:.4f}"
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
    first, second = gaps.within(TTL_SECONDS[ttl], at), gaps.within(2 * TTL_SECONDS[ttl], at)
    # The refresh pays where the next call comes in the second lifetime, not in the first.
    late = second - first
    gain = late * (write - read) * tokens - (1 - first) * read * tokens
    share = f"{late:.0%} of the pauses end in the {ttl} after this {ttl}"
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
    """Whether to cut a cached history from `before` tokens to `after`, of which the first `kept`
    stay unchanged, with `calls` calls to come. Everything behind the cut is written again."""
    write, read = write_price(rules, ttl), rules.read_price.value
    saves = calls * (before - after) * read - (after - kept) * (write - read)
    if saves > 0:
        why = f"{before - after:,} tokens fewer to read, {calls:.0f} times"
        return _advice("compact", saves, price, why)
    why = f"writing {after - kept:,} tokens again costs more than {calls:.0f} shorter reads save"
    return _advice("keep_history", -saves, price, why)


def _advice(kind: AdviceKind, saves: float, price: Decimal | None, why: str) -> Advice:
    cost_usd = None if price is None else price * Decimal(str(saves)) / 1_000_000
    return Advice(kind=kind, saves=saves, cost_usd=cost_usd, why=why)
