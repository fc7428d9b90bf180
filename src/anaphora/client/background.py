"""An event loop in a background thread, and the calls that the synchronous client makes in it."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
)
from concurrent.futures import Future, wait
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from anaphora.errors import InvalidRequest, Transport
from anaphora.values import Event, Notice, ToolResult

from .pending import Pending, call_site, waiting_site
from .response import Parsed, Response
from .session import Run, RunResult, Summary, SummaryResult
from .turn import Turn

if TYPE_CHECKING:
    from .fan_out import FanOut, FanOutItem, FanOutProgress, FanOutResult  # noqa: F401

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)  # noqa: PLC0105
Result = TypeVar("Result", covariant=True)  # noqa: PLC0105


class Background:
    """An event loop in a background thread, usable from any number of threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._closed = False
        # Held so that no call begins after `close`, which would not end it. Reentrant, because the
        # garbage collector may close a client in a thread that begins a call.
        self._beginning = threading.RLock()
        self._tasks: set[asyncio.Task[Any]] = set()
        # A daemon, so that a script can end without closing its client.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends, or the system has no more threads
            self._loop.close()
            raise

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Calls `make` in the loop and returns the result of its awaitable. An interrupted wait,
        such as by Ctrl-C, cancels the call, and is raised once that has ended."""
        done, task = self._begin(make)
        try:
            return _result(done)
        except BaseException:
            self._end(done, task)
            raise

    async def call_from_loop(self, make: Callable[[], Awaitable[T]]) -> T:
        """Like `call`, from another event loop, without blocking it. A cancelled wait cancels the
        call, and is raised once that has ended."""
        done, task = self._begin(make)
        result = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: task.result().cancel())
            await asyncio.wait([result])
            result.exception()  # it was retrieved
            raise

    def do(self, act: Callable[[], T]) -> T:
        """The result of a short function that is called in the loop."""

        async def once() -> T:
            return act()

        return self.call(once)

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
        """The items of an async iterator, one at a time on request. If iteration stops early, the
        call is cancelled. One task iterates over all items, because time limits belong to a
        task."""
        items: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
        done, task, request_next = self._begin_iterating(make, items.put)
        try:
            while True:
                request_next()
                event = items.get()
                if event is None:
                    _result(done)
                    return
                yield event[0]
        finally:
            self._end(done, task)

    def iterate_call(
        self, call: Pending[Any], make: Callable[[], AsyncIterator[T]]
    ) -> Generator[T, None, None]:
        """Like `iterate`; a call that is refused, for example by a closed client, does not warn."""
        try:
            yield from self.iterate(make)
        except InvalidRequest:
            call.close()
            raise

    async def iterate_from_loop(
        self, make: Callable[[], AsyncIterator[T]]
    ) -> AsyncGenerator[T, None]:
        """Like `iterate`, from another event loop, without blocking it."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

        def put(item: tuple[T] | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(items.put_nowait, item)

        done, task, request_next = self._begin_iterating(make, put)
        try:
            while True:
                request_next()
                event = await items.get()
                if event is None:
                    _result(done)
                    return
                yield event[0]
        finally:
            if not done.done():
                self._loop.call_soon_threadsafe(lambda: task.result().cancel())
                await asyncio.wait([ended := asyncio.wrap_future(done)])
                ended.exception()  # it was retrieved

    def _begin_iterating(
        self, make: Callable[[], AsyncIterator[T]], put: Callable[[tuple[T] | None], None]
    ) -> tuple[Future[None], Future[asyncio.Task[None]], Callable[[], None]]:
        """Begins a call that passes an item to `put` each time the returned function is called,
        and None at its end."""
        wanted = asyncio.Semaphore(0)

        async def iterate() -> None:
            events = make()
            async with aclosing(events):  # type: ignore[type-var]
                await wanted.acquire()
                async for event in events:
                    put((event,))
                    await wanted.acquire()

        def request_next() -> None:
            with suppress(RuntimeError):  # closed meanwhile: the call has ended
                self._loop.call_soon_threadsafe(wanted.release)

        done, task = self._begin(iterate)
        done.add_done_callback(lambda _: put(None))
        return done, task, request_next

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Cancels all calls, awaits `last`, and ends the thread. May be called again."""
        if os.getpid() != self._process:
            return  # after a fork, thread and connections are the parent's
        if threading.current_thread() is self._thread:
            # The garbage collector may run in this thread.
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

        with self._beginning:
            if self._closed:
                return
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
                "an async tool must use the async client: this call would never return"
            )
        if os.getpid() != self._process:
            raise InvalidRequest(
                "the client was made before this process was forked, and its thread and connections"
                " are the parent's; make one in each process, for example in gunicorn's post_fork"
                " or on Celery's worker_process_init",
                path="client",
            )
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

        token = waiting_site.set(call_site())
        try:
            with self._beginning:
                if self._closed:
                    raise InvalidRequest("the client is closed")
                self._loop.call_soon_threadsafe(begin)  # in a copy of this context
        finally:
            waiting_site.reset(token)
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


# ── Calls of the synchronous client ──────────────────────────────────────────────────────────────


class SyncCall(Generic[Item, Result]):
    """A call that is made when it is iterated over, or its result is requested; once."""

    def __init__(self, background: Background, client: object, call: Pending[Result]) -> None:
        """The `client` is kept until the call is over: it closes the loop when it is collected."""
        self._background = background
        self._client = client
        self._call = call
        call.made_by_sync_client(call_site())

    def __iter__(self) -> Generator[Item, None, None]:
        return self._background.iterate_call(self._call, self._call.__aiter__)

    def _result(self) -> Result:
        try:
            return self._background.call(lambda: self._call)
        except InvalidRequest:
            self._call.close()  # it was refused: no warning
            raise

    def _text(self) -> SyncTextStream:
        return SyncTextStream(self._background, self._client, self._call)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._call)[1:]}"


class SyncTurn(SyncCall[Event, Response[Parsed]], Generic[Parsed]):
    """`Turn` without async."""

    _call: Turn[Parsed]

    def __enter__(self) -> Generator[Event, None, None]:
        """The events; the call is cancelled when the block is left before their end."""
        self._events = iter(self)
        return self._events

    def __exit__(self, *exc_info: object) -> None:
        self._events.close()

    def result(self) -> Response[Parsed]:
        """The whole response, like awaiting a `Turn`."""
        return self.response or self._result()

    @property
    def text(self) -> SyncTextStream:
        """Only the pieces of text, as they arrive: `for piece in chat.send("…").text`."""
        return self._text()

    @property
    def response(self) -> Response[Parsed] | None:
        return self._call.response


class SyncRun(SyncCall[Event | ToolResult, RunResult[Parsed]], Generic[Parsed]):
    """`Run` without async."""

    _call: Run[Parsed]

    def result(self) -> RunResult[Parsed]:
        """The outcome, like awaiting a `Run`."""
        return self._call.result or self._result()

    @property
    def text(self) -> SyncTextStream:
        """The pieces of text of all turns, as they arrive."""
        return self._text()


class SyncSummary(SyncCall[Event, SummaryResult]):
    """`Summary` without async."""

    _call: Summary

    def result(self) -> SummaryResult:
        """The outcome, like awaiting a `Summary`."""
        return self._call.result or self._result()

    @property
    def text(self) -> SyncTextStream:
        """The pieces of the summary, as they arrive."""
        return self._text()


class SyncFanOut(SyncCall["FanOutItem[Parsed]", "FanOutResult[Parsed]"], Generic[Parsed]):
    """`FanOut` without async."""

    _call: FanOut[Parsed]

    def result(self) -> FanOutResult[Parsed]:
        """All items in the order of the prompts, like awaiting a `FanOut`."""
        return self._call.result or self._result()

    @property
    def progress(self) -> FanOutProgress:
        """The progress so far; at the end, the totals."""
        return self._call.progress

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._call.notices


class SyncTextStream(Iterator[str]):
    """The text of a turn, or of all turns of a run, in pieces.

    As a context manager it cancels the call when the block is left before its end.
    """

    def __init__(self, background: Background, client: object, call: Pending[Any]) -> None:
        self._background = background
        self._client = client
        self._call = call
        self._pieces: Generator[str, None, None] | None = None

    def __next__(self) -> str:
        if self._pieces is None:
            stream = self._call.text
            self._pieces = self._background.iterate_call(self._call, stream.__aiter__)
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._pieces is not None:
            self._pieces.close()

    def __repr__(self) -> str:
        return "<SyncTextStream: iterate over it, or use result().text>"
