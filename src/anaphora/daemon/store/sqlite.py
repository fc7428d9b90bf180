"""The store of one node: a SQLite file in WAL mode, with synchronous=FULL and group commit."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from anaphora.errors import Io, StoreUnavailable
from anaphora.sqlite_files import numbered

from . import (
    EVERYTHING,
    CorrectedEntry,
    Entry,
    EntryQuery,
    Hold,
    IsUnsent,
    RecoveredHolds,
    Settlement,
    SpendLimits,
    SpendQuery,
    SpendRow,
    Spent,
    UnauditedEntry,
    all_sent,
    interrupted,
    recovered,
)
from .batch import apply, latest_day, open_holds
from .batch_queue import SqliteCommits
from .batch_rows import KnownRows, create_view
from .corrections import Correction, entry_rows
from .operations import AuditedCalls, HoldRequest, Operation, Outcome, TableChange
from .reading import (
    day_of,
    group_rows,
    held,
    hour_rows,
    month_of,
    spend_rows,
    spent_rows,
    unaudited_entries,
)
from .schema import (
    connect,
    connect_to_read,
    create,
    described,
    prepare,
    readable,
    refuse_lost_file,
)
from .tables import SmallTables

_log = logging.getLogger("anaphora.daemon")

T = TypeVar("T")


class SqliteStore(SmallTables):
    """Opened once by the daemon, or by a command while no daemon runs. Used from one event loop.
    Small reads run in it; the store's thread writes."""

    def __init__(
        self,
        path: Path,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        clock: Callable[[], float],
    ) -> None:
        """Use `open`."""
        self.path = path
        self._clock = clock
        self._writer = writer
        self._reader = reader
        self._identity = _identity(path)
        self.replaced: str | None = None
        """Set when the file was replaced or removed: nothing is written to another one."""
        self._known = KnownRows()
        # Until `begin_audit`, the epoch of the preceding daemon, whose holds are recovered.
        self._known.audit_epoch = reader.execute("SELECT audit_epoch FROM clock").fetchone()[0]
        self._commits = SqliteCommits(self._apply, on_abandoned=self._release)

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> SqliteStore:
        """Creates the file if there is none. Raises `Io`, and `OtherSchema` for a
        file of another version."""
        with readable(path), ExitStack() as stack:
            refuse_lost_file(path)
            create(path)
            writer = connect(path)
            stack.callback(writer.close)
            prepare(writer, path)
            create_view(writer)
            reader = connect_to_read(path)
            stack.callback(reader.close)
            store = cls(path, writer, reader, clock)
            stack.pop_all()
        return store

    @property
    def problem(self) -> str | None:
        """Why the last write failed; None if it succeeded."""
        return self._commits.problem

    async def probe(self) -> None:
        await self._commits.probe()

    @property
    def waiting(self) -> int:
        """Number of settlements that could not be written yet."""
        return self._commits.waiting

    # ── Ledger ───────────────────────────────────────────────────────────────────────────────────

    async def hold(self, hold: Hold, limits: SpendLimits) -> None:
        await self._commits.commit(HoldRequest(hold, limits))

    async def settle(self, settlement: Settlement) -> None:
        await self._commits.commit(settlement, kept=True)

    def settle_later(self, settlement: Settlement) -> None:
        self._commits.put(settlement)

    def _release(self, request: HoldRequest) -> None:
        """Releases a hold whose caller was cancelled: nothing was sent."""
        self.settle_later(Settlement(hold=request.hold.id, billed=0, kind="free", at=self._clock()))

    async def recover(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:
        now = self._clock()
        settlements = [
            interrupted(row.id, row.bound, now, is_unsent) for row in open_holds(self._reader)
        ]
        await asyncio.gather(*(self._commits.commit(one) for one in settlements))
        return recovered(settlements)

    def follow_holds(self, over: Callable[[str], None]) -> None:
        self._commits.on_hold_over = over

    # ── Audit marks ──────────────────────────────────────────────────────────────────────────────

    async def begin_audit(self, epoch: int) -> None:
        if epoch != self._known.audit_epoch:
            await self._change("UPDATE clock SET audit_epoch = $1", epoch)
            self._known.audit_epoch = epoch

    def audited(self, request_ids: Sequence[str]) -> None:
        self._commits.put_without_waking(AuditedCalls(request_ids))

    async def unaudited(self) -> list[UnauditedEntry]:
        def read() -> list[UnauditedEntry]:
            with closing(connect_to_read(self.path)) as database:
                return unaudited_entries(database)

        await self._commits.flush()
        return await asyncio.to_thread(read)

    # ── Sums ─────────────────────────────────────────────────────────────────────────────────────

    async def spent(self, app: str, now: float) -> Spent:
        await self._commits.flush()
        with self._reading():
            day = max(day_of(now), latest_day(self._reader))
            settled = "SELECT period, spent FROM balances WHERE app = ? AND period IN (?, ?)"
            found = dict(self._reader.execute(settled, (app, day, month_of(day))).fetchall())
            return Spent(
                day=day,
                today=found.get(day, 0),
                month=found.get(month_of(day), 0),
                held=held(self._reader, SpendQuery(app=app)),
            )

    async def spent_by_app(self, now: float) -> dict[str, Spent]:
        return await self._read(
            lambda database: spent_rows(database, max(day_of(now), latest_day(database)))
        )

    async def spent_by_group(self, now: float) -> dict[str, Spent]:
        return await self._read(
            lambda database: group_rows(database, max(day_of(now), latest_day(database)))
        )

    async def spend(self, by: Sequence[str], of: SpendQuery = EVERYTHING) -> list[SpendRow]:
        return await self._read(lambda database: spend_rows(database, by, of))

    async def spend_by_hour(self, day: str, of: SpendQuery = EVERYTHING) -> dict[float, SpendRow]:
        return await self._read(lambda database: hour_rows(database, day, of))

    async def held(self, of: SpendQuery = EVERYTHING) -> int:
        return await self._read(lambda database: held(database, of))

    async def entries(self, query: EntryQuery) -> list[Entry]:
        return await self._read(lambda database: entry_rows(database, query))

    async def correct(self, entry: str, amount: int, reason: str) -> CorrectedEntry:
        wanted = Correction(entry=entry, amount=amount, reason=reason, at=self._clock())
        await self._commits.flush()
        await self._commits.commit(wanted)
        assert wanted.done is not None
        return wanted.done

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Reads outside the event loop, with all settlements so far."""

        def run() -> T:
            with self._reading(), closing(connect_to_read(self.path)) as database:
                return read(database)

        await self._commits.flush()
        return await asyncio.to_thread(run)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises `StoreUnavailable` if the file is damaged, or is another one."""
        if self.replaced is not None:
            raise StoreUnavailable(f"the store cannot be read: {self.replaced}")
        try:
            yield
        except (sqlite3.DatabaseError, Io) as problem:
            reason = f"the store cannot be read: {described(problem)}"
            raise StoreUnavailable(reason) from None

    # ── Tokens and handles ───────────────────────────────────────────────────────────────────────

    async def _fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._reading():
            return self._reader.execute(sql, numbered(*values)).fetchall()

    async def _flush(self) -> None:
        await self._commits.flush()

    async def _change(self, sql: str, *values: Any, kept: bool = False) -> None:
        await self._commits.commit(TableChange(sql, values), kept=kept)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def _apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Runs in the writing thread."""
        return apply(self._writer, operations, self._known, self._check)

    def _check(self) -> None:
        """Raises if the path names another file than the open one: what is written to that would be
        lost."""
        if self.replaced is None and _identity(self.path) != self._identity:
            self.replaced = f"{self.path.name} was replaced or removed while the daemon ran"
        if self.replaced is not None:
            raise OSError(errno.ESTALE, self.replaced)

    async def close(self) -> None:
        await self._commits.close()
        self._reader.close()
        self._writer.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """The file that a path names; None: none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
