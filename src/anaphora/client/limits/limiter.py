"""Whether a call may start now, at one provider. Pure: the time is an argument.

    lane = limiter.lane("claude-sonnet-5-5")
    call = limiter.reserve(lane, tokens, now)     started, or queued until `call.at`
    limiter.advance(now)                          start the queued calls that may start now
    limiter.settle(call, usage, now)              finished; corrected by the billed tokens
    limiter.cancel(call, now)                     nothing was sent

Calls of a model start in order of arrival, and so do those of several models as far as they wait
for shared limits. Other models overtake one that waits for its own limits, which goes first once it
may start; it may start later than forecast if they used up the shared limits.

A provider may state a wait of years, which `longest_wait` cuts short. Then one call is sent as a
probe, and the others of its model wait until the provider has accepted or refused it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from heapq import merge
from typing import Literal

import msgspec

from anaphora.client.config import LimitsConfig
from anaphora.errors import AnaphoraError, RateLimited, Throttled
from anaphora.values import Usage
from anaphora.wire.response_headers import read_limits, seconds_until

from .windows import MINUTE, Forecast, RateWindow, StatedLimit

#: A stated limit is ignored while more than this share of it remains.
SCARCE = 0.5
#: With more waiting calls the forecast is renewed once a second, with fewer at every change.
_FEW = 64
_FORECAST_SECONDS = 1.0
#: A start later than forecast by more than this outdates the forecast.
_LATE = 0.05
_INF = float("inf")


class Reservation(msgspec.Struct, eq=False):
    """One call, numbered in order of arrival. `at` is its start time: forecast while it waits,
    actual once it has started."""

    lane: ModelLane
    number: int
    tokens: int
    at: float
    requests: int = 1
    state: Literal["waiting", "started", "over"] = "waiting"

    def __repr__(self) -> str:
        return f"<Reservation {self.number}: {self.tokens} tokens, {self.state} at {self.at:g}>"


class ModelLane(msgspec.Struct, eq=False):
    """One model: its limits and its queue. Calls of a lane start in order of arrival."""

    model: str
    counts_reads: bool
    """Whether the provider counts tokens read from its cache; if not, calls reserve only the
    others."""
    own: RateWindow | None
    longest_wait: float
    """The maximum for waits that the provider states."""
    stated: list[tuple[bool, StatedLimit]] = []
    """Limits from response headers, and whether they count tokens and not requests. Providers count
    each model separately."""
    blocked_until: float = 0.0
    unproven: bool = False
    """The wait of a refusal was cut short, and no call was accepted since."""
    probe: Reservation | None = None
    """The call whose outcome the others wait for."""
    ignores_cut: bool = False
    """Headers with a reset beyond `longest_wait` were wrong: a probe was accepted."""
    queue: OrderedDict[Reservation, None] = msgspec.field(default_factory=OrderedDict)

    @property
    def first(self) -> Reservation:
        return next(iter(self.queue))

    def is_open(self, tokens: int, now: float) -> bool:
        if now < self.blocked_until or self.probe is not None:
            return False
        for by_token, stated in self.stated:
            amount = tokens if by_token else 1
            if stated.level < amount and stated.opens(amount, now) > now:
                return False
        return self.own is None or self.own.is_open(tokens, now)

    def opens(self, tokens: int, now: float) -> float:
        """When a call may start if no other starts before; infinite while a probe runs, since its
        end is unknown."""
        if self.probe is not None:
            return _INF
        then = max(now, self.blocked_until)
        for by_token, stated in self.stated:
            then = max(then, stated.opens(tokens if by_token else 1, then))
        # Stated amounts only grow until then, and so does the room in the last minute.
        return then if self.own is None else max(then, self.own.opens(tokens, now))

    def start(self, call: Reservation, now: float) -> None:
        """A call starts. It is a probe if the provider's stated limits do not allow it."""
        if self.unproven or any(
            stated.granted < (call.tokens if by_token else 1) for by_token, stated in self.stated
        ):
            self.probe = call
        self.take(call.tokens, 1, now)

    def take(self, tokens: int, requests: int, now: float) -> None:
        """Count a call against the stated limits; negative amounts give it back."""
        for by_token, stated in self.stated:
            stated.take(tokens if by_token else requests, now)

    def update(self, headers: Mapping[str, str], now: float, epoch: float) -> bool:
        """Learn from response headers; return whether they state any limit. `epoch` is the Unix
        time, for headers with absolute reset times."""
        scarce = read_limits(headers, at_most=SCARCE)
        if not scarce and not (self.stated and read_limits(headers)):
            return False
        self.stated = []
        for left in scarce:
            reset = seconds_until(left.reset, epoch)
            if reset is not None and not (self.ignores_cut and reset > self.longest_wait):
                stated = StatedLimit(left, reset, self.longest_wait, now)
                self.stated.append((left.unit == "tokens", stated))
        return True

    def accept(self) -> None:
        """The provider accepted the probe: the lane is open, and limits that would have forbidden
        the probe are wrong."""
        self.probe, self.unproven = None, False
        kept = [(by_token, stated) for by_token, stated in self.stated if not stated.cut]
        self.ignores_cut = self.ignores_cut or len(kept) < len(self.stated)
        self.stated = kept

    def block(self, error: AnaphoraError, now: float, call: Reservation | None = None) -> bool:
        """Block the lane for a rate limit error's `retry_after`, or a minute if it refuses a probe
        without one; return whether the lane is blocked."""
        if not isinstance(error, RateLimited):
            return False
        wait = error.retry_after
        if wait is None:
            if call is None or self.probe is not call:
                return False
            wait = MINUTE
        elif wait > self.longest_wait:
            self.unproven = True
        self.ignores_cut = False
        self.blocked_until = max(self.blocked_until, now + min(wait, self.longest_wait))
        return True

    def counted(self, usage: Usage) -> int | None:
        """The prompt's tokens as the provider counts them; None if not reported."""
        uncached, read, written = usage.uncached, usage.read, usage.written
        if uncached is None and read is None and written is None:
            return None
        counted = (uncached or 0) + (sum(written.values()) if written else 0)
        return counted + (read or 0) if self.counts_reads else counted


class Limiter:
    """The limits of one provider, configured and stated, and the calls that wait for them."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self.shared = RateWindow.of(limits)
        self._lanes: dict[str, ModelLane] = {}
        self._number = 0
        self.waiting = 0
        self._forecast: Forecast | None = None
        self._forecast_at = -_INF
        self.outdated = False
        """Whether start times may have changed since the forecast."""

    def lane(self, model: str, *, counts_reads: bool = True) -> ModelLane:
        lane = self._lanes.get(model)
        if lane is None:
            rate = self._limits.models.get(model)
            own = None if rate is None else RateWindow.of(rate)
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
        """Seconds until a call arriving now would start, without the wait for concurrent calls to
        end. Infinite for a call larger than a minute's quota."""
        if tokens > self._largest(lane):
            return _INF
        if self._may_start(lane, tokens, now):
            return 0.0
        return max(0.0, self._current_forecast(now).start_of(lane, tokens, now) - now)

    def reserve(self, lane: ModelLane, tokens: int, now: float) -> Reservation:
        """Start a call, or queue it if it has to wait."""
        self._number += 1
        call = Reservation(lane, self._number, tokens, now)
        if self._may_start(lane, tokens, now):
            self._start(call, now)
            self.outdated = True
            return call
        if tokens > (largest := self._largest(lane)):
            reason = f"the call has about {tokens:,} tokens; the limit per minute is"
            raise Throttled(f"{reason} {largest:,.0f}", wait=_INF)
        call.at = self._current_forecast(now).book(lane, tokens, now)
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
            if self.shared is not None and not self.shared.is_open(call.tokens, now):
                break
            self._remove(call)
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
        for lane in sorted(self._waiting_lanes(), key=_number_of_first):
            tokens = lane.first.tokens
            if lane.is_open(tokens, now):
                # All later calls wait for this one.
                opens = now if self.shared is None else self.shared.opens(tokens, now)
                return min(soonest, opens)
            soonest = min(soonest, lane.opens(tokens, now))
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
            self.outdated = True
        elif call.state == "started":
            call.lane.take(-call.tokens, -call.requests, now)
            self._end(call, now, 0, 0)

    def _may_start(self, lane: ModelLane, tokens: int, now: float) -> bool:
        if lane.queue or any(
            other.is_open(other.first.tokens, now) for other in self._waiting_lanes()
        ):
            return False  # behind calls of the same lane, and those that wait for shared limits
        if self.shared is not None and not self.shared.is_open(tokens, now):
            return False
        return lane.is_open(tokens, now)

    def _start(self, call: Reservation, now: float) -> None:
        call.at = now
        call.state = "started"
        for window in (self.shared, call.lane.own):
            if window is not None:
                window.enter(call)
        call.lane.start(call, now)

    def _end(self, call: Reservation, now: float, requests: int, tokens: int) -> None:
        call.state = "over"
        if call.lane.probe is call:
            call.lane.probe = None
        more_requests, more_tokens = requests - call.requests, tokens - call.tokens
        for window in (self.shared, call.lane.own):
            if window is not None:
                window.leave(call, more_requests, more_tokens, now)
        call.requests, call.tokens = requests, tokens
        if more_requests or more_tokens:
            self.outdated = True

    def _remove(self, call: Reservation) -> None:
        del call.lane.queue[call]
        self.waiting -= 1
        if not self.waiting:
            self._forecast = None

    def _waiting_lanes(self) -> list[ModelLane]:
        return [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []

    def _largest(self, lane: ModelLane) -> float:
        windows = (window for window in (self.shared, lane.own) if window is not None)
        return min((window.tokens for window in windows), default=_INF)

    def _current_forecast(self, now: float) -> Forecast:
        due = self.waiting <= _FEW or now >= self._forecast_at + _FORECAST_SECONDS
        if self._forecast is None or (self.outdated and due):
            self._forecast, self._forecast_at = Forecast(self.shared), now
            self.outdated = False
            queues = (lane.queue for lane in self._waiting_lanes())
            for call in merge(*queues, key=lambda call: call.number):
                call.at = self._forecast.book(call.lane, call.tokens, now)
        return self._forecast


def _number_of_first(lane: ModelLane) -> int:
    return lane.first.number
