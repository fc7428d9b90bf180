"""A real event loop on a virtual clock: waiting takes no time, and a deadlock fails.

    virtual_time.run(main())

When nothing is ready, the clock advances to the next timer. Without a timer the loop is
deadlocked, and the test fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(AssertionError):
    """A task waits, and nothing can wake it."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self))
        self.go_on(0.0)

    def time(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        if seconds > 0:
            self.now = max(self.now + seconds, math.nextafter(self.now, math.inf))
        # A timer fires at its time and never a moment before.
        self._clock_resolution = math.ulp(self.now)


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise Stuck("a task waits, and no timer or event is left")
        self._loop.go_on(timeout)
        return super().select(0)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def clock() -> float:
    return asyncio.get_running_loop().time()
