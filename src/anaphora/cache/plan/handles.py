"""Handles: whether it pays to let the provider hold a beginning, and until when.

Creating one costs the input price, every use the read price, and holding it is billed by the hour.
Against that stands what the provider finds by itself, for nothing, most of the time.
"""

from __future__ import annotations

import math
from decimal import Decimal

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import (
    CacheHandle,
    CreateHandle,
    DeleteHandle,
    ExtendHandle,
    Prelude,
    Rendered,
)
from anaphora.rendered.holding import misfit, unholdable
from anaphora.values import TTL_SECONDS, Notice

from .gaps import Gaps

#: A handle lives at least that long, and is extended by as much.
_SHORTEST = 300


class Holding(msgspec.Struct, frozen=True):
    """What to do about handles before a call, and which one to use in it."""

    held: CacheHandle | None = None
    preludes: tuple[Prelude, ...] = ()
    notices: tuple[Notice, ...] = ()


def plan_holding(
    rendered: Rendered,
    rules: CacheRules,
    gaps: Gaps,
    *,
    shared: int | None,
    tokens: int,
    held: CacheHandle | None,
    expires: float,
    price: Decimal | None,
    at: float,
    usual: float | None = None,
) -> Holding:
    """`shared` is the last block that could be held, `tokens` how long that is; `held` a handle
    there is, `expires` when it ends; `price` the dollars for a million input tokens."""
    if held is not None:
        found = misfit(rendered, held)
        if found is not None:
            why = Notice(found.code, f"{found.reason}; the handle is given up", "plan.held")
            return Holding(preludes=(DeleteHandle(held.handle),), notices=(why,))
        if not _pays(rules, gaps, tokens, price, at, usual, creating=False):
            return Holding(preludes=(DeleteHandle(held.handle),))
        seconds = _seconds(gaps, at)
        if expires - at < seconds / 2:
            return Holding(held, (ExtendHandle(held.handle, seconds),))
        return Holding(held)
    if shared is None or unholdable(rendered, shared + 1) is not None:
        return Holding()
    if tokens < rules.minimum_tokens.value:
        return Holding()
    if not _pays(rules, gaps, tokens, price, at, usual, creating=True):
        return Holding()
    return Holding(preludes=(CreateHandle(shared + 1, _seconds(gaps, at)),))


def _pays(
    rules: CacheRules,
    gaps: Gaps,
    tokens: int,
    price: Decimal | None,
    at: float,
    usual: float | None,
    *,
    creating: bool,
) -> bool:
    """Whether a handle is cheaper over the uses to come. What nobody can price is not done."""
    if rules.storage_price is None or price is None or not price or not tokens:
        return False
    uses, read = gaps.horizon(usual), rules.read_price.value
    hours = uses * gaps.typical(at) / 3600
    storage = hours * float(rules.storage_price.value) / float(price)
    explicit = (1.0 if creating else 0.0) + uses * read + storage
    missed = rules.missed.value if rules.missed is not None else 0.0
    life = TTL_SECONDS[rules.default_ttl.value] if rules.default_ttl is not None else 0
    found = gaps.within(life, at) * (1 - missed) if rules.mechanism.value == "both" else 0.0
    by_itself = uses * (found * read + (1 - found))
    return explicit < by_itself


def _seconds(gaps: Gaps, at: float) -> int:
    """How long a handle should live: a few pauses, in whole minutes."""
    return max(_SHORTEST, math.ceil(3 * gaps.typical(at) / 60) * 60)
