"""Calls whose app stops waiting before the bill arrives: it disconnects, cancels, times out, or its
token is revoked.

The app's request ends at once. If the provider continues and bills, the answer is read on to its
usage with the hold open; otherwise the connection is closed. So each call runs in its own task, for
which the app's request waits:

    an app's request ── WaitedCall.run ──▶ the task of the call
                     ◀── the result; or the app leaves, and the task goes on in `ReadOnCalls`
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from anaphora.client.failures import log
from anaphora.daemon.access.checks import CallSlots
from anaphora.errors import AnaphoraError, Timeout

from .call import AppCall
from .pipeline import CallPipeline
from .steps.send import seconds_to_read_on

T = TypeVar("T")

MOST_READ_ON = 16
"""Maximum number of an app's calls that are read on at the same time."""

#: Seconds between cancellations of calls that are read on.
_CLOSE_SECONDS = 1.0

_log = logging.getLogger("anaphora.daemon")


class ReadOnCalls:
    """The calls whose answers are read on after their apps have left."""

    def __init__(self) -> None:
        self.slots: CallSlots | None = None
        """Counts them as running calls."""
        self._counts: Counter[str] = Counter()
        self._reading: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[Any]] = set()
        self._stopped = False

    @property
    def count(self) -> int:
        return self._counts.total()

    @property
    def by_app(self) -> Mapping[str, int]:
        return self._counts

    def takes(self, app: str) -> bool:
        """Whether another call of an app can be read on."""
        return not self._stopped and self._counts[app] < MOST_READ_ON

    def add(self, app: str, task: asyncio.Task[Any], seconds: float) -> None:
        """Reads a call on for at most `seconds`."""
        release = None if self.slots is None else self.slots.keep(app)
        timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
        self._counts[app] += 1

        def ended(_: asyncio.Task[Any]) -> None:
            timer.cancel()
            self._reading.discard(task)
            self._counts[app] -= 1
            if not self._counts[app]:
                del self._counts[app]
            if release is not None:
                release()

        self._reading.add(task)
        task.add_done_callback(ended)

    def cut(self, task: asyncio.Task[Any]) -> None:
        """Closes the connection of a call to its provider."""
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.cancel()

    def stop(self) -> None:
        """Cancels all calls that are read on and accepts no more. They are charged without a
        bill."""
        self._stopped = True
        if self.count:
            _log.warning("%d calls are no longer read on; charged without their bills", self.count)
        for task in self._reading:
            task.cancel()

    async def close(self) -> None:
        """Stops, and returns when all are settled."""
        self.stop()
        while tasks := self._reading | self._closing:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for task in self._reading:  # one may have been added meanwhile
                task.cancel()


class WaitedCall:
    """One call in its own task, and the app that waits for it."""

    def __init__(
        self, calls: ReadOnCalls, pipeline: CallPipeline, call: AppCall, *, reading: bool
    ) -> None:
        self._calls = calls
        self._pipeline = pipeline
        self._call = call
        call.leave = self.leave
        self.reading = reading
        """The task waits for the provider, not for the app."""
        self.is_left = self.reads_on = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T | None]) -> T:
        """The result of `work`. If cancelled, the app has left."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        self._task = loop.create_task(self._drive(work))
        try:
            result: T = await waiting
            return result
        except asyncio.CancelledError as problem:
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # marks the exception as retrieved
            self._task.add_done_callback(lambda _: work.close())  # if it never began
            self._leave(problem)
            raise
        finally:
            self._waiting = self._task = None
            del waiting  # breaks a cycle: its error's traceback refers to this frame

    async def _drive(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await work
        except BaseException as problem:
            self._fail(problem)
        else:
            if (waiting := self._waiting) is not None and not waiting.done():
                waiting.set_result(result)
        finally:
            self._call.leave = None
            self._pipeline.behind(self._call)  # the app is woken first

    def _fail(self, problem: BaseException) -> None:
        if not isinstance(problem, Exception | asyncio.CancelledError):
            raise problem
        if not self.is_left:
            self._tell(problem)
        elif isinstance(problem, Exception):
            self.note(problem)

    def note(self, problem: Exception) -> None:
        """Logs an unexpected failure after the app has left. Expected ones are in the ledger and
        the audit log."""
        if not isinstance(problem, AnaphoraError):
            log(logging.ERROR, f"{type(problem).__name__} after the app had gone", problem)

    def _tell(self, problem: BaseException) -> None:
        """Ends the app's waiting with an error."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if isinstance(problem, asyncio.CancelledError):
            waiting.cancel()
        else:
            waiting.set_exception(problem)

    def _leave(self, problem: BaseException) -> None:
        """The app has gone."""
        task = self._task
        if task is None or task.done() or self.is_left:
            return
        if not self.leave(problem):
            self.is_left = True
            self._calls.cut(task)
        elif not self.reading:
            task.cancel()  # it waits for the app

    def leave(self, problem: BaseException) -> bool:
        """Whether the answer is read on. If so, the app gets the error now."""
        if self.is_left:
            return self.reads_on
        call, task = self._call, self._task
        if task is None or not self._calls.takes(call.app.id):
            return False
        seconds = seconds_to_read_on(call)
        if not seconds:
            return False
        self.is_left = self.reads_on = True
        call.left = Timeout if isinstance(problem, Timeout) else asyncio.CancelledError
        self._tell(problem)
        self._calls.add(call.app.id, task, seconds)
        return True
