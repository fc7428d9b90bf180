"""Caching beyond markers: advice to send a call ahead, keep a prefix alive or compact the history;
and handles, which store the beginning of a prompt at the provider.

Creating a handle costs the input price, every use the read price, and storage is billed by the
hour. The alternative is the provider's automatic cache, which is free and hits most of the time.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Literal

import msgspec

from anaphora.cache.sent_call import is_alive, ttl_seconds
from anaphora.catalog import CacheRules
from anaphora.rendered import CacheHandle, CreateHandle, DeleteHandle, ExtendHandle, Plan, Rendered
from anaphora.rendered.held import misfit, unholdable
from anaphora.values import TTL_SECONDS, Notice, Ttl
from anaphora.wording import counted

from .memory import PRIOR_WEIGHT, Gaps, prior

#: Refreshes of one pause at most.
_MOST_REFRESHES = 64


class Advice(msgspec.Struct, frozen=True):
    kind: Literal["prewarm", "keep_alive", "let_go", "compact", "keep_history"]
    saves: float
    """Input tokens saved."""
    why: str
    price: Decimal | None = None
    """Dollars for a million input tokens."""

    @property
    def saves_usd(self) -> Decimal | None:
        """The saving in dollars; None if the price is unknown."""
        return None if self.price is None else self.price * Decimal(str(self.saves)) / 1_000_000

    def __str__(self) -> str:
        usd = self.saves_usd
        worth = f"{self.saves:,.0f} input tokens" if usd is None else f"${usd:.4f}"
        return f"{self.kind.replace('_', ' ')}: {self.why} (saves {worth})"


def before_fan_out(
    rules: CacheRules, tokens: int, calls: int, ttl: Ttl, price: Decimal | None = None
) -> Advice | None:
    """Whether to write a prefix with one call before several that start together: none of them can
    read an entry that another is still writing."""
    if tokens < rules.minimum_tokens.value or calls < 2:
        return None
    write, read = rules.writing(ttl), rules.read_price.value
    saves = calls * write * tokens - (write + calls * read) * tokens
    if saves <= 0:
        return None
    same = counted(tokens, "token")
    why = f"{counted(calls, 'call')} start together and would each write the same {same}"
    return Advice("prewarm", saves, why, price)


def refreshes(
    rules: CacheRules,
    ttl: Ttl,
    gaps: Gaps,
    *,
    idle: float,
    share: float = 1.0,
    goes_on: float = 1.0,
    done: int = 0,
) -> tuple[int, float]:
    """How many refreshes in a row are best, the first of them `idle` seconds after the last call
    and each further one when a lifetime ends; and what they are expected to save for each token of
    the prefix, in multiples of the input price. `share` of the prefix expires, the rest lives
    longer. All refreshes of one pause, including those that are `done`, never cost more than
    writing the expired part again."""
    write, read = rules.writing(ttl), rules.read_price.value
    lost = share * (write - read)
    spacing = TTL_SECONDS[ttl] - refresh_margin(ttl)
    most = _MOST_REFRESHES if not read else min(_MOST_REFRESHES, int(lost / read))
    best, gain, paid = 0, 0.0, 0.0
    for count in range(1, most - done + 1):
        sent_after = idle + (count - 1) * spacing
        paid += (1 - _next_within(gaps, sent_after, idle=idle, goes_on=goes_on)) * read
        found = _next_within(gaps, sent_after + spacing, idle=idle, goes_on=goes_on)
        if (saved := found * lost - paid) > gain:
            best, gain = count, saved
    return best, gain


def refresh_margin(ttl: Ttl) -> float:
    """Seconds before the end of a lifetime at which a refresh is sent."""
    return max(10.0, 0.05 * TTL_SECONDS[ttl])


def until_next(
    rules: CacheRules,
    tokens: int,
    ttl: Ttl,
    gaps: Gaps,
    *,
    at: float,
    expiring: int | None = None,
    goes_on: float = 1.0,
    price: Decimal | None = None,
) -> Advice:
    """Whether to keep a prefix alive by reading it before it expires, or to let it go. `expiring`
    are those of its tokens that expire then, by default all."""
    share = 1.0 if expiring is None else expiring / tokens
    spacing = TTL_SECONDS[ttl] - refresh_margin(ttl)
    elapsed = 0.0 if gaps.last is None else max(0.0, at - gaps.last)
    idle = max(elapsed, spacing)
    count, gain = refreshes(rules, ttl, gaps, idle=idle, share=share, goes_on=goes_on)
    # A refresh saves or loses only if no call comes before it.
    needed = 1 - _next_within(gaps, idle, idle=elapsed, goes_on=goes_on)
    after = f"if no call comes for {_duration(idle)}"
    read = rules.read_price.value
    if count:
        found = _next_within(gaps, idle + count * spacing, idle=idle, goes_on=goes_on)
        longer = _duration(count * spacing)
        why = (
            f"{after}, {found:.0%} of the next ones come within another {longer}; a refresh costs"
            f" {read:g} of the input price"
        )
        return Advice("keep_alive", needed * gain * tokens, why, price)
    found = _next_within(gaps, idle + spacing, idle=idle, goes_on=goes_on)
    lost = read - found * share * (rules.writing(ttl) - read)
    why = (
        f"{after}, only {found:.0%} of the next ones come within another {_duration(spacing)}; a"
        " refresh would cost more than it saves"
    )
    return Advice("let_go", max(0.0, needed * lost * tokens), why, price)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.2g} min"


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
    stay unchanged, with `calls` calls to come. Everything after the cut is written again."""
    write, read = rules.writing(ttl), rules.read_price.value
    saves = calls * (before - after) * read - (after - kept) * (write - read)
    if saves > 0:
        why = f"{before - after:,} tokens fewer to read, {calls:.0f} times"
        return Advice("compact", saves, why, price)
    why = f"writing {after - kept:,} tokens again costs more than {calls:.0f} shorter reads save"
    return Advice("keep_history", -saves, why, price)


def _next_within(gaps: Gaps, seconds: float, *, idle: float, goes_on: float) -> float:
    """P(the next use comes within so many seconds of the last one), if none came within `idle`
    seconds; `goes_on` is how likely one comes at all."""

    def share(pause: float) -> float:
        short = sum(gap <= pause for gap in gaps.lengths)
        return (PRIOR_WEIGHT * prior(pause) + short) / (PRIOR_WEIGHT + len(gaps.lengths))

    before = goes_on * share(idle)
    return max(0.0, goes_on * share(seconds) - before) / (1 - before) if before < 1 else 0.0


# ── Handles ───────────────────────────────────────────────────────────────────────────────────────

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
