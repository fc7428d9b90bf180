"""The time that a call may take: what `asyncio.timeout` does, for many calls with one timer."""

from __future__ import annotations

import asyncio

from .transport.patience import Patience

#: Nearly every program has one loop.
_last: Patience | None = None


class Budget:
    """Begins when it is made, in the task that it is for, and must be ended there."""

    __slots__ = ("_before", "_patience", "_task", "expired")

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "calls are made in a task"
        self._task = task
        self._before = task.cancelling()
        self.expired = False
        self._patience = _patience(loop)
        self._patience.begin(self, seconds)

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def end(self) -> None:
        self._patience.end(self)

    def is_why(self) -> bool:
        """Whether the task was cancelled because of this, and not by anybody else."""
        return self.expired and self._task.uncancel() <= self._before


def _patience(loop: asyncio.AbstractEventLoop) -> Patience:
    global _last  # noqa: PLW0603
    patience = _last
    if patience is None or patience.loop is not loop:
        patience = _last = Patience(loop)
    return patience
