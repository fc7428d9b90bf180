"""Futures and timers of calls that wait for the limits; the only file here that uses an event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from anaphora.errors import AnaphoraError, Denied, Throttled, Transport
from anaphora.values import Usage

from .limiter import Limiter
from .windows import ModelLane, Reservation

_INF = float("inf")


class WaitingCalls:
    """The waiting calls of one provider: a future each, and one timer for the next start. A
    cancelled call gives up its place in the queue, or the start that it was just given."""

    def __init__(self, limiter: Limiter, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._limiter = limiter
        self._futures: dict[Reservation, tuple[asyncio.Future[None], float]] = {}
        """With the deadline of each call."""
        self._timer: asyncio.TimerHandle | None = None

    async def start_of(
        self,
        call: Reservation,
        now: float,
        deadline: float | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        future = asyncio.get_running_loop().create_future()
        seconds = None if deadline is None else max(0.0, deadline - now)
        try:
            if seconds is not None and call.at - now > seconds:
                raise _throttled(call.at - now)
            self._futures[call] = future, _INF if deadline is None else deadline
            if on_wait is not None:
                on_wait(call.at - now)
            self.advance()
            try:
                async with asyncio.timeout(seconds):
                    await future
            except TimeoutError:
                raise _throttled(max(0.0, call.at - self.clock())) from None
        except BaseException:
            # Also when the call was started and its task was cancelled before it could run.
            self._limiter.cancel(call, self.clock())
            self.advance()
            raise
        finally:
            self._futures.pop(call, None)

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
        elif lane.block(error, now):
            for each, (future, deadline) in self._futures.items():
                if each.lane is lane and deadline < lane.blocked_until and not future.done():
                    future.set_exception(_throttled(lane.blocked_until - now))
        if self._limiter.waiting:
            self.advance()

    def update(self, lane: ModelLane, headers: Mapping[str, str], epoch: float) -> None:
        if lane.update(headers, self.clock(), epoch) and self._limiter.waiting:
            self.advance()

    def advance(self) -> None:
        """Start the calls that may start now, and set the timer for the next one."""
        now = self.clock()
        for call in self._limiter.advance(now):
            future, _ = self._futures[call]
            # A call that was cancelled or has expired gives its start back itself.
            if not future.done():
                future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        then = self._limiter.next_at(now)
        if then < _INF:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, then - now), self.advance)


def _throttled(seconds: float) -> Throttled:
    if seconds > 0:
        reason = f"the rate limits would delay the call by {seconds:.1f} s, beyond its deadline"
    else:
        reason = "the rate limits let no call start before the deadline"
    return Throttled(reason, wait=seconds)
