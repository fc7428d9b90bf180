"""Time limits for many waits with one event loop timer.

Most waits end long before their limit; a loop timer for each would dominate the transport's cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Protocol, TypeVar

from anaphora.errors import InvalidRequest

T = TypeVar("T")


class Expirable(Protocol):
    """A wait with a time limit; `expire` is called once when the limit is exceeded."""

    def expire(self) -> None: ...


class SharedTimer:
    """`begin` a wait and `end` it when its result has arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: dict[Expirable, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.wake_at = inf

    def begin(self, wait: Expirable, seconds: float) -> None:
        due = self.due[wait] = self.loop.time() + seconds
        if due < self.wake_at:
            self.schedule(due)

    def begin_at(self, wait: Expirable, due: float) -> None:
        """The same with a time of the loop's clock."""
        self.due[wait] = due
        if due < self.wake_at:
            self.schedule(due)

    def end(self, wait: Expirable) -> None:
        self.due.pop(wait, None)

    def close(self) -> None:
        """Drop all waits."""
        self.due.clear()
        self.schedule(inf)

    def schedule(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.wake_at = due
        self._timer = None if due == inf else self.loop.call_at(due, self._expire_due)

    def _expire_due(self) -> None:
        # The loop may call up to its clock resolution early, and would then call again and again.
        now = max(self.loop.time(), self.wake_at)
        expired = [wait for wait, due in self.due.items() if due <= now]
        for wait in expired:
            del self.due[wait]
        self.schedule(min(self.due.values(), default=inf))
        for wait in expired:
            wait.expire()


class LoopAffinity:
    """The event loop that holds a client's connections: the first that it is used in."""

    def __init__(self) -> None:
        self._timer: SharedTimer | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return None if self._timer is None else self._timer.loop

    def enter(self) -> SharedTimer:
        """The timer for all time limits of the client's calls, in the loop that runs now."""
        loop, timer = asyncio.get_running_loop(), self._timer
        if timer is None:
            timer = self._timer = SharedTimer(loop)
        elif timer.loop is not loop:
            raise InvalidRequest(
                "this client was used in another event loop, where its connections are; make one"
                " in each loop, or use the synchronous Client",
                path="client",
            )
        return timer

    def close(self) -> None:
        if self._timer is not None:
            self._timer.close()


class DeadlinePassed(Exception):
    """A wait was cancelled by its deadline."""


class Deadline:
    """The end of a call's time: `asyncio.timeout` for many waits and calls, with one timer.

    When a wait reaches it, `extend` returns for how many more seconds the wait may go on; 0 ends
    it."""

    __slots__ = ("_due", "_expired", "_extend", "_task", "_timer")

    def __init__(
        self, seconds: float, timer: SharedTimer, extend: Callable[[], float] | None = None
    ) -> None:
        self._timer = timer
        self._due = timer.loop.time() + seconds
        self._extend = extend
        self._expired = False
        self._task: asyncio.Task[Any] | None = None

    async def wait(
        self, awaitable: Awaitable[T], late: Callable[[], BaseException] | None = None
    ) -> T:
        """The result; at the deadline, raises what `late` returns, else `DeadlinePassed`. Its
        context has no frames of what was cancelled."""
        task = self._task = asyncio.current_task(self._timer.loop)
        assert task is not None, "calls are made in a task"
        before, cancelled = task.cancelling(), False
        self._expired = False
        timer, due = self._timer, self._due
        timer.due[self] = due
        if due < timer.wake_at:
            timer.schedule(due)
        try:
            return await awaitable
        except asyncio.CancelledError:
            cancelled = True
            if not self._expired or task.uncancel() > before:
                raise
        finally:
            timer.due.pop(self, None)
            if self._expired and not cancelled:
                task.uncancel()
        raise DeadlinePassed if late is None else late()

    def expire(self) -> None:
        assert self._task is not None
        if self._extend is not None and (seconds := self._extend()) > 0:
            self._due = self._timer.loop.time() + seconds
            self._timer.begin_at(self, self._due)
            return
        self._expired = True
        self._task.cancel()
