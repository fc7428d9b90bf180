"""Lets calls wait for their turn: the one file here that knows an event loop.

    async with gate.passing(tokens, deadline, on_wait) as passing:
        answer = ...
        passing.heard(answer.headers, time.time())
        passing.settle(reply.usage)

Whoever need not wait costs a few microseconds: no task, no future, no timer. Whoever must, waits on
one future; one timer of the provider's wakes whoever is next. A call that is cancelled gives back
its place, or the turn that it was just given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Self

from anaphora.catalog import CacheRules
from anaphora.client.config.values import Limits
from anaphora.errors import AnaphoraError, Throttled, Transport
from anaphora.values import Usage

from .lane import Lane
from .limiter import Limiter
from .reservation import Reservation

_INF = float("inf")


class Gate:
    """Where the calls of one model pass on their way to its provider."""

    __slots__ = ("_door", "_lane")

    def __init__(self, door: _Door, lane: Lane) -> None:
        self._door = door
        self._lane = lane

    @classmethod
    def of(cls, limits: Limits, clock: Callable[[], float] = monotonic) -> Gate:
        """A provider's, for calls of no model in particular. Deadlines are on the same clock."""
        door = _Door(limits, clock)
        return cls(door, door.limiter.lane(""))

    def of_model(self, name: str, rules: CacheRules | None = None) -> Gate:
        """A model's, behind the same provider's limits. `rules` say how it counts."""
        counts = rules is None or rules.reads_limited is None or rules.reads_limited.value
        return Gate(self._door, self._door.limiter.lane(name, counts_reads=counts))

    @property
    def counts_reads(self) -> bool:
        """Whether tokens read from the cache count; if not, `passing` is told the others only."""
        return self._lane.counts_reads

    @property
    def counts_tokens(self) -> bool:
        """Whether it matters how many tokens a call has that comes now."""
        return self._door.limiter.counts_tokens(self._lane, self._door.clock())

    def wait(self, tokens: int) -> float:
        """How many seconds a call would wait if it came now, as far as that is known."""
        return self._door.limiter.wait(self._lane, tokens, self._door.clock())

    def passing(
        self,
        tokens: int,
        deadline: float | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> Passing:
        """To be entered with `async with`. Raises `Throttled` at once when the wait would not be
        over by the deadline.

        `on_wait` is told the seconds before they are waited: 0.0 where one of the running calls has
        to end first, since nobody knows when it does. Such a wait ends at the deadline at the
        latest, with `Throttled`.
        """
        return Passing(self._door, self._lane, tokens, deadline, on_wait)


class Passing:
    """One call's way through the gate. Used once."""

    __slots__ = ("_deadline", "_door", "_held", "_lane", "_on_wait", "_tokens", "queued")

    def __init__(
        self,
        door: _Door,
        lane: Lane,
        tokens: int,
        deadline: float | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        self._door = door
        self._lane = lane
        self._tokens = tokens
        self._deadline = deadline
        self._on_wait = on_wait
        self._held: Reservation | None = None
        self.queued = 0.0
        """How many seconds it waited."""

    async def __aenter__(self) -> Self:
        door = self._door
        at = door.clock()
        held = self._held = door.limiter.reserve(self._lane, self._tokens, at)
        if held.state != "started":
            await door.turn_of(held, at, self._deadline, self._on_wait)
            self.queued = door.clock() - at
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held, door = self._held, self._door
        if held is None or (held.state == "over" and error is None):
            return
        at = door.clock()
        if isinstance(error, AnaphoraError):
            if isinstance(error, Transport) and error.phase == "connect":
                door.limiter.cancel(held, at)
            elif self._lane.refused(error, at):
                door.stopped(self._lane)
        door.limiter.settle(held, None, at)
        if door.limiter.waiting:
            door.look()

    def heard(self, headers: Mapping[str, str], now: float) -> None:
        """Learns from an answer's headers; `now` is the time in seconds since 1970."""
        if self._lane.heard(headers, self._door.clock(), now) and self._door.limiter.waiting:
            self._door.limiter.changed()
            self._door.look()

    def settle(self, usage: Usage) -> None:
        """The call is over, and this is what it was billed for."""
        if self._held is not None:
            self._door.limiter.settle(self._held, usage, self._door.clock())
            if self._door.limiter.waiting:
                self._door.look()


class _Door:
    """All gates of one provider, and whoever waits there."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limiter = Limiter(limits)
        self.clock = clock
        self._turns: dict[Reservation, asyncio.Future[None]] = {}
        self._deadlines: dict[Reservation, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _INF

    async def turn_of(
        self,
        held: Reservation,
        at: float,
        deadline: float | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        """Returns when it has started."""
        end = _INF if deadline is None else deadline
        expires: asyncio.TimerHandle | None = None
        try:
            if held.at > end:
                raise _too_long(held.at - at)
            loop = asyncio.get_running_loop()
            turn = self._turns[held] = loop.create_future()
            if on_wait is not None:
                on_wait(held.at - at)
            if deadline is not None:
                self._deadlines[held] = deadline
                expires = loop.call_later(max(0.0, deadline - at), self._expire, held)
            self.look()
            await turn
        except BaseException:
            # Also when its turn had come and the task was cancelled before it could run.
            self.limiter.cancel(held, self.clock())
            self.look()
            raise
        finally:
            if expires is not None:
                expires.cancel()
            self._turns.pop(held, None)
            self._deadlines.pop(held, None)

    def look(self) -> None:
        """Lets everybody go whose turn it is, and sets the timer for whoever is next."""
        at = self.clock()
        for held in self.limiter.advance(at):
            turn = self._turns[held]
            # A call that was cancelled meanwhile, or is out of time, gives the turn back itself.
            if not turn.done():
                turn.set_result(None)
        self._set_timer(self.limiter.next_at(at), at)

    def stopped(self, lane: Lane) -> None:
        """Whoever cannot start in time any more learns it at once."""
        self.limiter.changed()
        at = self.clock()
        for held, turn in self._turns.items():
            late = self._deadlines.get(held, _INF) < lane.stopped
            if held.lane is lane and late and held.state == "waiting" and not turn.done():
                turn.set_exception(_too_long(lane.stopped - at))

    def _expire(self, held: Reservation) -> None:
        turn = self._turns.get(held)
        if turn is not None and not turn.done():
            turn.set_exception(_too_long(max(0.0, held.at - self.clock())))

    def _set_timer(self, then: float, at: float) -> None:
        if self._timer is not None:
            if then == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at = then
        if then < _INF:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, then - at), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.look()


def _too_long(seconds: float) -> Throttled:
    if seconds > 0:
        said = f"the limits would make the call wait {seconds:.1f} s, longer than it may take"
    else:
        said = "no place became free in the time that the call may take"
    return Throttled(said, wait=seconds)
