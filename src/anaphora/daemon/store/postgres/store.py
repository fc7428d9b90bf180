"""The store of several nodes, in PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphora.daemon.store import (
    EVERYTHING,
    CorrectedEntry,
    Entry,
    EntryQuery,
    HandleRow,
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
)
from anaphora.daemon.store.corrections import Correction
from anaphora.daemon.store.operations import HoldRequest, TableChange
from anaphora.daemon.store.reading import (
    GROUPS,
    HELD,
    HOURS,
    IS_APP,
    day_of,
    group_rows_of,
    hour_rows_of,
    month_of,
    spend_query,
    spend_rows_of,
    spend_values,
)
from anaphora.daemon.store.tables import SmallTables
from anaphora.errors import StoreUnavailable
from anaphora.postgres import schema
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import UNREACHABLE, connect
from anaphora.postgres.lane import Lane

from .epoch import (
    BEAT_SECONDS,
    PUBLIC,
    SILENT_SECONDS,
    ClockCheck,
    Epoch,
    Keeper,
    OnFenced,
)
from .journal import SettlementJournal
from .statements import AUDITED, book, entry_rows, unaudited_entries
from .writer import STATEMENT_SECONDS, BatchWriter

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: Seconds for one read; including the wait for earlier reads and a new connection; and for sums of
#: many days.
_READ_SECONDS, _READ_PATIENCE, _REPORT_SECONDS = 2.0, 3.0, 30.0

#: A statement of a dropped connection ends soon, because the next connection waits for it. Plans of
#: the ledger are made once, when its tables are small, and reused when they are large, so they must
#: use indexes.
_SETTINGS = (
    f"SET statement_timeout TO {int(STATEMENT_SECONDS * 1000)};"
    " SET plan_cache_mode TO force_generic_plan; SET enable_seqscan TO off;"
    " SET enable_hashjoin TO off; SET enable_mergejoin TO off"
)


class PostgresStore(SmallTables):
    """Opened once by each node, or by a command. Used from one event loop."""

    replaced = None

    def __init__(
        self,
        address: PostgresAddress,
        epoch: Epoch | None,
        journal: SettlementJournal | None,
        *,
        clock: Callable[[], float],
        beat: float,
        silent: float,
        most_skew: float | None,
    ) -> None:
        """Use `open`."""
        self.address = address
        self._clock = clock
        self.clock_check = ClockCheck(clock, most_skew)
        self._epoch = epoch
        name = epoch.name if epoch is not None else "command"
        self._reads = Lane(address, f"{name} reads", timeout=_READ_SECONDS, patience=_READ_PATIENCE)
        self._reports = Lane(address, f"{name} reports", timeout=_REPORT_SECONDS)
        writes = Lane(address, f"{name} ledger", on_connect=self._connected)
        self._writer = BatchWriter(writes, epoch, journal, release=self._release)
        self._keeper: Keeper | None = None
        if epoch is not None:
            self._keeper = Keeper(
                Lane(address, f"{name} beats", timeout=_READ_SECONDS), epoch,
                beat=beat, silent=silent, check=self._writer.check_epoch, clock=self.clock_check,
            )  # fmt: skip

    @classmethod
    async def open(
        cls,
        address: PostgresAddress,
        *,
        node: str | None = None,
        version: str = "",
        journal: Path | None = None,
        clock: Callable[[], float] = time.time,
        beat: float = BEAT_SECONDS,
        silent: float = SILENT_SECONDS,
        most_skew: float | None = None,
    ) -> PostgresStore:
        """Creates the tables if there are none. A command has no `node` and cannot make holds.
        `most_skew` is the allowed difference in seconds between the clocks of a node and
        PostgreSQL. Raises `InvalidConfig` for problems that the operator must fix, and
        `StoreUnavailable`."""
        connection = await connect(address, name="start")
        try:
            await schema.create(connection)
        finally:
            connection.terminate()
        epoch = Epoch(node, version) if node is not None else None
        store = cls(
            address, epoch, SettlementJournal(journal) if journal is not None else None,
            clock=clock, beat=beat, silent=silent, most_skew=most_skew,
        )  # fmt: skip
        try:
            await store._start()
        except BaseException:
            await store.close()
            raise
        return store

    async def _start(self) -> None:
        if self._keeper is not None and self._epoch is not None:
            await self._keeper.check_clock()
            await self._keeper.wait_for_earlier(self._epoch.name)
            await self._writer.probe()
            self._keeper.start()

    async def _connected(self, connection: Connection) -> None:
        await connection.execute(_SETTINGS)
        if self._epoch is not None:
            await self._epoch.connect(connection)

    @property
    def problem(self) -> str | None:
        return self._writer.problem or self.clock_check.problem

    async def probe(self) -> None:
        await self._writer.probe()

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    # ── Nodes ────────────────────────────────────────────────────────────────────────────────────

    @property
    def node_id(self) -> int:
        """The id of this node's epoch. It changes when the node was declared dead."""
        return self._epoch.id if self._epoch is not None else 0

    @property
    def report(self) -> Callable[[], Mapping[str, Any]]:
        """Makes the report that is sent with each heartbeat."""
        return self._nodes.report

    @report.setter
    def report(self, report: Callable[[], Mapping[str, Any]]) -> None:
        self._nodes.report = report

    @property
    def on_fenced(self) -> list[OnFenced]:
        """Callbacks after this node was declared dead and has a new id."""
        assert self._epoch is not None
        return self._epoch.on_fenced

    @property
    def _nodes(self) -> Keeper:
        assert self._keeper is not None, "a command is not a node"
        return self._keeper

    # ── Ledger ───────────────────────────────────────────────────────────────────────────────────

    async def hold(self, hold: Hold, limits: SpendLimits) -> None:
        if self._epoch is None:
            raise StoreUnavailable("the store was opened without a node: it takes no holds")
        if (wrong := self.clock_check.problem) is not None:
            raise StoreUnavailable(wrong, public=PUBLIC)
        await self._writer.commit(HoldRequest(hold, limits))

    async def settle(self, settlement: Settlement) -> None:
        await self._writer.commit(settlement, kept=True)

    def settle_later(self, settlement: Settlement) -> None:
        self._writer.put(settlement)

    def _release(self, request: HoldRequest) -> None:
        """Releases a hold for which nothing was sent."""
        self.settle_later(Settlement(hold=request.hold.id, billed=0, kind="free", at=self._clock()))

    async def recover(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:
        """Also writes the settlements that an earlier process left in the journal."""
        if self._writer.replay():
            await self._writer.probe()
        if self._keeper is None:
            return RecoveredHolds()
        return await self._keeper.sweep_earlier(is_unsent)

    def follow_holds(self, over: Callable[[str], None]) -> None:
        self._writer.on_hold_over = over

    # ── Audit marks ──────────────────────────────────────────────────────────────────────────────

    async def begin_audit(self, epoch: int) -> None:
        assert self._epoch is not None, "a command is not a node"
        self._epoch.audit_epoch = epoch
        await self._change("UPDATE nodes SET audit_epoch = $1 WHERE id = $2", epoch, self.node_id)

    def audited(self, request_ids: Sequence[str]) -> None:
        self._writer.put_without_waking(TableChange(AUDITED, (list(request_ids),)))

    async def unaudited(self) -> list[UnauditedEntry]:
        assert self._epoch is not None, "a command is not a node"
        return await unaudited_entries(self._reports, self._epoch.name, self._epoch.id)

    # ── Sums ─────────────────────────────────────────────────────────────────────────────────────

    async def spent(self, app: str, now: float) -> Spent:
        await self._writer.flush()
        row = await self._reads.fetchrow(
            "WITH today AS (SELECT greatest($2, latest_day) AS day FROM clock)"
            " SELECT day,"
            " (SELECT spent FROM balances WHERE app = $1 AND period = day),"
            " (SELECT spent FROM balances WHERE app = $1 AND period = left(day, 7)),"
            " (SELECT sum(bound)::bigint FROM holds WHERE app = $1)"
            " FROM today",
            app, day_of(now),
        )  # fmt: skip
        day, today, month, held = row
        return Spent(day=day, today=today or 0, month=month or 0, held=held or 0)

    async def spent_by_app(self, now: float) -> dict[str, Spent]:
        await self._writer.flush()
        await self._check_answers()
        async with self._reports.connection() as connection:
            day = await connection.fetchval(
                "SELECT greatest($1, latest_day) FROM clock", day_of(now)
            )
            rows = await connection.fetch(
                "SELECT app, coalesce(sum(today), 0)::bigint, coalesce(sum(month), 0)::bigint,"
                " coalesce(sum(held), 0)::bigint FROM ("
                " SELECT app, CASE WHEN period = $1 THEN spent END AS today,"
                " CASE WHEN period = $2 THEN spent END AS month, NULL::bigint AS held"
                f" FROM balances WHERE period IN ($1, $2) AND {IS_APP}"
                " UNION ALL SELECT app, NULL, NULL, bound FROM holds"
                ") AS parts GROUP BY app",
                day, month_of(day), timeout=_REPORT_SECONDS,
            )  # fmt: skip
        return {
            app: Spent(day=day, today=today, month=month, held=held)
            for app, today, month, held in rows
        }

    async def spent_by_group(self, now: float) -> dict[str, Spent]:
        await self._writer.flush()
        await self._check_answers()
        day = await self._reads.fetchval("SELECT greatest($1, latest_day) FROM clock", day_of(now))
        return group_rows_of(day, await self._reads.fetch(GROUPS, day, month_of(day)))

    async def spend(self, by: Sequence[str], of: SpendQuery = EVERYTHING) -> list[SpendRow]:
        sql = spend_query(by)
        await self._writer.flush()
        await self._check_answers()
        return spend_rows_of(by, of, await self._reports.fetch(sql, *spend_values(of)))

    async def spend_by_hour(self, day: str, of: SpendQuery = EVERYTHING) -> dict[float, SpendRow]:
        await self._writer.flush()
        await self._check_answers()
        return hour_rows_of(await self._reports.fetch(HOURS, day, of.app))

    async def held(self, of: SpendQuery = EVERYTHING) -> int:
        await self._writer.flush()
        await self._check_answers()
        [(amount,)] = await self._reports.fetch(HELD, of.app)
        return int(amount)

    async def entries(self, query: EntryQuery) -> list[Entry]:
        await self._writer.flush()
        await self._check_answers()
        return await entry_rows(self._reports, query)

    async def correct(self, entry: str, amount: int, reason: str) -> CorrectedEntry:
        wanted = Correction(entry=entry, amount=amount, reason=reason, at=self._clock())
        await self._writer.flush()
        await self._check_answers()
        return await book(self._reports, wanted)

    async def _check_answers(self) -> None:
        """Raises `StoreUnavailable` soon if PostgreSQL hangs, since sums may legitimately take
        long."""
        if self.problem is not None:
            raise StoreUnavailable(self.problem, public=UNREACHABLE)
        await self._reads.execute("SELECT 1")

    # ── Tokens and handles ───────────────────────────────────────────────────────────────────────

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        return await self._reads.fetch(sql, *values)

    async def _handles(self, condition: str, *values: str) -> list[HandleRow]:
        if self.problem is not None:  # fail at once: the hold that follows would fail anyway
            raise StoreUnavailable(self.problem, public=UNREACHABLE)
        return await super()._handles(condition, *values)

    async def _flush(self) -> None:
        await self._writer.flush()

    async def _change(self, sql: str, *values: Any, kept: bool = False) -> None:
        await self._writer.commit(TableChange(sql, values), kept=kept)

    async def close(self) -> None:
        await self._writer.close()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._reads.close)
            stack.push_async_callback(self._reports.close)
            if self._keeper is not None:
                await self._keeper.close()
