"""Futures and timers of calls that wait for the limits; the only file here that uses an event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from anaphora.errors import AnaphoraError, Denied, Throttled, Transport
from anaphora.values import Usage

from .limiter import Limiter, ModelLane, Reservation

_INF = float("inf")


class WaitingCalls:
    """The waiting calls of one provider: a future each, and one timer for the next start. A
    cancelled call gives up its place in the queue, or the start that it was just given."""

    def __init__(self, limiter: Limiter, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._limiter = limiter
        self._futures: dict[Reservation, asyncio.Future[None]] = {}
        self._deadlines: dict[Reservation, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _INF

    async def start_of(
        self,
        call: Reservation,
        now: float,
        deadline: float | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        expiry: asyncio.TimerHandle | None = None
        try:
            if deadline is not None and call.at > deadline:
                raise _throttled(call.at - now)
            loop = asyncio.get_running_loop()
            future = self._futures[call] = loop.create_future()
            if on_wait is not None:
                on_wait(call.at - now)
            if deadline is not None:
                self._deadlines[call] = deadline
                expiry = loop.call_later(max(0.0, deadline - now), self._expire, call)
            self.advance()
            await future
        except BaseException:
            # Also when the call was started and its task was cancelled before it could run.
            self._limiter.cancel(call, self.clock())
            self.advance()
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self._futures.pop(call, None)
            self._deadlines.pop(call, None)

    def settle(self, call: Reservation, usage: Usage | None) -> None:
        self._limiter.settle(call, usage, self.clock())
        if self._limiter.waiting:
            self.advance()

    def failed(self, call: Reservation | None, lane: ModelLane, error: AnaphoraError) -> None:
        """A call failed: it does not count if nothing was sent, and a rate limit blocks its
        lane. Fails the lane's calls whose deadline is before the end of the block."""
        now = self.clock()
        unsent = isinstance(error, Transport) and error.phase == "connect"
        if unsent or isinstance(error, Denied):
            if call is not None:
                self._limiter.cancel(call, now)
        elif lane.block(error, now, call):
            self._limiter.outdated = True
            for each, future in self._futures.items():
                late = self._deadlines.get(each, _INF) < lane.blocked_until
                if each.lane is lane and late and each.state == "waiting" and not future.done():
                    future.set_exception(_throttled(lane.blocked_until - now))
        if self._limiter.waiting:
            self.advance()

    def accepted(self, call: Reservation) -> None:
        """The provider began to answer the call."""
        if call.lane.probe is call:
            call.lane.accept()
            self._limiter.outdated = True
            if self._limiter.waiting:
                self.advance()

    def update(self, lane: ModelLane, headers: Mapping[str, str], epoch: float) -> None:
        if lane.update(headers, self.clock(), epoch) and self._limiter.waiting:
            self._limiter.outdated = True
            self.advance()

    def advance(self) -> None:
        """Start the calls that may start now, and set the timer for the next one."""
        now = self.clock()
        for call in self._limiter.advance(now):
            future = self._futures[call]
            # A call that was cancelled or has expired gives its start back itself.
            if not future.done():
                future.set_result(None)
        self._set_timer(self._limiter.next_at(now), now)

    def _expire(self, call: Reservation) -> None:
        future = self._futures.get(call)
        if future is not None and not future.done():
            future.set_exception(_throttled(max(0.0, call.at - self.clock())))

    def _set_timer(self, then: float, now: float) -> None:
        if self._timer is not None:
            if then == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at = then
        if then < _INF:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, then - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.advance()


def _throttled(seconds: float) -> Throttled:
    if seconds > 0:
        reason = f"the rate limits would delay the call by {seconds:.1f} s, beyond its deadline"
    else:
        reason = "the rate limits let no call start before the deadline"
    return Throttled(reason, wait=seconds)
