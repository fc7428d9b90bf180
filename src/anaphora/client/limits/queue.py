"""Calls that wait for the limits, and a forecast of when they start. Pure: the time is an argument.

Calls of a model start in order of arrival, and so do those of several models as far as they wait
for shared limits. A model that waits for its own limits is overtaken by the others and goes first
once it may start; what the others took of the shared minute may make it later than forecast.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import merge
from typing import TYPE_CHECKING

from anaphora.errors import Throttled
from anaphora.wire.ratelimits import LimitKind

from .windows import MINUTE, RateWindow, StatedLimit

if TYPE_CHECKING:
    from .limiter import ModelLane, Reservation

_INF = float("inf")
#: With more waiting calls the forecast is renewed once a second, with fewer at every change.
_FEW = 64
_FORECAST_SECONDS = 1.0
#: A start later than forecast by more than this outdates the forecast.
_LATE = 0.05


class CallQueue:
    """The waiting calls of all lanes."""

    def __init__(
        self,
        shared: RateWindow | None,
        lanes: dict[str, ModelLane],
        start: Callable[[Reservation, float], None],
    ) -> None:
        self._shared = shared
        self._lanes = lanes
        self._start = start
        self.waiting = 0
        self._forecast: Forecast | None = None
        self._forecast_at = -_INF
        self.outdated = False
        """Whether start times may have changed since the forecast."""

    def add(self, call: Reservation, now: float) -> None:
        if call.tokens > (largest := self.largest(call.lane)):
            reason = f"the call has about {call.tokens:,} tokens; the limit per minute is"
            raise Throttled(f"{reason} {largest:,.0f}", wait=_INF)
        call.at = self.forecast(now).book(call.lane, call.tokens, now)
        call.lane.queue[call] = None
        self.waiting += 1

    def remove(self, call: Reservation) -> None:
        del call.lane.queue[call]
        self.waiting -= 1
        if not self.waiting:
            self._forecast = None

    def largest(self, lane: ModelLane) -> float:
        """The most tokens that a call may have."""
        windows = (window for window in (self._shared, lane.own) if window is not None)
        return min((window.tokens for window in windows), default=_INF)

    def is_ahead_of(self, lane: ModelLane, now: float) -> bool:
        """Whether a waiting call has to start before a new one of the lane: one of the same lane,
        or one that waits for shared limits only."""
        return bool(lane.queue) or any(
            other.queue and other.is_open(other.first.tokens, now) for other in self._lanes.values()
        )

    def advance(self, now: float) -> list[Reservation]:
        """Start every call that may start now, in order."""
        started: list[Reservation] = []
        lanes = [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []
        while lanes:
            lane = min(lanes, key=_number_of_first)
            call = lane.first
            if not lane.is_open(call.tokens, now):
                lanes.remove(lane)
                continue
            if self._shared is not None and not self._shared.is_open(call.tokens, now):
                break
            self.remove(call)
            if now > call.at + _LATE:
                self.outdated = True
            self._start(call, now)
            started.append(call)
            if not lane.queue:
                lanes.remove(lane)
        return started

    def next_at(self, now: float) -> float:
        """When to call `advance` again; infinite if no call waits, or only the end of a running
        call lets one start."""
        soonest = _INF
        lanes = [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []
        for lane in sorted(lanes, key=_number_of_first):
            tokens = lane.first.tokens
            if lane.is_open(tokens, now):
                # All later calls wait for this one.
                opens = now if self._shared is None else self._shared.opens(tokens, now)
                return min(soonest, opens)
            soonest = min(soonest, lane.opens(tokens, now))
        return soonest

    def forecast(self, now: float) -> Forecast:
        due = self.waiting <= _FEW or now >= self._forecast_at + _FORECAST_SECONDS
        if self._forecast is None or (self.outdated and due):
            self._forecast, self._forecast_at = Forecast(self._shared), now
            self.outdated = False
            queues = (lane.queue for lane in self._lanes.values() if lane.queue)
            for call in merge(*queues, key=lambda call: call.number):
                call.at = self._forecast.book(call.lane, call.tokens, now)
        return self._forecast


def _number_of_first(lane: ModelLane) -> int:
    return lane.first.number


class Forecast:
    """When waiting calls will start: a copy of all counters, in which future starts are booked.

    Calls are booked in order of arrival, each at the first time that every rate allows. The
    duration of running calls is unknown, so concurrency limits are left out.
    """

    def __init__(self, shared: RateWindow | None) -> None:
        self._shared = None if shared is None else _Bookings(shared)
        self._shared_from = 0.0
        """Later calls do not start before, except on lanes that wait for their own limits."""
        self._lanes: dict[ModelLane, _LaneForecast] = {}

    def start_of(self, lane: ModelLane, tokens: int, now: float) -> float:
        """When a call that arrives now would start."""
        return self._find(self._lane(lane), tokens, now)[0]

    def book(self, lane: ModelLane, tokens: int, now: float) -> float:
        """The same, for a call that does arrive."""
        own = self._lane(lane)
        start, shared = self._find(own, tokens, now)
        self._shared_from = max(self._shared_from, shared)
        if self._shared is not None:
            self._shared.add(tokens, start)
        own.add(tokens, start)
        return start

    def _find(self, lane: _LaneForecast, tokens: int, now: float) -> tuple[float, float]:
        """The start, and the time before which no later call of the provider starts."""
        shared = max(now, self._shared_from)
        if self._shared is not None:
            shared = self._shared.opens(tokens, shared)
        own = lane.opens(tokens, max(now, lane.since))
        start = max(shared, own)
        while True:
            then = lane.opens(tokens, start)
            if self._shared is not None:
                then = self._shared.opens(tokens, then)
            if then == start:
                return start, shared if own <= shared else 0.0
            start = then

    def _lane(self, lane: ModelLane) -> _LaneForecast:
        if lane not in self._lanes:
            self._lanes[lane] = _LaneForecast(lane)
        return self._lanes[lane]


class _LaneForecast:
    def __init__(self, lane: ModelLane) -> None:
        self.since = lane.blocked_until
        self._own = None if lane.own is None else _Bookings(lane.own)
        self._stated: list[tuple[LimitKind, StatedLimit]] = [
            (what, stated.copy()) for what, stated in lane.stated
        ]

    def opens(self, tokens: int, start: float) -> float:
        while True:
            then = start
            for what, stated in self._stated:
                then = stated.opens(tokens if what == "tokens" else 1, then)
            if self._own is not None:
                then = self._own.opens(tokens, then)
            if then == start:
                return start
            start = then

    def add(self, tokens: int, start: float) -> None:
        self.since = start
        for what, stated in self._stated:
            stated.take(tokens if what == "tokens" else 1, start)
        if self._own is not None:
            self._own.add(tokens, start)


class _Bookings:
    """Starts of the last minute and booked ones, by time."""

    def __init__(self, window: RateWindow) -> None:
        self._requests, self._tokens = window.requests, window.tokens
        self._times = [call.at for call in window.started]
        self._counts = [call.requests for call in window.started]
        self._amounts = [call.tokens for call in window.started]

    def add(self, tokens: int, start: float) -> None:
        index = bisect_right(self._times, start)
        self._times.insert(index, start)
        self._counts.insert(index, 1)
        self._amounts.insert(index, tokens)

    def opens(self, tokens: int, start: float) -> float:
        """The first time from `start` on at which one more call fits into the minute before.
        Later bookings are of models that wait for their own limits; they reserve nothing."""
        most_requests, most_tokens = self._requests - 1, self._tokens - tokens
        times, counts, amounts = self._times, self._counts, self._amounts
        coming = bisect_right(times, start)
        leaving = bisect_right(times, start, key=lambda time: time + MINUTE)
        requests, used = sum(counts[leaving:coming]), sum(amounts[leaving:coming])
        while requests > most_requests or used > most_tokens:
            leaves = times[leaving] + MINUTE
            if coming < len(times) and times[coming] < leaves:
                requests += counts[coming]
                used += amounts[coming]
                coming += 1
            else:
                requests -= counts[leaving]
                used -= amounts[leaving]
                leaving += 1
                start = leaves
        return start
