"""Processes large requests in threads, so that the event loop can serve others.

    facts = await off_loop.run(app.id, lambda: read_facts(...))

A thread lets others run between Python steps, but not within one call of a C library. So work here
processes a body in short pieces (see `wire.strict_json`). One task per app runs at a time, so that
an app with many large bodies delays only itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_THREADS = 2
#: Maximum seconds that the event loop waits for a thread that computes: of 0.005 by default.
#: It waits after each call of the system, so several times for each request.
_SWITCH_SECONDS = 0.0002
#: New objects before the garbage collector looks at them, in all threads: few at a time, since the
#: values of a body are tens of thousands; and the same for its older generations.
_YOUNG_OBJECTS = (5_000, 1, 100)


class OffLoop:
    """Threads for large requests, started on demand. Used from one event loop."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._free = asyncio.Semaphore(_THREADS)
        self._apps: dict[str, tuple[asyncio.Lock, int]] = {}
        self.begun = 0
        """Number of tasks so far."""
        self._running = 0
        self._usual = 0.0, (0, 0, 0)
        """The interpreter's switch interval and collections while no task runs."""

    async def run(self, app: str, act: Callable[[], T]) -> T:
        """The result of `act`. If the caller is cancelled, the thread still finishes, and the app's
        next task waits for it."""
        lock, waiting = self._apps.get(app) or (asyncio.Lock(), 0)
        self._apps[app] = lock, waiting + 1
        work: asyncio.Future[T] | None = None
        try:
            await lock.acquire()
            try:
                await self._free.acquire()
                try:
                    work = self._begin(act)
                finally:
                    if work is None:
                        self._free.release()
            finally:
                if work is None:
                    lock.release()
            work.add_done_callback(lambda _: self._ended(lock))
            return await asyncio.shield(work)
        finally:
            lock, waiting = self._apps[app]
            if waiting == 1 and not lock.locked():
                del self._apps[app]
            else:
                self._apps[app] = lock, waiting - 1

    def _begin(self, act: Callable[[], T]) -> asyncio.Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="anaphora-bodies")
        self.begun += 1
        if not self._running:
            interval, thresholds = self._usual = sys.getswitchinterval(), gc.get_threshold()
            sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
            if thresholds[0]:  # zero: it is off
                gc.set_threshold(*_YOUNG_OBJECTS)
        self._running += 1
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._threads, context.run, act)

    def _ended(self, lock: asyncio.Lock) -> None:
        self._running -= 1
        if not self._running:
            sys.setswitchinterval(self._usual[0])
            gc.set_threshold(*self._usual[1])
        self._free.release()
        lock.release()

    def close(self) -> None:
        """Waits for running tasks."""
        if self._threads is not None:
            self._threads.shutdown()
