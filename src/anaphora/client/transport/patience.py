"""Time limits for many waits with one timer: most waits end long before their limit, and a timer of
the loop's own for each would cost more than all the rest of a transport."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol


class Waiting(Protocol):
    """Whoever waits is told once, when it took too long."""

    def expire(self) -> None: ...


class Patience:
    """`begin` a wait, `end` it when what was waited for has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: dict[Waiting, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake = inf

    def begin(self, waiting: Waiting, seconds: float) -> None:
        """Starts the wait; for one that is begun already, starts it anew."""
        self.begin_at(waiting, self.loop.time() + seconds)

    def begin_at(self, waiting: Waiting, due: float) -> None:
        """The same with a time of the loop's clock."""
        self._due[waiting] = due
        if due < self._wake:
            self._sleep(due)

    def end(self, waiting: Waiting) -> None:
        self._due.pop(waiting, None)

    def close(self) -> None:
        """No wait expires any more, and none may begin."""
        self._due.clear()
        self._sleep(inf)

    def _sleep(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake = until
        self._timer = None if until == inf else self.loop.call_at(until, self._look)

    def _look(self) -> None:
        # The loop may wake us up to its clock's resolution early, and would do so again and again.
        now = max(self.loop.time(), self._wake)
        expired = [waiting for waiting, due in self._due.items() if due <= now]
        for waiting in expired:
            del self._due[waiting]
        self._sleep(min(self._due.values(), default=inf))
        for waiting in expired:
            waiting.expire()
