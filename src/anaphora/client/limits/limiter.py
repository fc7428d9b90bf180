"""Whether a call may start now, at one provider. Pure: the time is an argument.

lane = limiter.lane("claude-sonnet-5-5")
call = limiter.reserve(lane, tokens, now)     started, or queued until `call.at`
limiter.queue.advance(now)                    start the queued calls that may start now
limiter.settle(call, usage, now)              finished; corrected by the billed tokens
limiter.cancel(call, now)                     nothing was sent
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

from anaphora.client.config.values import LimitsConfig, Rate
from anaphora.errors import AnaphoraError, RateLimited
from anaphora.values import Usage
from anaphora.wire.ratelimits import LimitKind, read_limits

from .queue import CallQueue
from .windows import MINUTE, RateWindow, StatedLimit

#: A stated limit is ignored while a larger share of it remains.
_SCARCE = 0.5


class Reservation:
    """One call. `at` is its start time: forecast while it waits, actual once it has started."""

    __slots__ = ("at", "lane", "number", "requests", "state", "tokens")

    def __init__(self, lane: ModelLane, number: int, tokens: int, now: float) -> None:
        self.lane = lane
        self.number = number
        """In order of arrival."""
        self.tokens = tokens
        self.requests = 1
        self.at = now
        self.state: Literal["waiting", "started", "over"] = "waiting"

    def __repr__(self) -> str:
        return f"<Reservation {self.number}: {self.tokens} tokens, {self.state} at {self.at:g}>"


class ModelLane:
    """One model: its limits and its queue. Calls of a lane start in order of arrival."""

    __slots__ = ("blocked_until", "counts_reads", "model", "own", "queue", "stated")

    def __init__(self, model: str, rate: Rate | None, *, counts_reads: bool) -> None:
        self.model = model
        self.counts_reads = counts_reads
        """Whether the provider counts tokens read from its cache."""
        self.own = None if rate is None else RateWindow.of(rate)
        self.stated: list[tuple[LimitKind, StatedLimit]] = []
        """Limits from response headers. Providers count each model separately."""
        self.blocked_until = 0.0
        self.queue: OrderedDict[Reservation, None] = OrderedDict()

    @property
    def first(self) -> Reservation:
        return next(iter(self.queue))

    def is_open(self, tokens: int, now: float) -> bool:
        """Whether the model's own limits let a call start now."""
        if now < self.blocked_until:
            return False
        for what, stated in self.stated:
            amount = tokens if what == "tokens" else 1
            if stated.level < amount and stated.opens(amount, now) > now:
                return False
        return self.own is None or self.own.is_open(tokens, now)

    def opens(self, tokens: int, now: float) -> float:
        """When a call may start, if nothing else starts before."""
        then = max(now, self.blocked_until)
        for what, stated in self.stated:
            then = max(then, stated.opens(tokens if what == "tokens" else 1, then))
        # Stated amounts only grow until then, and so does the room in the last minute.
        return then if self.own is None else max(then, self.own.opens(tokens, now))

    def take(self, tokens: int, requests: int, now: float) -> None:
        """Count a call against the stated limits; negative amounts give it back."""
        for what, stated in self.stated:
            stated.take(tokens if what == "tokens" else requests, now)

    def update(self, headers: Mapping[str, str], now: float, epoch: float) -> bool:
        """Learn from response headers; return whether they state any limit. `epoch` is the Unix
        time, for headers with absolute reset times."""
        scarce = read_limits(headers, epoch, at_most=_SCARCE)
        if not scarce and not (self.stated and read_limits(headers, epoch)):
            return False
        self.stated = [
            (left.what, StatedLimit(left, left.reset, now))
            for left in scarce
            if left.reset is not None
        ]
        return True

    def block(self, error: AnaphoraError, now: float) -> bool:
        """Block the lane for a rate limit error's `retry_after`; return whether it has one."""
        if not isinstance(error, RateLimited) or error.retry_after is None:
            return False
        self.blocked_until = max(self.blocked_until, now + error.retry_after)
        return True

    def counted(self, usage: Usage) -> int | None:
        """The prompt's tokens as the provider counts them; None if not reported."""
        uncached, read, written = usage.uncached, usage.read, usage.written
        if uncached is None and read is None and written is None:
            return None
        counted = (uncached or 0) + (sum(written.values()) if written else 0)
        return counted + (read or 0) if self.counts_reads else counted


class Limiter:
    """The limits of one provider, configured and stated."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._shared = RateWindow.of(limits)
        self._lanes: dict[str, ModelLane] = {}
        self._number = 0
        self.queue = CallQueue(self._shared, self._lanes, self._start)

    def lane(self, model: str, *, counts_reads: bool = True) -> ModelLane:
        """The model's lane; the same one each time."""
        lane = self._lanes.get(model)
        if lane is None:
            rate = self._limits.models.get(model)
            lane = self._lanes[model] = ModelLane(model, rate, counts_reads=counts_reads)
        return lane

    def counts_tokens(self, lane: ModelLane, now: float) -> bool:
        """Whether the size of a call that arrives now may affect when it starts."""
        if self._shared is not None or lane.own is not None or lane.stated:
            return True
        return self.queue.waiting > 0 or now < lane.blocked_until

    def wait(self, lane: ModelLane, tokens: int, now: float) -> float:
        """Seconds until a call that arrives now would start, waiting for concurrent calls to end
        not counted. Infinite for a call larger than a minute's quota."""
        if tokens > self.queue.largest(lane):
            return float("inf")
        if self._may_start(lane, tokens, now):
            return 0.0
        return max(0.0, self.queue.forecast(now).start_of(lane, tokens, now) - now)

    def reserve(self, lane: ModelLane, tokens: int, now: float) -> Reservation:
        """Start a call, or queue it where it has to wait."""
        self._number += 1
        call = Reservation(lane, self._number, tokens, now)
        if self._may_start(lane, tokens, now):
            self._start(call, now)
            self.queue.outdated = True
        else:
            self.queue.add(call, now)
        return call

    def settle(self, call: Reservation, usage: Usage | None, now: float) -> None:
        """The call is over. What it was billed counts from its start, as long as that is less than
        a minute ago; without a usage, the estimate counts."""
        if call.state != "started":
            return
        if self._shared is None and call.lane.own is None:
            call.state = "over"
            return
        billed = call.lane.counted(usage) if usage is not None else None
        self._end(call, now, call.requests, call.tokens if billed is None else billed)

    def cancel(self, call: Reservation, now: float) -> None:
        """Nothing was sent: the call does not count. May be called more than once."""
        if call.state == "waiting":
            call.state = "over"
            self.queue.remove(call)
            self.queue.outdated = True
        elif call.state == "started":
            call.lane.take(-call.tokens, -call.requests, now)
            self._end(call, now, 0, 0)

    def _may_start(self, lane: ModelLane, tokens: int, now: float) -> bool:
        if self.queue.waiting and self.queue.is_ahead_of(lane, now):
            return False
        if self._shared is not None and not self._shared.is_open(tokens, now):
            return False
        return lane.is_open(tokens, now)

    def _start(self, call: Reservation, now: float) -> None:
        call.at = now
        call.state = "started"
        lane = call.lane
        if self._shared is not None:
            self._shared.enter(call)
        if lane.own is not None:
            lane.own.enter(call)
        if lane.stated:
            lane.take(call.tokens, 1, now)

    def _end(self, call: Reservation, now: float, requests: int, tokens: int) -> None:
        call.state = "over"
        fewer_requests, fewer_tokens = call.requests - requests, call.tokens - tokens
        for window in (self._shared, call.lane.own):
            if window is None:
                continue
            window.running -= 1
            if window.windowed and (fewer_requests or fewer_tokens):
                window.forget(now)
                if call.at + MINUTE > now:
                    window.used_requests -= fewer_requests
                    window.used_tokens -= fewer_tokens
        call.requests, call.tokens = requests, tokens
        if fewer_requests or fewer_tokens:
            self.queue.outdated = True
