"""The store of one node: a SQLite file in WAL mode, with synchronous=FULL and group commit."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from anaphora.errors import InvalidRequest

from . import (
    LARGEST_AMOUNT,
    HandleKind,
    HandleRow,
    Hold,
    RecoveredHolds,
    Settlement,
    SpendLimits,
    SpendRow,
    Spent,
    TokenRow,
)
from .batch import (
    Change,
    HoldRequest,
    KnownRows,
    Operation,
    Outcome,
    apply,
    latest_day,
    open_holds,
)
from .days import day_of, month_of
from .group_commit import GroupCommit
from .reading import held, spend_rows, spent_rows
from .schema import connect, connect_to_read, create, prepare, readable

_log = logging.getLogger("anaphora.daemon")

_HANDLE_FIELDS = "kind, id, app, provider, created, tokens"


class SqliteStore:
    """Opened once by the daemon, or by a command while no daemon runs. Methods are called from one
    event loop. Small reads run in it; a thread of the store's own writes."""

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
        self._file = _identity(path)
        self._known = KnownRows()
        self._commits = GroupCommit(self._apply, on_abandoned=self._release)

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> SqliteStore:
        """Creates the file where there is none, and updates one of an earlier version. Raises `Io`,
        and `NewerSchema` for the file of a newer version."""
        with readable(path):
            create(path)
            writer = connect(path)
            try:
                before = prepare(writer, path)
                reader = connect_to_read(path)
            except BaseException:
                writer.close()
                raise
        if before == 1:
            _log.warning("%s: updated from schema_version 1", path)
        return cls(path, writer, reader, clock)

    @property
    def problem(self) -> str | None:
        """Why the last write failed; None: it did not."""
        return self._commits.problem

    @property
    def waiting(self) -> int:
        """Settlements that could not be written so far."""
        return self._commits.waiting

    # ── Ledger ───────────────────────────────────────────────────────────────────────────────────

    async def hold(self, hold: Hold, limits: SpendLimits) -> None:
        if not 0 <= hold.bound <= LARGEST_AMOUNT:
            reason = f"must be 0 to {LARGEST_AMOUNT:,} nano-dollars, got {hold.bound:,}"
            raise InvalidRequest(reason)
        await self._commits.commit(HoldRequest(hold, limits))

    async def settle(self, settlement: Settlement) -> None:
        await self._commits.commit(settlement, kept=True)

    def settle_later(self, settlement: Settlement) -> None:
        self._commits.put(settlement)

    def _release(self, request: HoldRequest) -> None:
        """The caller of a hold was cancelled: nothing was sent."""
        self.settle_later(Settlement(hold=request.hold.id, billed=0, kind="free", at=self._clock()))

    async def recover(self) -> RecoveredHolds:
        now, holds = self._clock(), open_holds(self._reader)
        await asyncio.gather(
            *(
                self._commits.commit(
                    Settlement(hold=row.id, billed=row.bound, kind="bound", at=now)
                )
                for row in holds
            )
        )
        return RecoveredHolds(len(holds), sum(row.bound for row in holds))

    async def spent(self, app: str, now: float) -> Spent:
        await self._commits.flush()
        day = max(day_of(now), latest_day(self._reader))
        settled = "SELECT period, spent FROM balances WHERE app = ? AND period IN (?, ?)"
        found = dict(self._reader.execute(settled, (app, day, month_of(day))).fetchall())
        return Spent(
            day=day,
            today=found.get(day, 0),
            month=found.get(month_of(day), 0),
            held=held(self._reader, app),
        )

    async def spent_by_app(self, now: float) -> dict[str, Spent]:
        def read() -> dict[str, Spent]:
            with closing(connect_to_read(self.path)) as database:
                return spent_rows(database, max(day_of(now), latest_day(database)))

        await self._commits.flush()
        return await asyncio.to_thread(read)

    async def spend(
        self, by: Sequence[str], *, since: str = "", until: str = "", app: str | None = None
    ) -> list[SpendRow]:
        def read() -> list[SpendRow]:
            with closing(connect_to_read(self.path)) as database:
                return spend_rows(database, by, since=since, until=until, app=app)

        await self._commits.flush()
        return await asyncio.to_thread(read)

    # ── Tokens ───────────────────────────────────────────────────────────────────────────────────

    async def tokens(self) -> list[TokenRow]:
        rows = self._reader.execute(
            "SELECT id, app, digest, created, expires, revoked FROM tokens ORDER BY created, id"
        )
        names = ("id", "app", "digest", "created", "expires", "revoked")
        return [TokenRow(**dict(zip(names, row, strict=True))) for row in rows]

    async def add_token(self, token: TokenRow) -> None:
        await self._change(
            "INSERT INTO tokens (id, app, digest, created, expires, revoked)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            token.id, token.app, token.digest, token.created, token.expires, token.revoked,
        )  # fmt: skip

    async def change_token(
        self, id: str, *, expires: float | None = None, revoked: float | None = None
    ) -> None:
        await self._change(
            "UPDATE tokens SET expires = COALESCE(?, expires), revoked = COALESCE(?, revoked)"
            " WHERE id = ?",
            expires, revoked, id,
        )  # fmt: skip

    # ── Handles ──────────────────────────────────────────────────────────────────────────────────

    async def add_handle(self, handle: HandleRow) -> None:
        await self._change(
            f"INSERT INTO handles ({_HANDLE_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (kind, id, provider) DO UPDATE SET created = excluded.created,"
            " tokens = excluded.tokens WHERE app = excluded.app",
            handle.kind, handle.id, handle.app, handle.provider, handle.created, handle.tokens,
            kept=True,
        )  # fmt: skip

    async def handle(self, kind: HandleKind, id: str, app: str) -> HandleRow | None:
        rows = self._handles("kind = ? AND id = ? AND app = ?", kind, id, app)
        return rows[-1] if rows else None

    async def handles(self, kind: HandleKind, app: str) -> list[HandleRow]:
        return self._handles("kind = ? AND app = ?", kind, app)

    def _handles(self, condition: str, *values: str) -> list[HandleRow]:
        rows = self._reader.execute(
            f"SELECT {_HANDLE_FIELDS} FROM handles WHERE {condition} ORDER BY created, id", values
        )
        return [
            HandleRow(
                kind=cast(HandleKind, kind), id=id, app=app, provider=provider, created=created,
                tokens=tokens,
            )
            for kind, id, app, provider, created, tokens in rows
        ]  # fmt: skip

    async def grow_handle(
        self, row: HandleRow, growth: int | None, size: int | None = None
    ) -> None:
        await self._change(
            "UPDATE handles SET tokens = CASE WHEN ?1 IS NOT NULL AND tokens IS ?2 THEN ?1"
            " ELSE tokens + ?3 END WHERE kind = ?4 AND id = ?5 AND provider = ?6 AND app = ?7",
            size, row.tokens, growth, row.kind, row.id, row.provider, row.app,
            kept=True,
        )  # fmt: skip

    async def remove_handle(self, kind: HandleKind, id: str, app: str) -> None:
        await self._change(
            "DELETE FROM handles WHERE kind = ? AND id = ? AND app = ?", kind, id, app
        )

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    async def _change(self, sql: str, *values: Any, kept: bool = False) -> None:
        await self._commits.commit(Change(sql, values), kept=kept)

    def _apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        """In the thread that writes. A file that was deleted or replaced would lose what is written
        to it."""
        if _identity(self.path) != self._file:
            raise FileNotFoundError(2, "the file was deleted or replaced; restart the daemon")
        return apply(self._writer, operations, self._known)

    async def close(self) -> None:
        await self._commits.close()
        self._reader.close()
        self._writer.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
