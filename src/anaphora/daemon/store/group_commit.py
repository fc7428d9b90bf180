"""The thread that writes a store in SQLite, with a commit for each batch.

An operation that is refused because the disk is full or cannot be written fails, unless it must not
be lost: a settlement is kept, and tried again until it is written. The process may end before that:
then its hold is still there, and the next start settles it at its bound.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty
from typing import TypeAlias

from anaphora.errors import StoreUnavailable

from .batch import Change, HoldRequest, Operation, Outcome
from .batch_queue import BatchQueue, Pending
from .schema import described

_log = logging.getLogger("anaphora.daemon")

#: Seconds until operations that are kept are tried again: at first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0

#: Errors of one operation. All others of SQLite may pass: a full disk, a read-only file system,
#: another process that writes.
_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)

_PROBE = Change("UPDATE clock SET latest_day = latest_day", ())

Apply: TypeAlias = Callable[[Sequence[Operation]], list[Outcome]]


class GroupCommit(BatchQueue):
    """Runs `apply` on batches, in a thread of its own."""

    def __init__(self, apply: Apply, *, on_abandoned: Callable[[HoldRequest], None]) -> None:
        super().__init__(probe=_PROBE, on_abandoned=on_abandoned)
        self._apply = apply
        self._kept: list[Pending] = []
        self._wait = _FIRST_WAIT
        self._thread = threading.Thread(target=self._run, name="anaphora store", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Writes what waits, once more, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._send("stop")
        await asyncio.to_thread(self._thread.join)

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
        kept, self._kept = self._kept, []
        first = None
        with suppress(Empty):
            failing = self.problem is not None or bool(kept)
            first = self._queue.get(timeout=self._wait if failing else None)
        batch, running = self._take(first)
        if self.problem is not None:
            batch.append(Pending(_PROBE, None))
        return kept + batch, running

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
            self._log_success(batch)
            self.problem, self._wait = None, _FIRST_WAIT
            self._end_holds(zip(batch, outcomes, strict=True))
            self._deliver(zip(batch, outcomes, strict=True))

    def _failed(self, batch: Sequence[Pending], problem: Exception) -> None:
        reason = described(problem)
        self._log_failure(reason)
        if self.problem is not None:
            self._wait = min(self._wait * 2, _LONGEST_WAIT)
        self.problem = reason
        self._kept += [one for one in batch if one.kept]
        message = f"the store cannot be written: {reason}"
        self._end_holds((one, StoreUnavailable(message)) for one in batch)
        self._deliver((one, None if one.kept else StoreUnavailable(message)) for one in batch)

    def _refused(self, one: Pending, problem: Exception) -> None:
        name = type(one.operation).__name__
        _log.error("%s was not written: %s: %s", name, type(problem).__name__, problem)
        message = f"the store cannot hold this: {described(problem)}"
        self._end_holds([(one, StoreUnavailable(message))])
        self._deliver([(one, None if one.kept else StoreUnavailable(message))])
