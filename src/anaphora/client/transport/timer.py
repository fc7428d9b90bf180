"""Time limits for many waits with one event loop timer.

Most waits end long before their limit; a loop timer for each would dominate the transport's cost.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol


class Expirable(Protocol):
    """A wait with a time limit; `expire` is called once when the limit is exceeded."""

    def expire(self) -> None: ...


class SharedTimer:
    """`begin` a wait and `end` it when its result has arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: dict[Expirable, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf

    def begin(self, wait: Expirable, seconds: float) -> None:
        """Start or restart a wait."""
        due = self.loop.time() + seconds
        self._due[wait] = due
        if due < self._wake_at:
            self._schedule(due)

    def end(self, wait: Expirable) -> None:
        self._due.pop(wait, None)

    def close(self) -> None:
        """Drop all waits; none may begin afterwards."""
        self._due.clear()
        self._schedule(inf)

    def _schedule(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = due
        self._timer = None if due == inf else self.loop.call_at(due, self._expire_due)

    def _expire_due(self) -> None:
        # The loop may call up to its clock resolution early, and would then call again and again.
        now = max(self.loop.time(), self._wake_at)
        expired = [wait for wait, due in self._due.items() if due <= now]
        for wait in expired:
            del self._due[wait]
        self._schedule(min(self._due.values(), default=inf))
        for wait in expired:
            wait.expire()
