"""Applies a batch of operations to the tables in one transaction.

A batch of holds and settlements whose rows are known from earlier batches is one statement. Others
read rows first, many with one statement: ids are passed and rows returned as one JSON array.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

import msgspec

from anaphora.errors import GrantExceeded
from anaphora.sqlite_files import numbered, transaction

from . import Settlement
from .batch_rows import (
    AUDITED,
    ENTRY,
    HOLD,
    HOLD_FIELDS,
    LATE_ENTRY,
    MOST_ROWS,
    NO_LIMIT,
    SETTLED_FIELDS,
    KnownRows,
    Row,
    is_stale,
    write_rows,
)
from .budget_rows import charge, read_accounts, refused_hold, set_accounts
from .budgets import (
    Further,
    accounts_of,
    add_further,
    decoded_accounts,
    encoded_accounts,
    further_periods,
    levels,
    refusal,
)
from .corrections import Correction, book, is_corrected
from .operations import AuditedCalls, HoldRequest, Operation, Outcome, TableChange, corrects
from .reading import day_of, end_of_day, end_of_month
from .schema import EntryRow, HoldRow

T = TypeVar("T")


def _find(table: str, *more: str) -> str:
    """SQL that reads the rows of a JSON array of ids as one JSON array."""
    row = f"json_array({', '.join(f'row.{name}' for name in HOLD_FIELDS)})"
    if more:
        row = f"json_array({', '.join(f'row.{name}' for name in more)}, {row})"
    return (
        f"SELECT json_group_array({row}) FROM json_each(?) AS wanted"
        f" CROSS JOIN {table} AS row ON row.id = wanted.value"
    )


_FIND_HOLDS = _find("holds")
_FIND_ENTRIES = _find("entries", *SETTLED_FIELDS)
_FIND_BALANCES = (
    "SELECT json_group_array(json_array(app, period, spent + held)) FROM balances"
    " WHERE app IN (SELECT value FROM json_each(?)) AND period IN (SELECT value FROM json_each(?))"
)
_encode = msgspec.json.Encoder().encode
_decode_holds = msgspec.json.Decoder(list[HoldRow]).decode
_decode_entries = msgspec.json.Decoder(list[EntryRow]).decode
_decode_balances = msgspec.json.Decoder(list[tuple[str, str, int]]).decode


def apply(
    database: sqlite3.Connection,
    operations: Sequence[Operation],
    known: KnownRows,
    check: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Durable when it returns; if it raises, nothing has changed. Settlements come first, since
    they make room for holds. `known` is the connection's cache. `check` raises if nothing may be
    written."""
    batch = _Batch(database, known, operations)
    try:
        check()
        if not (batch.is_known and known.check(database) and _write_known(batch)):
            batch = _Batch(database, known, operations)
            with transaction(database):
                known.check(database)  # no other process can write meanwhile
                batch.collect()
                write_rows(database, batch.rows)
                batch.change()
    except BaseException:
        known.clear()
        raise
    batch.remember()
    return [
        batch.refused.get(one.hold.id) if isinstance(one, HoldRequest) else batch.wrong.get(id(one))
        for one in operations
    ]


def _write_known(batch: _Batch) -> bool:
    """Writes a batch that needs only known rows, with one statement. False if another process has
    just written something on which the statement depends."""
    batch.collect()
    if len(batch.rows) > MOST_ROWS:
        return False
    try:
        write_rows(batch.database, batch.rows)
    except sqlite3.IntegrityError as problem:
        if is_stale(problem):
            return False
        raise
    return True


def open_holds(database: sqlite3.Connection) -> list[HoldRow]:
    rows = database.execute(f"SELECT {', '.join(HOLD_FIELDS)} FROM holds ORDER BY id")
    return [HoldRow(*row) for row in rows]


def latest_day(database: sqlite3.Connection) -> str:
    """The latest day of any hold; empty before the first one."""
    return cast(str, database.execute("SELECT latest_day FROM clock").fetchone()[0])


class _Batch:
    """Collects the changes of a batch to each table."""

    def __init__(
        self, database: sqlite3.Connection, known: KnownRows, operations: Iterable[Operation]
    ) -> None:
        self.database = database
        self.refused: dict[str, GrantExceeded] = {}
        """Why holds were refused, by their ids."""
        self.wrong: dict[int, Outcome] = {}
        """Why corrections were refused, by their identity."""
        self._known = known
        self._settlements: dict[str, Settlement] = {}
        """One of each hold."""
        self._requests: list[HoldRequest] = []
        self._audited: list[str] = []
        self._changes: list[TableChange] = []
        self._corrections: list[Correction] = []
        self._held: list[HoldRow] = []
        self._settled: list[str] = []
        self.rows: list[Row] = []
        self._balances: dict[tuple[str, str], int] = {}
        """Amounts to add to what is spent and held, by app and period."""
        self._further: Further = {}
        """Amounts to add to what is spent, and to what is held, in further accounts."""
        self._accounts: list[tuple[str, HoldRow]] = []
        """The rows whose further accounts are to be set, and their tables."""
        self._reads = True
        """Whether balances may have to be read."""
        self._has_further = False
        """Whether a hold counts in further accounts."""
        for one in operations:
            match one:
                case Settlement():
                    before = self._settlements.get(one.hold)
                    if before is None or corrects(one, before.kind):
                        self._settlements[one.hold] = one
                case HoldRequest():
                    self._requests.append(one)
                    if one.hold.group or one.hold.budgets:
                        self._has_further = True
                case AuditedCalls():
                    self._audited += one.request_ids
                case TableChange():
                    self._changes.append(one)
                case Correction():
                    self._corrections.append(one)

    @property
    def is_known(self) -> bool:
        """Whether it only needs rows that are known, and no more than a statement writes."""
        known = self._known
        if self._changes or self._corrections or self._has_further:
            return False
        if known.latest_day is None or not self._settlements.keys() <= known.holds.keys():
            return False
        if known.further and not known.further.isdisjoint(self._settlements):
            return False
        for request in self._requests:
            today, month = _periods(request.hold.app, known.latest_day)
            if today not in known.balances or month not in known.balances:
                return False
            if request.hold.at >= known.day_end:
                return False
        self._reads = False
        return True

    def collect(self) -> None:
        """Reads the rows that are not known, and computes the new ones."""
        if self._settlements:
            self._settle()
        if self._requests:
            self._hold()
        if self._audited:  # after the settlements, which mark their calls
            self.rows.append((AUDITED, _encode(self._audited).decode()))

    def change(self) -> None:
        """Changes further balances and the tables of tokens and handles, and books corrections."""
        for table, row in self._accounts:
            set_accounts(self.database, table, row)
        if self._further:
            charge(self.database, self._further)
        for change in self._changes:
            self.database.execute(change.sql, numbered(*change.values))
        for correction in self._corrections:
            self.wrong[id(correction)] = book(self.database, correction)

    # ── Settlements ──────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        wanted = self._settlements
        known, epoch = self._known.holds, self._known.audit_epoch
        holds: dict[str, HoldRow] = {}
        others: list[str] = []
        for id in wanted:
            if id in known:
                holds[id] = known[id]
            else:
                others.append(id)
        if others:
            holds |= {row.id: row for row in self._found(_FIND_HOLDS, _decode_holds, others)}
        for id, row in holds.items():
            settlement = wanted[id]
            self._settled.append(id)
            self._enter(row, settlement, ENTRY, settlement.billed - row.bound, epoch)
        if len(holds) < len(wanted):
            missing = [id for id in wanted if id not in holds]
            for entry in self._found(_FIND_ENTRIES, _decode_entries, missing):
                self._settle_late(entry, wanted[entry.hold.id])

    def _enter(
        self, row: HoldRow, settlement: Settlement, kind: int, amount: int, epoch: int = 0
    ) -> None:
        """`amount` is added to the balances. `epoch`: of the audit log whose row the entry waits
        for; 0 for none."""
        for period in _periods(row.app, row.day):
            self._balances[period] = self._balances.get(period, 0) + amount
        if row.accounts:
            is_open = kind == ENTRY
            spent, held = (settlement.billed, -row.bound) if is_open else (amount, 0)
            add_further(self._further, decoded_accounts(row.accounts), row.day, spent, held)
            self._accounts.append(("entries", row))
        self.rows.append((
            kind,
            row.id, row.app, row.provider, settlement.model or row.model, row.request_id, row.day,
            row.at, row.bound, settlement.at, settlement.billed, settlement.kind, settlement.input,
            settlement.read, settlement.written, settlement.output, settlement.saved,
            settlement.read_by_others, _encode(settlement.labels).decode(), epoch,
            int(settlement.interrupted),
        ))  # fmt: skip

    def _settle_late(self, entry: EntryRow, settlement: Settlement) -> None:
        if corrects(settlement, entry.kind) and not is_corrected(self.database, entry.hold.id):
            self._enter(entry.hold, settlement, LATE_ENTRY, settlement.billed - entry.billed)

    # ── Holds ────────────────────────────────────────────────────────────────────────────────────

    def _hold(self) -> None:
        """Takes the holds that their limits allow, in order."""
        known, requests = self._known, self._requests
        if known.latest_day is None:
            known.latest_day = latest_day(self.database)
        latest = before = known.latest_day
        days = []
        for request in requests:
            if request.hold.at >= known.day_end:
                latest = max(latest, day_of(request.hold.at))
                known.day_end = end_of_day(latest)
            days.append(latest)
        if self._reads:
            self._read_balances(requests, days)
        if self._has_further:
            self._take_checked(days)
        else:
            self._take(days)
        if latest > before:
            self.database.execute("UPDATE clock SET latest_day = ?", (latest,))
            known.latest_day = latest

    def _take(self, days: Sequence[str]) -> None:
        """Holds that only the limits of their app concern."""
        balances, added = self._known.balances, self._balances
        for request, day in zip(self._requests, days, strict=True):
            hold = request.hold
            today, month = _periods(hold.app, day)
            in_day, in_month = added.get(today, 0), added.get(month, 0)
            problem = _exceeded(request, day, balances[today] + in_day, balances[month] + in_month)
            if problem is not None:
                self.refused[hold.id] = problem
                continue
            added[today], added[month] = in_day + hold.bound, in_month + hold.bound
            self._add_hold(request, day, "")

    def _take_checked(self, days: Sequence[str]) -> None:
        """The same if some count in further accounts."""
        accounts = read_accounts(self.database, [request.hold for request in self._requests], days)
        accounts.add(self._balances, self._further)
        for request, day in zip(self._requests, days, strict=True):
            hold = request.hold
            level = accounts.exceeded(
                levels(hold.app, hold.group, hold.budgets, request.limits, day), hold.bound
            )
            if level is not None:
                self.refused[hold.id] = refused_hold(self.database, level, hold.bound)
                continue
            further = accounts_of(hold.group, hold.budgets)
            for period in _periods(hold.app, day):
                self._balances[period] = self._balances.get(period, 0) + hold.bound
                accounts.charge(*period, hold.bound)
            for period in further_periods(further, day):
                accounts.charge(*period, hold.bound)
            add_further(self._further, further, day, 0, hold.bound)
            self._add_hold(request, day, encoded_accounts(hold))

    def _add_hold(self, request: HoldRequest, day: str, accounts: str) -> None:
        hold, limits = request.hold, request.limits
        values = (
            hold.id, hold.app, hold.provider, hold.model, hold.request_id, day, hold.at, hold.bound,
        )  # fmt: skip
        row = HoldRow(*values, accounts)
        self._held.append(row)
        if accounts:
            self._accounts.append(("holds", row))
        per_day = NO_LIMIT if limits.per_day is None else limits.per_day
        per_month = NO_LIMIT if limits.per_month is None else limits.per_month
        self.rows.append((HOLD, *values, per_day, per_month))

    def _read_balances(self, requests: Iterable[HoldRequest], days: Iterable[str]) -> None:
        """Reads what is settled and held in each app's day and month, if it is not known."""
        known = self._known.balances
        missing: set[tuple[str, str]] = set()
        for request, day in zip(requests, days, strict=True):
            missing.update(_periods(request.hold.app, day))
        missing.difference_update(known)
        if missing:
            known.update(dict.fromkeys(missing, 0))
            apps, periods = {app for app, _ in missing}, {period for _, period in missing}
            for app, period, amount in self._found(_FIND_BALANCES, _decode_balances, apps, periods):
                if (app, period) in missing:
                    known[app, period] = amount

    def remember(self) -> None:
        """Updates the cache for the next batch, after the commit."""
        known = self._known
        if self._corrections:
            known.clear()  # they change balances, and what is left of limits
            return
        for id in self._settled:
            known.holds.pop(id, None)
        if known.further:
            known.further.difference_update(self._settled)
        for row in self._held:
            known.holds[row.id] = row
        if self._accounts:
            known.further.update([row.id for table, row in self._accounts if table == "holds"])
        for period, amount in self._balances.items():
            if period in known.balances:
                known.balances[period] += amount

    def _found(self, sql: str, decode: Callable[[str], T], *wanted: Iterable[str]) -> T:
        texts = [_encode(list(one)).decode() for one in wanted]
        return decode(self.database.execute(sql, texts).fetchone()[0])


def _periods(app: str, day: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (app, day), (app, day[:7])


def _exceeded(request: HoldRequest, day: str, today: int, month: int) -> GrantExceeded | None:
    """The exceeded limit, the month's first, since it resets later."""
    bound, limits = request.hold.bound, request.limits
    if (limit := limits.per_month) is not None and month + bound > limit:
        return refusal("usd_per_month", limit, bound, end_of_month(day))
    if (limit := limits.per_day) is not None and today + bound > limit:
        return refusal("usd_per_day", limit, bound, end_of_day(day))
    return None
