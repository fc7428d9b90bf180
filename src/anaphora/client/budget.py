"""The time that a call may take: what `asyncio.timeout` does, for many calls with one timer."""

from __future__ import annotations

import asyncio

from .transport.timer import SharedTimer

#: Nearly every program has one loop.
_last: SharedTimer | None = None


class Budget:
    """Begins when it is made, in the task that it is for, and must be ended there."""

    __slots__ = ("_before", "_timer", "_task", "expired")

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "calls are made in a task"
        self._task = task
        self._before = task.cancelling()
        self.expired = False
        self._timer = _timer(loop)
        self._timer.begin(self, seconds)

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def end(self) -> None:
        self._timer.end(self)

    def is_why(self) -> bool:
        """Whether the task was cancelled because of this, and not by anybody else."""
        return self.expired and self._task.uncancel() <= self._before


def _timer(loop: asyncio.AbstractEventLoop) -> SharedTimer:
    global _last  # noqa: PLW0603
    timer = _last
    if timer is None or timer.loop is not loop:
        timer = _last = SharedTimer(loop)
    return timer
