"""Operations on their way to a store, in batches: what arrives while a batch is written goes with
the next one. While calls are under way, an operation that no caller waits for lingers until there
is one, for some milliseconds at most, and a hold waits for others where the last batch was written
a moment ago.

This half runs in the event loop of the callers; a subclass writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias

from anaphora.errors import StoreUnavailable

from . import Settlement
from .batch import Change, HoldRequest, Operation, Outcome

_log = logging.getLogger("anaphora.daemon")

#: Operations of one batch at most.
_MOST = 2_000
#: Seconds for which an operation that no caller waits for may wait for others.
_LINGER = 0.01

_Result: TypeAlias = tuple["asyncio.Future[None]", Operation, Outcome]
Signal: TypeAlias = Literal["wake", "stop"]


class Pending:
    """An operation on its way to the store, and the caller that waits for it."""

    __slots__ = ("operation", "future", "kept")

    def __init__(
        self, operation: Operation, future: asyncio.Future[None] | None, *, kept: bool = False
    ) -> None:
        self.operation = operation
        self.future = future
        self.kept = kept
        """Tried again until it is written; the caller does not wait for that."""


class BatchQueue:
    """Collects operations for a writer, which takes them with `_take`."""

    gather = 0.008
    """Seconds between two batches while calls are under way: the more there are, the larger a
    batch."""

    def __init__(self, *, probe: Change, on_abandoned: Callable[[HoldRequest], None]) -> None:
        """`probe` changes nothing: to wait for, and to find out whether writing works again.
        `on_abandoned` is called in the event loop for a hold whose caller was cancelled while it
        was written."""
        self.problem: str | None = None
        """Why the last batch failed; None: it did not."""
        self.waiting = 0
        """Operations that could not be written so far, and are kept."""
        self.on_hold_over: Callable[[str], None] | None = None
        """Called by the writer: see `Store.follow_holds`."""
        self._failure_logged = False
        self._probe = probe
        self._on_abandoned = on_abandoned
        self._queue: SimpleQueue[Pending | Signal] = SimpleQueue()
        self._later: deque[Pending] = deque()
        """Operations that no caller waits for: they go with the next batch."""
        self._wake_is_due = False
        self._gathered: deque[Pending] = deque()
        """Holds that wait for others."""
        self._gathering: asyncio.TimerHandle | None = None
        self._submitted = 0.0
        """When a hold last woke the writer, by the clock of the event loop."""
        self._open: set[str] = set()
        """Holds that are written, and not settled."""
        self._busy = False
        self._closed = False

    def _send(self, item: Pending | Signal) -> None:
        """Gives an operation to the writer, or wakes it. Called from any thread."""
        self._queue.put(item)

    async def commit(self, operation: Operation, *, kept: bool = False) -> None:
        """Returns when the operation is on the disk; a kept one also when it was tried."""
        if self._closed:
            if kept:
                return
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        pending = Pending(operation, future, kept=kept)
        if isinstance(operation, HoldRequest):
            self._gather(pending, loop)
        else:
            if isinstance(operation, Settlement):
                self._open.discard(operation.hold)
            self._send(pending)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._abandoned(operation)  # cancelled after the commit, before it could return
            raise

    def _gather(self, pending: Pending, loop: asyncio.AbstractEventLoop) -> None:
        """Submits a hold, now or together with others."""
        self._gathered.append(pending)
        if self._gathering is not None:
            return
        wait = self._submitted + self.gather - loop.time() if self._open else 0.0
        if wait <= 0:
            self._submit(loop)
        else:
            self._gathering = loop.call_later(wait, self._submit, loop)

    def _submit(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._submitted = loop.time()
        if self._gathered:
            self._send("wake")

    def put(self, operation: Operation) -> None:
        """Keeps the operation, and returns at once. Never raises."""
        if self._closed:
            return
        self._later.append(Pending(operation, None, kept=True))
        if isinstance(operation, Settlement):
            self._open.discard(operation.hold)
            if not self._open:  # no call is left to wait for
                self._send("wake")
                return
        if not self._wake_is_due:
            try:
                asyncio.get_running_loop().call_later(_LINGER, self._wake_up)
            except RuntimeError:  # not in an event loop: an object is finalised
                self._send("wake")
            else:
                self._wake_is_due = True

    def put_quietly(self, operation: Operation) -> None:
        """Keeps the operation for the next batch, whenever that is. From any thread."""
        if not self._closed:
            self._later.append(Pending(operation, None, kept=True))

    def _wake_up(self) -> None:
        """Writes what has waited; mostly it went with a hold meanwhile."""
        self._wake_is_due = False
        if self._later:
            self._send("wake")

    async def flush(self) -> None:
        """Returns when all that was put has been tried."""
        if self._later or self._busy:
            with suppress(StoreUnavailable):
                await self.commit(self._probe)

    # ── For the writer ───────────────────────────────────────────────────────────────────────────

    def _log_failure(self, reason: str) -> None:
        if not self._failure_logged:
            _log.error("the store cannot be written: %s", reason)
        self._failure_logged = True

    def _log_success(self, batch: Sequence[Pending]) -> None:
        """After a failure. A probe alone does not count: a disk that is full may have room for it,
        and none for the next hold."""
        if self._failure_logged and any(one.operation is not self._probe for one in batch):
            _log.warning("the store can be written again")
            self._failure_logged = False

    def _take(self, first: Pending | Signal | None) -> tuple[list[Pending], bool]:
        """All that waits, beginning with what was taken from the queue; whether more may come."""
        batch: list[Pending] = []
        running = True
        with suppress(Empty):
            one = self._queue.get_nowait() if first is None else first
            while True:
                if isinstance(one, Pending):
                    batch.append(one)
                running = one != "stop"
                if not running or len(batch) >= _MOST:
                    break
                one = self._queue.get_nowait()
        self._busy = True
        for waiting in (self._gathered, self._later):
            while waiting:
                batch.append(waiting.popleft())
        return batch, running

    def _end_holds(self, results: Iterable[tuple[Pending, Outcome]]) -> None:
        """Of operations that are durable, or refused."""
        over = self.on_hold_over
        if over is None:
            return
        for one, outcome in results:
            operation = one.operation
            if isinstance(operation, Settlement):
                if outcome is None:
                    over(operation.hold)
            elif isinstance(operation, HoldRequest) and outcome is not None:
                over(operation.hold.id)

    def _deliver(self, results: Iterable[tuple[Pending, Outcome]]) -> None:
        """Wakes the callers, with one call for each event loop."""
        loops: dict[asyncio.AbstractEventLoop, list[_Result]] = {}
        for one, outcome in results:
            future, one.future = one.future, None
            if future is not None:
                loops.setdefault(future.get_loop(), []).append((future, one.operation, outcome))
        for loop, own in loops.items():
            with suppress(RuntimeError):  # the loop has ended, and its callers with it
                loop.call_soon_threadsafe(self._wake, own)

    def _wake(self, results: Sequence[_Result]) -> None:
        for future, operation, outcome in results:
            if future.done():  # the caller was cancelled
                if outcome is None:
                    self._abandoned(operation)
            elif outcome is None:
                future.set_result(None)
                if isinstance(operation, HoldRequest):
                    self._open.add(operation.hold.id)
            else:
                future.set_exception(outcome)

    def _abandoned(self, operation: Operation) -> None:
        if isinstance(operation, HoldRequest):
            self._on_abandoned(operation)
