"""Whether a call may start now, at one provider. Pure: the time is an argument.

    lane = limiter.lane("claude-sonnet-5-5")
    call = limiter.reserve(lane, tokens, now)     started, or queued
    limiter.advance(now)                          start the queued calls that may start now
    limiter.settle(call, usage, now)              finished; corrected by the billed tokens
    limiter.cancel(call, now)                     nothing was sent

Calls of a model start in order of arrival, and so do those of several models as far as they wait
for shared limits. Other models overtake one that waits for its own limits, which goes first once it
may start.
"""

from __future__ import annotations

from anaphora.client.config import LimitsConfig
from anaphora.errors import Throttled
from anaphora.values import Usage

from .windows import ModelLane, RateWindow, Reservation

_INF = float("inf")


class Limiter:
    """The limits of one provider, configured and stated, and the calls that wait for them."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self.shared = RateWindow.of(limits)
        self._lanes: dict[str, ModelLane] = {}
        self._number = 0
        self.waiting = 0

    def lane(self, model: str, *, counts_reads: bool = True) -> ModelLane:
        lane = self._lanes.get(model)
        if lane is None:
            own = RateWindow.of(self._limits.models.get(model))
            longest = self._limits.longest_wait
            lane = self._lanes[model] = ModelLane(model, counts_reads, own, longest)
        return lane

    def forget(self, lane: ModelLane) -> None:
        """Drops a model without waiting calls."""
        if not lane.queue and self._lanes.get(lane.model) is lane:
            del self._lanes[lane.model]

    def headroom(self, now: float) -> dict[str, float]:
        """The remaining share of each limit: configured ones, and the provider's stated ones if
        they are scarce."""
        shares = {} if self.shared is None else self.shared.headroom(now)
        for lane in self._lanes.values():
            own = {} if lane.own is None else lane.own.headroom(now)
            for by_token, stated in lane.stated:
                share = stated.headroom(now)
                what = "tokens" if by_token else "requests"
                if share is not None:
                    own[what] = min(share, own.get(what, 1.0))
            shares |= {f"{lane.model}: {what}": share for what, share in own.items()}
        return shares

    def wait(self, lane: ModelLane, tokens: int, now: float) -> float:
        """Seconds until the limits let a call arriving now start, without the wait for calls before
        it or for concurrent calls to end. Infinite for a call larger than a minute's quota."""
        return _INF if tokens > self._largest(lane) else self._opens(lane, tokens, now) - now

    def reserve(self, lane: ModelLane, tokens: int, now: float) -> Reservation:
        """Start a call, or queue it if it has to wait."""
        if tokens > (largest := self._largest(lane)):
            reason = f"the call has about {tokens:,} tokens; the limit per minute is"
            raise Throttled(f"{reason} {largest:,.0f}", wait=_INF)
        self._number += 1
        call = Reservation(lane, self._number, tokens, now)
        # Behind calls of the same lane, and those that wait for shared limits.
        behind = lane.queue or any(
            other.is_open(other.first.tokens, now) for other in self._waiting_lanes()
        )
        if not behind and self._may_start(lane, tokens, now):
            self._start(call, now)
        else:
            call.at = self._opens(lane, tokens, now)
            lane.queue[call] = None
            self.waiting += 1
        return call

    def advance(self, now: float) -> list[Reservation]:
        """Start every waiting call that may start now, in order."""
        started: list[Reservation] = []
        lanes = self._waiting_lanes()
        while lanes:
            lane = min(lanes, key=_number_of_first)
            call = lane.first
            if not lane.is_open(call.tokens, now):
                lanes.remove(lane)
                continue
            if not self._may_start(lane, call.tokens, now):
                break
            self._remove(call)
            self._start(call, now)
            started.append(call)
            if not lane.queue:
                lanes.remove(lane)
        return started

    def next_at(self, now: float) -> float:
        """When to call `advance` again; infinite if no call waits, or only the end of a running
        call lets one start."""
        soonest = _INF
        for lane in sorted(self._waiting_lanes(), key=_number_of_first):
            tokens = lane.first.tokens
            if not any(window.is_full for window in self._windows(lane)):
                soonest = min(soonest, self._opens(lane, tokens, now))
            if lane.is_open(tokens, now):
                break  # all later calls wait for this one
        return soonest

    def settle(self, call: Reservation, usage: Usage | None, now: float) -> None:
        """The call is over. Its billed tokens count from its start, if that is less than a minute
        ago; without usage, the estimate counts."""
        if call.state == "started":
            billed = call.lane.counted(usage) if usage is not None else None
            self._end(call, now, call.requests, call.tokens if billed is None else billed)

    def cancel(self, call: Reservation, now: float) -> None:
        """Nothing was sent: the call does not count. May be called more than once."""
        if call.state == "waiting":
            call.state = "over"
            self._remove(call)
        elif call.state == "started":
            call.lane.take(-call.tokens, -call.requests, now)
            self._end(call, now, 0, 0)

    def _windows(self, lane: ModelLane) -> list[RateWindow]:
        return [window for window in (self.shared, lane.own) if window is not None]

    def _opens(self, lane: ModelLane, tokens: int, now: float) -> float:
        then = lane.opens(tokens, now)
        return then if self.shared is None else max(then, self.shared.opens(tokens, now))

    def _may_start(self, lane: ModelLane, tokens: int, now: float) -> bool:
        shared = self.shared
        return lane.is_open(tokens, now) and (shared is None or shared.is_open(tokens, now))

    def _start(self, call: Reservation, now: float) -> None:
        call.at = now
        call.state = "started"
        for window in self._windows(call.lane):
            window.enter(call)
        call.lane.take(call.tokens, 1, now)

    def _end(self, call: Reservation, now: float, requests: int, tokens: int) -> None:
        call.state = "over"
        for window in self._windows(call.lane):
            window.leave(call, requests, tokens, now)
        call.requests, call.tokens = requests, tokens

    def _remove(self, call: Reservation) -> None:
        del call.lane.queue[call]
        self.waiting -= 1

    def _waiting_lanes(self) -> list[ModelLane]:
        return [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []

    def _largest(self, lane: ModelLane) -> float:
        return min((window.tokens for window in self._windows(lane)), default=_INF)


def _number_of_first(lane: ModelLane) -> int:
    return lane.first.number
