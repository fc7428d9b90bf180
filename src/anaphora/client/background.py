"""One thread with one event loop: async things for those who cannot await, in scripts, notebooks,
or inside of a loop that is running already."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import aclosing
from typing import Any, TypeVar

from anaphora.errors import InvalidRequest, Transport

T = TypeVar("T")


class Background:
    """Runs what it is given in a loop of its own. Any thread may ask, several at once."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        # A daemon: a script that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of what `make` gives to be awaited; both happen in the loop.

        Whatever interrupts the wait, Ctrl-C above all, cancels the call, and goes on when that has
        ended.
        """
        done, task = self._begin(make)
        try:
            return _result(done)
        except BaseException:
            self._end(done, task)
            raise

    def do(self, act: Callable[[], T]) -> T:
        """The result of something short that must not happen beside what the loop does."""

        async def once() -> T:
            return act()

        return self.call(once)

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
        """What `make` gives, one by one as it is asked for. Left early, it is cancelled.

        One task goes through all of it, as its time limits demand.
        """
        given: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
        wanted = asyncio.Semaphore(0)

        async def go_through() -> None:
            events = make()
            async with aclosing(events):  # type: ignore[type-var]
                await wanted.acquire()
                async for event in events:
                    given.put((event,))
                    await wanted.acquire()

        done, task = self._begin(go_through)
        done.add_done_callback(lambda _: given.put(None))
        try:
            while True:
                self._loop.call_soon_threadsafe(wanted.release)
                event = given.get()
                if event is None:
                    _result(done)
                    return
                yield event[0]
        finally:
            self._end(done, task)

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Cancels what is under way, does `last`, and ends the thread. May be called again."""
        if self._closed:
            return
        if threading.current_thread() is self._thread:
            # The garbage collector may find a forgotten client anywhere.
            threading.Thread(target=self.close, args=(last,)).start()
            return

        async def finish() -> None:
            others = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await last()
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()

        done, _ = self._begin(finish)
        self._closed = True
        try:
            _result(done)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _begin(self, make: Callable[[], Awaitable[T]]) -> tuple[Future[T], Future[asyncio.Task[T]]]:
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "an async tool has to use the async client: this would wait for ever"
            )
        if self._closed:
            raise InvalidRequest("the client is closed")
        done: Future[T] = Future()
        begun: Future[asyncio.Task[T]] = Future()

        async def run() -> T:
            return await make()

        def begin() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda task: _hand_over(task, done))
            begun.set_result(task)

        self._loop.call_soon_threadsafe(begin)
        return done, begun

    def _end(self, done: Future[Any], begun: Future[asyncio.Task[Any]]) -> None:
        """Cancels a call that has not ended, and waits until it has."""
        if not done.done():
            self._loop.call_soon_threadsafe(lambda: begun.result().cancel())
            wait([done])


def _hand_over(task: asyncio.Task[T], done: Future[T]) -> None:
    if task.cancelled():
        error = Transport("the call was cancelled: the client was closed", phase="send")
        error.retryable = False
        done.set_exception(error)
    elif (problem := task.exception()) is not None:
        done.set_exception(problem)
    else:
        done.set_result(task.result())


def _result(done: Future[T]) -> T:
    try:
        return done.result()
    finally:
        # The error's traceback would keep this frame, and the frame the error.
        del done
