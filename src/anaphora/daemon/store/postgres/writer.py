"""Writes batches of operations to PostgreSQL, one at a time, over one connection.

While PostgreSQL is unreachable, holds fail at once, and settlements are kept in memory and in a
journal. A hold with an unknown outcome is released, since its caller was told that it failed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from anaphora.audit.group_commit import MOST_ITEMS
from anaphora.daemon.store import Settlement
from anaphora.daemon.store.batch_queue import BatchQueue, PendingOperation
from anaphora.daemon.store.operations import HoldRequest, Operation, Outcome, TableChange, corrects
from anaphora.daemon.store.tables import ADD_HANDLE
from anaphora.errors import GrantExceeded, StoreUnavailable
from anaphora.postgres.connection import UNREACHABLE, described, is_data_error
from anaphora.postgres.lane import Lane

from .epoch import Epoch
from .journal import SettlementJournal
from .statements import FENCED, write

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

_log = logging.getLogger("anaphora.daemon")

#: Seconds after which a statement without an answer counts as failed for its callers, and after
#: which its connection is dropped.
PATIENCE, STATEMENT_SECONDS = 1.0, 5.0
#: Seconds until kept operations are tried again: first and maximum.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0
#: Retries of a batch if the node was fenced or two batches conflicted.
_ATTEMPTS = 4
_TRY_AGAIN = (FENCED, "40P01", "40001")

_PROBE = TableChange("SELECT 1", ())


class BatchWriter(BatchQueue):
    """Runs in its own task, in the callers' event loop."""

    gather = 0.004  # a statement takes some milliseconds, during which more operations arrive

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch | None,
        journal: SettlementJournal | None,
        *,
        release: Callable[[HoldRequest], None],
    ) -> None:
        """`release` settles a hold for which nothing was sent."""
        super().__init__(probe=_PROBE, on_abandoned=release)
        self._lane = lane
        self._epoch = epoch
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[PendingOperation] = SimpleQueue()
        self._event = asyncio.Event()
        self._kept: list[PendingOperation] = []
        self._journalled: set[tuple[str, str]] = set()
        """Holds and kinds of the settlements in the journal."""
        self._wait = _FIRST_WAIT
        self._next_attempt = 0.0
        self._sent = False
        self._task = self._loop.create_task(self._run(), name="anaphora store")

    def replay(self) -> int:
        """Queues what an earlier process left in the journal for the next batch."""
        found = self._journal.read() if self._journal is not None else []
        self._kept += [PendingOperation(one, None, kept=True) for one in found]
        self._journalled.update((one.hold, one.kind) for one in found)
        self.waiting = len(self._kept)
        return len(found)

    def check_epoch(self) -> None:
        """Called if this node may have been declared dead: the next batch finds out."""
        self.put(_PROBE)

    async def close(self) -> None:
        """Tries once more to write the queued operations."""
        self._closed = True
        self._event.set()
        await asyncio.wait({self._task})
        await self._lane.close()
        if self._journal is not None:
            self._journal.close()

    def _send(self, item: PendingOperation | None) -> None:
        if item is not None:
            self._queue.put(item)
        try:
            mine = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            mine = False
        if mine:
            self._event.set()
        else:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._event.set)

    # ── The task ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        running = True
        while running:
            batch, running = await self._next()
            try:
                if self.problem is not None and running and not self._is_due():
                    await self._fail(batch, self.problem)
                else:
                    kept, self._kept = self._kept, []
                    batch = [*kept, *batch]
                    if self.problem is not None:
                        batch.append(PendingOperation(_PROBE, None))
                    await self._write(batch)
            except Exception as problem:  # never ends the task: callers wait for it
                _log.exception("the store failed")
                await self._fail(batch, type(problem).__name__)
            self.waiting = len(self._kept)
            self._busy = False
        if self.waiting:
            _log.error(
                "settlements that are not in PostgreSQL: %d; %s", self.waiting,
                "the next start of this node writes them" if self._journalled
                else "their holds are charged at the bound",
            )  # fmt: skip

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_attempt

    async def _next(self) -> tuple[list[PendingOperation], bool]:
        if self.problem is not None or self._kept:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._next_attempt - time.monotonic(), 0.0)):
                    await self._event.wait()
        else:
            await self._event.wait()
        return self._take_all()

    def _take_all(self) -> tuple[list[PendingOperation], bool]:
        """All queued operations, and whether more may come. The rest of a very long queue wakes the
        task again."""
        self._event.clear()
        batch = [self._queue.get_nowait() for _ in range(min(self._queue.qsize(), MOST_ITEMS))]
        if not self._queue.empty():
            self._event.set()
        return self._gathered_with(batch), not (self._closed and self._queue.empty())

    async def _write(self, batch: Sequence[PendingOperation], *, is_last: bool = True) -> None:
        """`is_last`: all operations taken from `_kept` are in this or earlier batches."""
        if not batch:
            return
        self._sent = False
        statement = self._loop.create_task(self._apply([one.operation for one in batch]))
        if not (await asyncio.wait({statement}, timeout=PATIENCE))[0]:
            await self._stalled(statement, batch)
        problem = statement.exception()
        if problem is None:
            await self._written(batch, statement.result(), is_last=is_last)
        elif not is_data_error(problem):
            self._wait = min(self._wait * 2, _LONGEST_WAIT) if self.problem else _FIRST_WAIT
            self._next_attempt = time.monotonic() + self._wait
            if self._sent:
                self._release(batch)
            if not isinstance(problem, StoreUnavailable):
                _log.error("the store failed", exc_info=problem)
                self._lane.drop()
            await self._fail(batch, described(problem))
        elif len(batch) > 1:  # one that cannot be written must not block the others
            for one in batch:
                await self._write([one], is_last=one is batch[-1])
        else:
            self._refused(batch[0], problem)

    async def _stalled(
        self, statement: asyncio.Task[list[Outcome]], batch: Sequence[PendingOperation]
    ) -> None:
        """Fails the callers while the statement is still running, including new ones."""
        problem = f"{self._lane.address}: no answer for {PATIENCE:g} s"
        await self._fail(batch, problem, keep=False)
        while not statement.done():
            woken = self._loop.create_task(self._event.wait())
            await asyncio.wait({statement, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            await self._fail(self._take_all()[0], problem)
        if self._closed:
            self._event.set()

    async def _apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        """If it raises `StoreUnavailable`, any part may have been applied; with another error,
        nothing was."""
        settlements = _settlements(operations)
        requests = [one for one in operations if isinstance(one, HoldRequest)]
        changes = [one for one in operations if isinstance(one, TableChange) and one is not _PROBE]
        failed: dict[int, Outcome] = {}
        async with self._lane.connection() as connection:
            self._sent = bool(requests)
            refused = await self._write_ledger(connection, settlements, requests)
            for sql in dict.fromkeys(one.sql for one in changes):
                same = [one for one in changes if one.sql == sql]
                if sql == ADD_HANDLE:  # nodes that add the same rows lock them in the same order
                    same.sort(key=lambda one: str(one.values[1]))
                failed |= await self._change(connection, sql, same)
        return [
            refused.get(one.hold.id) if isinstance(one, HoldRequest) else failed.get(id(one))
            for one in operations
        ]

    async def _write_ledger(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        requests: Sequence[HoldRequest],
    ) -> dict[str, GrantExceeded]:
        for attempt in itertools.count(1):
            node, lane = (None, 0) if self._epoch is None else (self._epoch.id, self._epoch.lane)
            try:
                return await write(
                    connection, node, lane, settlements, requests, timeout=STATEMENT_SECONDS
                )
            except Exception as problem:
                state = getattr(problem, "sqlstate", None)
                if state not in _TRY_AGAIN or attempt == _ATTEMPTS:
                    raise
                if state == FENCED and self._epoch is not None:
                    await self._epoch.connect(connection)
        raise AssertionError

    async def _change(
        self, connection: Connection, sql: str, changes: Sequence[TableChange]
    ) -> dict[int, Outcome]:
        """Why changes were refused, by their identity."""
        try:
            rows = [one.values for one in changes]
            await connection.executemany(sql, rows, timeout=STATEMENT_SECONDS)
        except Exception as problem:
            if not is_data_error(problem):
                raise
            if len(changes) == 1:
                return {id(changes[0]): _refusal(changes[0], problem)}
            failed: dict[int, Outcome] = {}
            for one in changes:
                failed |= await self._change(connection, sql, [one])
            return failed
        return {}

    # ── Outcomes ─────────────────────────────────────────────────────────────────────────────────

    async def _written(
        self, batch: Sequence[PendingOperation], outcomes: Sequence[Outcome], *, is_last: bool
    ) -> None:
        self._log_success(batch)
        self.problem, self._wait, self._next_attempt = None, _FIRST_WAIT, 0.0
        if is_last and self._journalled and not self._kept and self._journal is not None:
            await asyncio.to_thread(self._journal.clear)
            self._journalled.clear()
        for one, outcome in zip(batch, outcomes, strict=True):
            if one.future is None and outcome is None:
                self._abandoned(one.operation)  # a hold whose caller was told that it failed
        self._end_holds(zip(batch, outcomes, strict=True))
        self._deliver(zip(batch, outcomes, strict=True))

    async def _fail(
        self, batch: Sequence[PendingOperation], reason: str, *, keep: bool = True
    ) -> None:
        """`keep`: keeps it for the next attempt; not if a statement that writes it is still
        running."""
        self._log_failure(reason)
        self.problem = reason
        message = f"the store cannot be written: {reason}"
        self._end_holds((one, StoreUnavailable(message)) for one in batch)
        self._deliver(
            (one, StoreUnavailable(message, public=UNREACHABLE)) for one in batch if not one.kept
        )
        kept = [one for one in batch if one.kept and one.operation is not _PROBE]
        if keep:
            self._kept += kept
            self.waiting = len(self._kept)
        await self._record([one.operation for one in kept])
        self._deliver((one, None) for one in kept)

    async def _record(self, operations: Sequence[Operation]) -> None:
        """Writes settlements to the journal that are not there yet."""
        new = [
            one
            for one in operations
            if isinstance(one, Settlement) and (one.hold, one.kind) not in self._journalled
        ]
        if not new or self._journal is None:
            return
        try:
            await asyncio.to_thread(self._journal.append, new)
        except OSError as problem:
            _log.error(
                "%s cannot be written: %s; if this node ends before PostgreSQL is back, %d calls"
                " are charged at their bound",
                self._journal.path, problem.strerror, len(new),
            )  # fmt: skip
        else:
            self._journalled.update((one.hold, one.kind) for one in new)

    def _release(self, batch: Sequence[PendingOperation]) -> None:
        """Releases holds of which it is unknown whether they were taken."""
        for one in batch:
            self._abandoned(one.operation)

    def _refused(self, one: PendingOperation, problem: BaseException) -> None:
        outcome = _refusal(one.operation, problem)
        self._end_holds([(one, outcome)])
        self._deliver([(one, None if one.kept else outcome)])


def _refusal(operation: Operation, problem: BaseException) -> StoreUnavailable:
    # Driver errors quote the values and are not shown; server errors have a severity.
    is_servers = getattr(problem, "severity", None) is not None
    reason = described(problem) if is_servers else type(problem).__name__
    _log.error("%s was not written: %s", type(operation).__name__, reason)
    return StoreUnavailable(f"the store cannot hold this: {reason}")


def _settlements(operations: Sequence[Operation]) -> list[Settlement]:
    """The settlements, one per hold."""
    found: dict[str, Settlement] = {}
    for one in operations:
        if isinstance(one, Settlement) and (
            one.hold not in found or corrects(one, found[one.hold].kind)
        ):
            found[one.hold] = one
    return list(found.values())
