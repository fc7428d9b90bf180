"""Queues operations and writes them in batches: operations that arrive while a batch is written go
into the next one. While calls are running, an operation without a waiting caller is delayed until
another has one, at most some milliseconds, and a hold waits for others if the last batch was just
written.

`BatchQueue` runs in the callers' event loop; a subclass writes: `SqliteCommits` with one commit per
batch, in a thread. If the disk is full or cannot be written, an operation fails, unless it must not
be lost: a settlement is kept and tried again until it is written. If the process ends before that,
the next start finds its hold and settles it at its bound.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from anaphora.audit.group_commit import GroupCommit
from anaphora.errors import StoreUnavailable

from . import Settlement
from .operations import HoldRequest, Operation, Outcome, TableChange
from .schema import described

_log = logging.getLogger("anaphora.daemon")

#: Maximum delay in seconds of an operation without a waiting caller.
_LINGER = 0.01

_Result: TypeAlias = tuple["asyncio.Future[None]", Operation, Outcome]
Apply: TypeAlias = Callable[[Sequence[Operation]], list[Outcome]]

#: Errors of a single operation. All other errors of SQLite may be temporary: a full disk, a
#: read-only file system, another writing process.
_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)

#: Changes nothing.
PROBE = TableChange("UPDATE clock SET latest_day = latest_day", ())


class PendingOperation:
    """A queued operation, and the caller that waits for it."""

    __slots__ = ("operation", "future", "kept")

    def __init__(
        self, operation: Operation, future: asyncio.Future[None] | None, *, kept: bool = False
    ) -> None:
        self.operation = operation
        self.future = future
        self.kept = kept
        """Tried again until it is written, without the caller waiting."""


class BatchQueue:
    """Collects operations for a writer, which begins a batch with `_gathered_with`."""

    gather = 0.008
    """Seconds between batches while calls are running: with more calls, batches are larger."""

    def __init__(self, *, probe: TableChange, on_abandoned: Callable[[HoldRequest], None]) -> None:
        """`probe` is an operation that changes nothing, used to wait for others and to check that
        writing works again. `on_abandoned` is called in the event loop for a hold whose caller was
        cancelled while it was written."""
        self.problem: str | None = None
        """Why the last batch failed; None if it succeeded."""
        self.waiting = 0
        """Kept operations that could not be written yet."""
        self.on_hold_over: Callable[[str], None] | None = None
        """Called by the writer: see `Store.follow_holds`."""
        self._failure_logged = False
        self._probe = probe
        self._on_abandoned = on_abandoned
        self._later: deque[PendingOperation] = deque()
        """Operations without a waiting caller, for the next batch."""
        self._wake_is_due = False
        self._gathered: deque[PendingOperation] = deque()
        """Holds that wait for others."""
        self._gathering: asyncio.TimerHandle | None = None
        self._submitted = 0.0
        """When a hold last woke the writer, by the clock of the event loop."""
        self._open: set[str] = set()
        """Number of holds that are written and not settled."""
        self._busy = False
        self._closed = False

    def _send(self, item: PendingOperation | None) -> None:
        """Gives an operation to the writer, or wakes it. Thread-safe."""
        raise NotImplementedError

    async def commit(self, operation: Operation, *, kept: bool = False) -> None:
        """Returns when the operation is on disk; for a kept one, at the latest after the first
        attempt."""
        if self._closed:
            if kept:
                return
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        pending = PendingOperation(operation, future, kept=kept)
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

    def _gather(self, pending: PendingOperation, loop: asyncio.AbstractEventLoop) -> None:
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
            self._send(None)

    def put(self, operation: Operation) -> None:
        """Queues the operation and returns at once. Never raises."""
        if self._closed:
            return
        self._later.append(PendingOperation(operation, None, kept=True))
        if isinstance(operation, Settlement):
            self._open.discard(operation.hold)
            if not self._open:  # no call is left to wait for
                self._send(None)
                return
        if not self._wake_is_due:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # not in an event loop: called by a finalizer
                self._send(None)
            else:
                self._wake_is_due = True
                loop.call_later(_LINGER, self._wake_up, loop)

    def put_without_waking(self, operation: Operation) -> None:
        """Queues the operation for the next batch, without causing one. Thread-safe."""
        if not self._closed:
            self._later.append(PendingOperation(operation, None, kept=True))

    def _wake_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Writes delayed operations, unless a hold's batch has: then the others came after it."""
        self._wake_is_due = False
        if not self._later:
            return
        wait = self._submitted + _LINGER - loop.time()
        if wait > 0:
            self._wake_is_due = True
            loop.call_later(wait, self._wake_up, loop)
        else:
            self._send(None)

    async def probe(self) -> None:
        """Returns when all queued operations are written. Raises `StoreUnavailable`."""
        await self.commit(self._probe)

    async def flush(self) -> None:
        """Returns when all queued operations have been tried."""
        if self._later or self._busy:
            with suppress(StoreUnavailable):
                await self.commit(self._probe)

    # ── For the writer ───────────────────────────────────────────────────────────────────────────

    def _log_failure(self, reason: str) -> None:
        if not self._failure_logged:
            _log.error("the store cannot be written: %s", reason)
        self._failure_logged = True

    def _log_success(self, batch: Sequence[PendingOperation]) -> None:
        """Called after a failure. A probe alone does not count: a full disk may have room for it,
        but not for the next hold."""
        if self._failure_logged and any(one.operation is not self._probe for one in batch):
            _log.warning("the store can be written again")
            self._failure_logged = False

    def _gathered_with(self, batch: list[PendingOperation]) -> list[PendingOperation]:
        """The sent operations, and those that wait for the next batch."""
        self._busy = True
        for waiting in (self._gathered, self._later):
            while waiting:
                batch.append(waiting.popleft())
        return batch

    def _end_holds(self, results: Iterable[tuple[PendingOperation, Outcome]]) -> None:
        """Reports the ended holds of operations that are durable or refused."""
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

    def _deliver(self, results: Iterable[tuple[PendingOperation, Outcome]]) -> None:
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


class SqliteCommits(BatchQueue):
    """Runs `apply` on batches in its own thread."""

    def __init__(self, apply: Apply, *, on_abandoned: Callable[[HoldRequest], None]) -> None:
        super().__init__(probe=PROBE, on_abandoned=on_abandoned)
        self._apply = apply
        self._kept: list[PendingOperation] = []
        self._thread = GroupCommit[PendingOperation]("anaphora store", self._commit, self._ended)
        self._thread.start()

    def _send(self, item: PendingOperation | None) -> None:
        if item is None:
            self._thread.wake()
        else:
            self._thread.put(item)

    async def close(self) -> None:
        """Writes the queued operations and ends the thread."""
        self._closed = True
        await asyncio.to_thread(self._thread.close)

    def _commit(self, batch: list[PendingOperation]) -> list[PendingOperation] | None:
        """Writes a batch. Returns the operations to try again, or None after a success."""
        batch = self._gathered_with(batch)
        if self.problem is not None:
            batch.append(PendingOperation(PROBE, None))
        self._kept = []
        self._write(batch)
        self.waiting = len(self._kept)
        self._busy = False
        return None if self.problem is None and not self._kept else self._kept

    def _write(self, batch: Sequence[PendingOperation]) -> None:
        if not batch:
            return
        try:
            outcomes = self._apply([one.operation for one in batch])
        except Exception as problem:
            if isinstance(problem, sqlite3.Error | OSError) and not isinstance(problem, _REFUSED):
                self._failed(batch, problem)
            elif len(batch) > 1:  # one that cannot be written must not block the others
                for one in batch:
                    self._write([one])
            else:
                self._refused(batch[0], problem)
        else:
            if self._failure_logged:
                self._log_success(batch)
            self.problem = None
            self._end_holds(zip(batch, outcomes, strict=True))
            self._deliver(zip(batch, outcomes, strict=True))

    def _failed(self, batch: Sequence[PendingOperation], problem: Exception) -> None:
        reason = described(problem)
        self._log_failure(reason)
        self.problem = reason
        self._kept += [one for one in batch if one.kept]
        message = f"the store cannot be written: {reason}"
        self._end_holds((one, StoreUnavailable(message)) for one in batch)
        self._deliver((one, None if one.kept else StoreUnavailable(message)) for one in batch)

    def _refused(self, one: PendingOperation, problem: Exception) -> None:
        name = type(one.operation).__name__
        _log.error("%s was not written: %s: %s", name, type(problem).__name__, problem)
        message = f"the store cannot hold this: {described(problem)}"
        self._end_holds([(one, StoreUnavailable(message))])
        self._deliver([(one, None if one.kept else StoreUnavailable(message))])

    def _ended(self, left: list[PendingOperation], problem: BaseException | None) -> None:
        if problem is not None:
            _log.critical("the store is no longer written", exc_info=problem)
        if left:
            _log.error(
                "settlements that were not written: %d; the next start settles their holds at the"
                " bound",
                len(left),
            )
