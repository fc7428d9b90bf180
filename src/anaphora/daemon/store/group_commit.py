"""The thread that writes a store: what arrives while a commit is under way goes with the next one.
An operation that no caller waits for lingers until there is one, for some milliseconds at most.

An operation that is refused because the disk is full or cannot be written fails, unless it must not
be lost: a settlement is kept, and tried again until it is written. The process may end before that:
then its hold is still there, and the next start settles it at its bound.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias

from anaphora.errors import StoreUnavailable

from .batch import Change, HoldRequest, Operation, Outcome
from .schema import described

_log = logging.getLogger("anaphora.daemon")

#: Operations of one commit at most.
_MOST = 2_000
#: Seconds for which an operation that no caller waits for may wait for others.
_LINGER = 0.01
#: Seconds until operations that are kept are tried again: at first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0

#: Errors of one operation. All others of SQLite may pass: a full disk, a read-only file system,
#: another process that writes.
_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)

#: A write that changes nothing: to wait for, and to find out whether the disk can be written again.
_PROBE = Change("UPDATE clock SET latest_day = latest_day", ())

Apply: TypeAlias = Callable[[Sequence[Operation]], list[Outcome]]
_Result: TypeAlias = tuple["asyncio.Future[None]", Operation, Outcome]


class Pending:
    """An operation on its way to the disk, and the caller that waits for it."""

    __slots__ = ("operation", "future", "kept")

    def __init__(
        self, operation: Operation, future: asyncio.Future[None] | None, *, kept: bool = False
    ) -> None:
        self.operation = operation
        self.future = future
        self.kept = kept
        """Tried again until it is written; the caller does not wait for that."""


class GroupCommit:
    """Runs `apply` on batches, in a thread of its own."""

    def __init__(self, apply: Apply, *, on_abandoned: Callable[[HoldRequest], None]) -> None:
        """`on_abandoned` is called in the event loop for a hold whose caller was cancelled while it
        was written."""
        self.problem: str | None = None
        """Why the last commit failed; None: it did not."""
        self.waiting = 0
        """Operations that could not be written so far, and are kept."""
        self._apply = apply
        self._on_abandoned = on_abandoned
        self._queue: SimpleQueue[Pending | Literal["wake", "stop"]] = SimpleQueue()
        self._later: deque[Pending] = deque()
        """Operations that no caller waits for: they go with the next batch."""
        self._wake_is_due = False
        self._busy = False
        self._kept: list[Pending] = []
        self._wait = _FIRST_WAIT
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="anaphora store", daemon=True)
        self._thread.start()

    async def commit(self, operation: Operation, *, kept: bool = False) -> None:
        """Returns when the operation is on the disk; a kept one also when it was tried."""
        if self._closed:
            if kept:
                return
            raise StoreUnavailable("the store is closed")
        future = asyncio.get_running_loop().create_future()
        self._queue.put(Pending(operation, future, kept=kept))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._abandoned(operation)  # cancelled after the commit, before it could return
            raise

    def put(self, operation: Operation) -> None:
        """Keeps the operation, and returns at once. Never raises."""
        if self._closed:
            return
        self._later.append(Pending(operation, None, kept=True))
        if not self._wake_is_due:
            self._wake_is_due = True
            try:
                asyncio.get_running_loop().call_later(_LINGER, self._queue.put, "wake")
            except RuntimeError:  # not in an event loop: an object is finalised
                self._queue.put("wake")

    async def flush(self) -> None:
        """Returns when all that was put has been tried."""
        if self._later or self._busy:
            with suppress(StoreUnavailable):
                await self.commit(_PROBE)

    async def close(self) -> None:
        """Writes what waits, once more, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put("stop")
        await asyncio.to_thread(self._thread.join)

    # ── In the thread ────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        running = True
        while running:
            batch, running = self._next()
            self._commit(batch)
            self.waiting = len(self._kept)
            self._busy = False
        if self.waiting:
            _log.error(
                "settlements that were not written: %d; the next start settles their holds at the"
                " bound",
                self.waiting,
            )

    def _next(self) -> tuple[list[Pending], bool]:
        """All that waits, and whether more may come."""
        batch, self._kept = self._kept, []
        running = True
        with suppress(Empty):
            failing = self.problem is not None or bool(batch)
            one = self._queue.get(timeout=self._wait if failing else None)
            while True:
                if isinstance(one, Pending):
                    batch.append(one)
                running = one != "stop"
                if not running or len(batch) >= _MOST:
                    break
                one = self._queue.get_nowait()
        self._busy, self._wake_is_due = True, False
        while self._later:
            batch.append(self._later.popleft())
        if self.problem is not None:
            batch.append(Pending(_PROBE, None))
        return batch, running

    def _commit(self, batch: Sequence[Pending]) -> None:
        if not batch:
            return
        try:
            outcomes = self._apply([one.operation for one in batch])
        except Exception as problem:
            if isinstance(problem, sqlite3.Error | OSError) and not isinstance(problem, _REFUSED):
                self._failed(batch, problem)
            elif len(batch) > 1:  # one that cannot be written must not hold up the others
                for one in batch:
                    self._commit([one])
            else:
                self._refused(batch[0], problem)
        else:
            if self.problem is not None:
                _log.warning("the store can be written again")
            self.problem, self._wait = None, _FIRST_WAIT
            self._deliver(zip(batch, outcomes, strict=True))

    def _failed(self, batch: Sequence[Pending], problem: Exception) -> None:
        reason = described(problem)
        if self.problem is None:
            _log.error("the store cannot be written: %s", reason)
        else:
            self._wait = min(self._wait * 2, _LONGEST_WAIT)
        self.problem = reason
        self._kept += [one for one in batch if one.kept]
        message = f"the store cannot be written: {reason}"
        self._deliver((one, None if one.kept else StoreUnavailable(message)) for one in batch)

    def _refused(self, one: Pending, problem: Exception) -> None:
        name = type(one.operation).__name__
        _log.error("%s was not written: %s: %s", name, type(problem).__name__, problem)
        message = f"the store cannot hold this: {described(problem)}"
        self._deliver([(one, None if one.kept else StoreUnavailable(message))])

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

    # ── In the event loop ────────────────────────────────────────────────────────────────────────

    def _wake(self, results: Sequence[_Result]) -> None:
        for future, operation, outcome in results:
            if future.done():  # the caller was cancelled
                if outcome is None:
                    self._abandoned(operation)
            elif outcome is None:
                future.set_result(None)
            else:
                future.set_exception(outcome)

    def _abandoned(self, operation: Operation) -> None:
        if isinstance(operation, HoldRequest):
            self._on_abandoned(operation)
