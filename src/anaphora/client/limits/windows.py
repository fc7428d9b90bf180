"""Configured limits over a sliding minute, limits that response headers state, and a forecast of
when both let a call start. The time is an argument."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from anaphora.client.config import LimitsConfig, Rate
from anaphora.wire.response_headers import RemainingLimit

if TYPE_CHECKING:
    from .limiter import ModelLane, Reservation

MINUTE = 60.0
_INF = float("inf")
#: Amounts are whole; a smaller shortfall is rounding.
_ROUNDING = 1e-6
#: Starts are counted together in slots of this many seconds.
_SLOT = 0.25


class Starts:
    """Starts by time, past or booked. Those within a quarter of a second share a slot: it counts
    from its first start until a minute after its last one. So the number of slots in a minute is
    bounded and a limit is never exceeded; a call waits at most one slot too long, and only if
    several started in one slot."""

    __slots__ = ("firsts", "lasts", "requests", "tokens")

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.lasts: list[float] = []
        self.requests: list[int] = []
        self.tokens: list[int] = []

    def copy(self) -> Starts:
        other = Starts.__new__(Starts)
        other.firsts, other.lasts = self.firsts.copy(), self.lasts.copy()
        other.requests, other.tokens = self.requests.copy(), self.tokens.copy()
        return other

    def add(self, requests: int, tokens: int, at: float) -> None:
        index = bisect_right(self.firsts, at)
        slot = at // _SLOT
        if index and self.firsts[index - 1] // _SLOT == slot:
            index -= 1
            self.lasts[index] = max(self.lasts[index], at)
        elif index < len(self.firsts) and self.firsts[index] // _SLOT == slot:
            self.firsts[index] = at
        else:
            self.firsts.insert(index, at)
            self.lasts.insert(index, at)
            self.requests.insert(index, requests)
            self.tokens.insert(index, tokens)
            return
        self.requests[index] += requests
        self.tokens[index] += tokens

    def correct(self, requests: int, tokens: int, at: float) -> bool:
        """Add to a start that was added before; return whether it still counts."""
        index = bisect_right(self.firsts, at) - 1
        if index < 0 or self.firsts[index] // _SLOT != at // _SLOT:
            return False
        self.requests[index] += requests
        self.tokens[index] += tokens
        return True

    def pop(self) -> tuple[int, int]:
        """Remove the oldest slot; return its requests and tokens."""
        del self.firsts[0], self.lasts[0]
        return self.requests.pop(0), self.tokens.pop(0)


class RateWindow(msgspec.Struct, eq=False):
    """The calls of the last minute and those that run, against a configured rate. The time passed
    to its methods never goes back."""

    requests: float
    tokens: float
    concurrency: float
    windowed: bool
    """Whether there is a limit per minute; if not, `started` stays empty."""
    started: Starts = msgspec.field(default_factory=Starts)
    used_requests: int = 0
    used_tokens: int = 0
    running: int = 0

    @classmethod
    def of(cls, rate: Rate | LimitsConfig) -> RateWindow | None:
        """None for a rate that limits nothing."""
        requests, tokens = rate.requests_per_minute or _INF, rate.tokens_per_minute or _INF
        windowed = min(requests, tokens) < _INF
        if not windowed and rate.concurrency is None:
            return None
        return cls(requests, tokens, rate.concurrency or _INF, windowed)

    def headroom(self, now: float) -> dict[str, float]:
        """The remaining share of each configured limit."""
        self.forget(now)
        used = {
            "requests per minute": (self.used_requests, self.requests),
            "tokens per minute": (self.used_tokens, self.tokens),
            "concurrent calls": (self.running, self.concurrency),
        }
        return {
            what: max(0.0, 1 - taken / limit)
            for what, (taken, limit) in used.items()
            if limit < _INF
        }

    def forget(self, now: float) -> None:
        lasts = self.started.lasts
        while lasts and lasts[0] + MINUTE <= now:
            requests, tokens = self.started.pop()
            self.used_requests -= requests
            self.used_tokens -= tokens

    def is_open(self, tokens: int, now: float) -> bool:
        self.forget(now)
        return (
            self.running < self.concurrency
            and self.used_requests < self.requests
            and self.used_tokens + tokens <= self.tokens
        )

    def opens(self, tokens: int, now: float) -> float:
        """When a call may start if no other does before; infinite while the concurrency limit is
        reached, since the end of calls is unknown."""
        if self.running >= self.concurrency:
            return _INF
        self.forget(now)
        requests, used, started = self.used_requests, self.used_tokens, self.started
        for index, last in enumerate(started.lasts):
            if requests < self.requests and used + tokens <= self.tokens:
                break
            now = last + MINUTE
            requests -= started.requests[index]
            used -= started.tokens[index]
        return now

    def enter(self, call: Reservation) -> None:
        self.running += 1
        if self.windowed:
            self.started.add(call.requests, call.tokens, call.at)
            self.used_requests += call.requests
            self.used_tokens += call.tokens

    def leave(self, call: Reservation, requests: int, tokens: int, now: float) -> None:
        """The call is over: add these requests and tokens to its count."""
        self.running -= 1
        if self.windowed and (requests or tokens):
            self.forget(now)
            if self.started.correct(requests, tokens, call.at):
                self.used_requests += requests
                self.used_tokens += tokens


class StatedLimit:
    """A provider's limit from its headers: the remaining amount, the limit, and the reset time.

    Until the reset the amount refills gradually or at once; afterwards at the limit per minute. If
    that is wrong, one call is sent too early and refused; no call waits more than a minute longer
    than the headers state.
    """

    __slots__ = ("_at", "_full_at", "_limit", "_rate", "_sudden", "cut", "granted", "level")

    def __init__(self, left: RemainingLimit, reset: float, longest: float, now: float) -> None:
        """`reset` is the number of seconds until all of it is available, at most `longest`."""
        self.cut = reset > longest
        reset = min(reset, longest)
        self.granted = left.remaining if self.cut else _INF
        """The remaining amount that the provider stated. If the reset was cut short, more is a
        guess."""
        self._limit = _INF if left.limit is None else max(left.limit, left.remaining)
        self.level = left.remaining
        self._at = now
        self._full_at = now + reset
        missing = self._limit - self.level
        self._sudden = not left.gradual or missing == _INF or not reset
        self._rate = 0.0 if self._sudden else missing / reset

    def headroom(self, now: float) -> float | None:
        """The remaining share; None if the limit is unknown."""
        if self._limit in (0.0, _INF):
            return None
        return min(1.0, max(0.0, self._level_at(now) / self._limit))

    def opens(self, amount: float, now: float) -> float:
        """When `amount` is available; for more than the limit, when all of it is."""
        amount = min(amount, self._limit) - _ROUNDING
        if self._level_at(now) >= amount:
            return now
        if not self._sudden and self._rate:
            then = self._at + (amount - self.level) / self._rate
            if then < self._full_at:
                return max(now, then)
        full = self._level_at(self._full_at)
        if full >= amount:
            return max(now, self._full_at)
        return max(now, self._full_at + (amount - full) / self._rate_after_reset)

    def take(self, amount: float, now: float) -> None:
        """Count a call that starts; a negative amount gives one back."""
        self.granted -= amount
        if now < self._full_at:
            self.level -= amount
            return
        self.level = self._level_at(now) - amount
        self._at = self._full_at = now
        self._rate, self._sudden = self._rate_after_reset, False

    @property
    def _rate_after_reset(self) -> float:
        return max(self._rate, self._limit / MINUTE)

    def _level_at(self, time: float) -> float:
        if self.level == _INF:
            return _INF
        if time < self._full_at:
            return min(self._limit, self.level + self._rate * (time - self._at))
        if self._sudden:
            return self._limit
        full = min(self._limit, self.level + self._rate * (self._full_at - self._at))
        return min(self._limit, full + self._rate_after_reset * (time - self._full_at))


class Forecast:
    """When waiting calls will start: a copy of all counters, in which future starts are booked.
    Calls are booked in order of arrival, each at the first time that every rate allows. The
    duration of running calls is unknown, so concurrency limits are left out."""

    def __init__(self, shared: RateWindow | None) -> None:
        self._shared: list[_Limit] = [] if shared is None else [(True, _Bookings(shared))]
        self._shared_from = 0.0
        """Later calls do not start before this time, except on lanes that wait for their own
        limits."""
        self._own: dict[ModelLane, list[_Limit]] = {}
        self._since: dict[ModelLane, float] = {}
        """No later call of the lane starts before this time."""

    def start_of(self, lane: ModelLane, tokens: int, now: float) -> float:
        """When a call that arrives now would start."""
        return self._find(lane, tokens, now)[0]

    def book(self, lane: ModelLane, tokens: int, now: float) -> float:
        """The same, and books the start."""
        start, shared = self._find(lane, tokens, now)
        self._shared_from = max(self._shared_from, shared)
        self._since[lane] = start
        for by_token, limit in (*self._shared, *self._own[lane]):
            limit.take(tokens if by_token else 1, start)
        return start

    def _find(self, lane: ModelLane, tokens: int, now: float) -> tuple[float, float]:
        """The start, and the time before which no later call of the provider starts."""
        if lane not in self._own:
            self._since[lane] = lane.blocked_until
            self._own[lane] = [(by_token, copy.copy(stated)) for by_token, stated in lane.stated]
            if lane.own is not None:
                self._own[lane].append((True, _Bookings(lane.own)))
        limits = self._own[lane]
        shared = _opens(self._shared, tokens, max(now, self._shared_from))
        own = _opens(limits, tokens, max(now, self._since[lane]))
        start = _opens((*limits, *self._shared), tokens, max(shared, own))
        return start, shared if own <= shared else 0.0


def _opens(limits: Iterable[_Limit], tokens: int, start: float) -> float:
    """The first time at which all limits let a call start."""
    while True:
        then = start
        for by_token, limit in limits:
            then = limit.opens(tokens if by_token else 1, then)
        if then == start:
            return start
        start = then


class _Bookings:
    """Starts of the last minute and booked ones."""

    def __init__(self, window: RateWindow) -> None:
        self._requests, self._tokens = window.requests, window.tokens
        self._starts = window.started.copy()

    def opens(self, tokens: int, start: float) -> float:
        """The first time from `start` on at which one more call fits into the minute before.
        Later bookings belong to models that wait for their own limits, and reserve nothing."""
        most_requests, most_tokens = self._requests - 1, self._tokens - tokens
        firsts, lasts = self._starts.firsts, self._starts.lasts
        counts, amounts = self._starts.requests, self._starts.tokens
        coming = bisect_right(firsts, start)
        leaving = bisect_right(lasts, start, key=lambda time: time + MINUTE)
        requests, used = sum(counts[leaving:coming]), sum(amounts[leaving:coming])
        while requests > most_requests or used > most_tokens:
            leaves = lasts[leaving] + MINUTE
            if coming < len(firsts) and firsts[coming] < leaves:
                requests += counts[coming]
                used += amounts[coming]
                coming += 1
            else:
                requests -= counts[leaving]
                used -= amounts[leaving]
                leaving += 1
                start = leaves
        return start

    def take(self, tokens: int, start: float) -> None:
        self._starts.add(1, tokens, start)


_Limit: TypeAlias = tuple[bool, StatedLimit | _Bookings]
"""Whether it counts tokens and not requests, and the limit."""
