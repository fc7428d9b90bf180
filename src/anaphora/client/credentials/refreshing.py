"""A value that expires, fetched in a thread: cached, and fetched again ahead of its expiry.

Any number of event loops may wait for it; one thread fetches at a time. While a value is valid,
nothing waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from anaphora.errors import AnaphoraError, MissingSecret
from anaphora.redaction import shown_text

T = TypeVar("T")

#: Seconds until a failed or useless refresh is tried again while the value is still valid.
_PAUSE = 30.0


class Fetched(NamedTuple, Generic[T]):
    """A value, and when it expires, in seconds since 1970; None: never."""

    value: T
    expires_at: float | None

    def __repr__(self) -> str:
        return "<Fetched>"


class RefreshedValue(Generic[T]):
    """The current value of `fetch`, which may block. It is fetched again `ahead` seconds before it
    expires, at most at half of its life."""

    def __init__(
        self,
        fetch: Callable[[], Fetched[T]],
        *,
        ahead: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch
        self._ahead = ahead
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Fetched[T] | None = None
        self._due = self._fetched_at = 0.0
        self._running: Future[Fetched[T]] | None = None
        self.history: tuple[T, ...] = ()
        """The current value and the one before, the newest first."""

    async def get(self) -> T:
        current, now = self._current, self._clock()
        if current is not None and now < self._due and _is_valid(current, now):
            return current.value
        running = self._start(now)
        if current is not None and _is_valid(current, now):
            return current.value
        return (await _result_of(running)).value

    def drop(self, value: T) -> bool:
        """Fetches again at the next use, if this is the current value and not a new one."""
        with self._lock:
            current = self._current
            if current is None or current.value is not value:
                return current is not None
            if 0 <= self._clock() - self._fetched_at < _PAUSE:
                return False
            self._current = None
            return True

    def _start(self, now: float) -> Future[Fetched[T]]:
        """The fetch that runs or has just ended, or a new one."""
        with self._lock:
            current = self._current
            if current is not None and now < self._due and _is_valid(current, now):
                ended: Future[Fetched[T]] = Future()
                ended.set_result(current)
                return ended
            if self._running is None:
                running: Future[Fetched[T]] = Future()
                thread = threading.Thread(
                    target=self._run, args=(running,), name="credentials", daemon=True
                )
                thread.start()  # fails if the system has no more threads
                self._running = running
                self._due = now + _PAUSE
            return self._running

    def _run(self, running: Future[Fetched[T]]) -> None:
        try:
            fetched = self._fetch()
        except BaseException as problem:
            with self._lock:
                self._running = None
            running.set_exception(_readable(problem))
            return
        now = self._clock()
        with self._lock:
            self._current, self._running, self._fetched_at = fetched, None, now
            self.history = (fetched.value, *self.history[:1])
            if fetched.expires_at is None:
                self._due = float("inf")
            else:
                left = fetched.expires_at - now
                # A source may return the same value until shortly before its end.
                self._due = max(now + left - min(self._ahead, left / 2), now + min(_PAUSE, left))
        running.set_result(fetched)


def _is_valid(fetched: Fetched[T], now: float) -> bool:
    return fetched.expires_at is None or now < fetched.expires_at


async def _result_of(running: Future[Fetched[T]]) -> Fetched[T]:
    """The result; a waiter that is cancelled leaves the others waiting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def tell(_: Future[Fetched[T]]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish)

    running.add_done_callback(tell)
    await done
    problem = running.exception()
    if problem is not None:
        raise _copied(problem)
    return running.result()


def _readable(problem: BaseException) -> BaseException:
    """The error, or that of an SDK without what it holds, such as the output of a process."""
    if isinstance(problem, AnaphoraError) or not isinstance(problem, Exception):
        return problem
    what = f"{type(problem).__name__}: {shown_text(str(problem))}"[:400]
    return MissingSecret(f"the credentials cannot be read: {what}")


def _copied(problem: BaseException) -> BaseException:
    """The error without its frames; each waiter raises its own."""
    other = type(problem).__new__(type(problem), *problem.args)
    other.__dict__.update(vars(problem))
    return other
