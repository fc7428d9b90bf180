"""Handles, which store the beginning of a prompt at the provider.

Creating a handle costs the input price, every use the read price, and storage is billed by the
hour. The alternative is the provider's automatic cache, which is free and hits most of the time.
"""

from __future__ import annotations

import math
from decimal import Decimal

from anaphora.cache.sent_call import is_alive, ttl_seconds
from anaphora.catalog import CacheRules
from anaphora.rendered import CacheHandle, CreateHandle, DeleteHandle, ExtendHandle, Plan, Rendered
from anaphora.rendered.held import misfit, unholdable
from anaphora.values import Notice

from .memory import Gaps

#: The shortest life of a handle in seconds, and of an extension.
_SHORTEST = 300


class HandlePlanner:
    """The handle of one conversation. At most one is in use."""

    def __init__(self, rules: CacheRules, price: Decimal | None) -> None:
        """`price` is dollars for a million input tokens; without one no handle is created."""
        self._rules = rules
        self.price = price
        self._handle: CacheHandle | None = None
        self._expires = 0.0

    @property
    def held(self) -> tuple[CacheHandle, float] | None:
        """The handle in use, and when it expires."""
        return None if self._handle is None else (self._handle, self._expires)

    def hold(self, handle: CacheHandle, expires: float) -> None:
        self._handle, self._expires = handle, expires

    def let_go(self, handle: str) -> None:
        if self._handle is not None and self._handle.handle == handle:
            self._handle = None

    def plan(
        self,
        rendered: Rendered,
        gaps: Gaps,
        end: int | None,
        tokens: int,
        at: float,
        usual: float | None,
    ) -> Plan:
        """`end` is the last chunk that a handle could hold, `tokens` the length up to there,
        `usual` how many calls such a conversation has."""
        if not is_alive(self._expires, at):
            self._handle = None
        handle, seconds = self._handle, _lifetime(gaps, at)
        pays = self._pays(gaps, tokens, at, usual)
        if handle is None:
            if end is None or unholdable(rendered, end + 1) is not None:
                return Plan()
            if tokens < self._rules.minimum_tokens.value or not pays:
                return Plan()
            return Plan(preludes=(CreateHandle(end + 1, seconds),))
        mismatch = misfit(rendered, handle)
        if mismatch is not None or not pays:
            self._handle = None
            notices: tuple[Notice, ...] = ()
            if mismatch is not None:
                reason = f"{mismatch.reason}; the handle is deleted"
                notices = (Notice(mismatch.code, reason, "plan.held"),)
            return Plan(preludes=(DeleteHandle(handle.handle),), notices=notices)
        if self._expires - at < seconds / 2:
            return Plan(held=handle, preludes=(ExtendHandle(handle.handle, seconds),))
        return Plan(held=handle)

    def _pays(self, gaps: Gaps, tokens: int, at: float, usual: float | None) -> bool:
        """Whether a handle is cheaper over the expected uses. False if the price is unknown."""
        rules = self._rules
        if rules.storage_price is None or not self.price or not tokens:
            return False
        uses, read = gaps.horizon(usual), rules.read_price.value
        hours = uses * _typical(gaps, at) / 3600
        storage = hours * float(rules.storage_price.value) / float(self.price)
        with_handle = (1.0 if self._handle is None else 0.0) + uses * read + storage
        missed = rules.missed.value if rules.missed is not None else 0.0
        life = ttl_seconds(rules) if rules.default_ttl is not None else 0.0
        found = gaps.within(life, at) * (1 - missed) if rules.mechanism.value == "both" else 0.0
        return with_handle < uses * (found * read + (1 - found))


def _lifetime(gaps: Gaps, at: float) -> int:
    """How many seconds a handle should live: a few pauses, in whole minutes."""
    return max(_SHORTEST, math.ceil(3 * _typical(gaps, at) / 60) * 60)


def _typical(gaps: Gaps, at: float) -> float:
    """The median pause; one minute before the first."""
    lengths = list(gaps.lengths)
    if gaps.last is not None and at > gaps.last:
        lengths.append(at - gaps.last)
    lengths.sort()
    return lengths[len(lengths) // 2] if lengths else 60.0
