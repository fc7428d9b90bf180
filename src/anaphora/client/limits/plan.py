"""When those who wait will start, by what is known: for whoever wants to know it beforehand.

Everybody is booked in the order of coming, at the first moment that every limit allows. How long
running calls take is not known, so waiting for one of the places is not in it.
"""

from __future__ import annotations

from bisect import bisect_right

from anaphora.wire.ratelimits import What

from .lane import Lane
from .scope import SPAN, Scope
from .stated import Stated


class Plan:
    """A copy of everything that counts, in which the future is booked."""

    def __init__(self, shared: Scope | None) -> None:
        self._shared = _Bookings(shared) if shared is not None else None
        self._shared_from = 0.0
        """Nobody who comes later starts before, but for lanes that wait for themselves."""
        self._lanes: dict[Lane, _Planned] = {}

    def ask(self, lane: Lane, tokens: int, at: float) -> float:
        """When one that came now would start."""
        return self._find(self._planned(lane), tokens, at)[0]

    def book(self, lane: Lane, tokens: int, at: float) -> float:
        """And it does come."""
        planned = self._planned(lane)
        start, shared = self._find(planned, tokens, at)
        self._shared_from = max(self._shared_from, shared)
        if self._shared is not None:
            self._shared.add(tokens, start)
        planned.add(tokens, start)
        return start

    def _find(self, planned: _Planned, tokens: int, at: float) -> tuple[float, float]:
        """The start, and before which moment others of the provider do not start either."""
        shared = max(at, self._shared_from)
        if self._shared is not None:
            shared = self._shared.opens(tokens, shared)
        own = planned.opens(tokens, max(at, planned.since))
        start = max(shared, own)
        while True:
            then = planned.opens(tokens, start)
            if self._shared is not None:
                then = self._shared.opens(tokens, then)
            if then == start:
                return start, shared if own <= shared else 0.0
            start = then

    def _planned(self, lane: Lane) -> _Planned:
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = _Planned(lane)
        return found


class _Planned:
    """A lane with its future."""

    def __init__(self, lane: Lane) -> None:
        self.since = lane.stopped
        self._own = _Bookings(lane.own) if lane.own is not None else None
        self._stated: list[tuple[What, Stated]] = [
            (what, stated.copy()) for what, stated in lane.stated
        ]

    def opens(self, tokens: int, at: float) -> float:
        while True:
            then = at
            for what, stated in self._stated:
                then = stated.opens(tokens if what == "tokens" else 1, then)
            if self._own is not None:
                then = self._own.opens(tokens, then)
            if then == at:
                return at
            at = then

    def add(self, tokens: int, start: float) -> None:
        self.since = start
        for what, stated in self._stated:
            stated.take(tokens if what == "tokens" else 1, start)
        if self._own is not None:
            self._own.add(tokens, start)


class _Bookings:
    """Starts of the last minute and of the future, by time."""

    def __init__(self, scope: Scope) -> None:
        self._requests, self._tokens = scope.requests, scope.tokens
        self._times = [started.at for started in scope.log]
        self._counts = [started.requests for started in scope.log]
        self._amounts = [started.tokens for started in scope.log]

    def add(self, tokens: int, start: float) -> None:
        place = bisect_right(self._times, start)
        self._times.insert(place, start)
        self._counts.insert(place, 1)
        self._amounts.insert(place, tokens)

    def opens(self, tokens: int, at: float) -> float:
        """The first moment from `at` on at which one more fits into the minute before. What is
        booked for later is of models that wait for themselves, and holds no place until then."""
        most_requests, most_tokens = self._requests - 1, self._tokens - tokens
        times, counts, amounts = self._times, self._counts, self._amounts
        coming = bisect_right(times, at)
        leaving = bisect_right(times, at, key=lambda time: time + SPAN)
        requests, used = sum(counts[leaving:coming]), sum(amounts[leaving:coming])
        while requests > most_requests or used > most_tokens:
            leaves = times[leaving] + SPAN
            if coming < len(times) and times[coming] < leaves:
                requests += counts[coming]
                used += amounts[coming]
                coming += 1
            else:
                requests -= counts[leaving]
                used -= amounts[leaving]
                leaving += 1
                at = leaves
        return at
