"""Applies a batch of operations to the tables in one transaction.

A statement reads or writes many rows: ids are passed and rows returned as one JSON array, and many
rows are inserted at once.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import astuple, replace

from anaphora.errors import AnaphoraError, GrantExceeded
from anaphora.sqlite_files import RowInsert, transaction

from . import ESTIMATED_KINDS, Hold, Settled, Settlement, SpendLimits
from .corrections import Correction, book, is_corrected
from .reading import day_of, end_of_day, end_of_month
from .schema import EntryRow, HoldRow

T = TypeVar("T")

#: Maximum number of balances, and of holds, that are cached.
_MOST_KNOWN = 10_000


class HoldRequest(msgspec.Struct, frozen=True):
    """A hold and the limits that it must not exceed."""

    hold: Hold
    limits: SpendLimits


class TableChange(msgspec.Struct, frozen=True):
    """A change to the tables of tokens and handles."""

    sql: str
    values: Sequence[Any]


Operation: TypeAlias = HoldRequest | Settlement | TableChange | Correction
Outcome: TypeAlias = AnaphoraError | None
"""Why an operation was refused. Others of its batch are not affected."""


_HOLD_FIELDS = HoldRow.__struct_fields__
_SETTLED_FIELDS = EntryRow.__struct_fields__[:-1]
_SUM_KEY = ("day", "app", "provider", "model")
_SUM_FIELDS = ("calls", "billed", "estimated", "saved", "input", "read", "written", "output")


def _find(table: str, *more: str) -> str:
    """SQL that reads the rows of a JSON array of ids as one JSON array."""
    row = f"json_array({', '.join(f'row.{name}' for name in _HOLD_FIELDS)})"
    if more:
        row = f"json_array({', '.join(f'row.{name}' for name in more)}, {row})"
    return (
        f"SELECT json_group_array({row}) FROM json_each(?) AS wanted"
        f" CROSS JOIN {table} AS row ON row.id = wanted.value"
    )


_FIND_HOLDS = _find("holds")
_FIND_ENTRIES = _find("entries", *_SETTLED_FIELDS)
_FIND_BALANCES = (
    "SELECT json_group_array(json_array(app, period, spent + held)) FROM balances"
    " WHERE app IN (SELECT value FROM json_each(?)) AND period IN (SELECT value FROM json_each(?))"
)
_REMOVE_HOLDS = "DELETE FROM holds WHERE id IN (SELECT value FROM json_each(?))"

_ADD_HOLDS = RowInsert("holds", _HOLD_FIELDS)
_PUT_ENTRIES = RowInsert("entries", (*_HOLD_FIELDS, *_SETTLED_FIELDS), verb="INSERT OR REPLACE")
_MARK_UNAUDITED = RowInsert(
    "unaudited", ("request_id", "hold", "epoch", "interrupted"), verb="INSERT OR IGNORE"
)
_ADD_BALANCES = RowInsert("balances", ("app", "period", "spent", "held"), ("app", "period"))
_ADD_SUMS = RowInsert("sums", (*_SUM_KEY, *_SUM_FIELDS), _SUM_KEY)
_ADD_LABEL_SUMS = RowInsert(
    "label_sums", (*_SUM_KEY, "label", "calls", "billed"), (*_SUM_KEY, "label")
)

_encode = msgspec.json.Encoder().encode
_decode_holds = msgspec.json.Decoder(list[HoldRow]).decode
_decode_entries = msgspec.json.Decoder(list[EntryRow]).decode
_decode_balances = msgspec.json.Decoder(list[tuple[str, str, int]]).decode


class KnownRows:
    """A cache of rows as the last batch of a connection left them, which the next one mostly needs.
    Valid until another connection writes. Bounded."""

    def __init__(self) -> None:
        self.latest_day: str | None = None
        self.day_end = -math.inf
        """When the latest day ends, in seconds since 1970."""
        self.balances: dict[tuple[str, str], int] = {}
        """Spent and held by app and period; 0 if there is no row."""
        self.holds: dict[str, HoldRow] = {}
        """By their ids."""
        self.audit_epoch = 0
        """Epoch of the audit log's writer: settlements are marked until their call has its row. 0
        without an audit log."""
        self._version: int | None = None

    def check(self, database: sqlite3.Connection) -> None:
        """Clears the cache if another connection has written."""
        version = database.execute("PRAGMA data_version").fetchone()[0]
        full = len(self.balances) > _MOST_KNOWN or len(self.holds) > _MOST_KNOWN
        if version != self._version or full:
            self.clear()
            self._version = version

    def clear(self) -> None:
        self.latest_day = self._version = None
        self.day_end = -math.inf
        self.balances.clear()
        self.holds.clear()


def apply(
    database: sqlite3.Connection,
    operations: Sequence[Operation],
    known: KnownRows,
    check: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Durable when it returns; if it raises, nothing has changed. Settlements come first, since
    they make room for holds. `known` is the connection's cache. `check` raises if nothing may be
    written; no other process can write meanwhile."""
    try:
        with transaction(database):
            check()
            known.check(database)
            batch = _Batch(database, known)
            settlements: list[Settlement] = []
            requests: list[HoldRequest] = []
            changes: list[TableChange] = []
            corrections: list[Correction] = []
            for one in operations:
                match one:
                    case Settlement():
                        settlements.append(one)
                    case HoldRequest():
                        requests.append(one)
                    case TableChange():
                        changes.append(one)
                    case Correction():
                        corrections.append(one)
            batch.settle(settlements)
            refused = batch.hold(requests) if requests else {}
            batch.write()
            for change in changes:
                database.execute(change.sql, change.values)
            wrong: dict[int, Outcome] = {}
            for correction in corrections:
                wrong[id(correction)] = book(database, correction)
    except BaseException:
        known.clear()
        raise
    batch.remember()
    if corrections:
        known.clear()  # they change balances
    return [
        refused.get(one.hold.id) if isinstance(one, HoldRequest) else wrong.get(id(one))
        for one in operations
    ]


def open_holds(database: sqlite3.Connection) -> list[HoldRow]:
    rows = database.execute(f"SELECT {', '.join(_HOLD_FIELDS)} FROM holds ORDER BY id")
    return [HoldRow(*row) for row in rows]


def latest_day(database: sqlite3.Connection) -> str:
    """The latest day of any hold; empty before the first one."""
    return cast(str, database.execute("SELECT latest_day FROM clock").fetchone()[0])


class _Batch:
    """Collects the changes of a batch to each table."""

    def __init__(self, database: sqlite3.Connection, known: KnownRows) -> None:
        self._database = database
        self._known = known
        self._held: list[HoldRow] = []
        self._settled: list[str] = []
        self._entries: dict[str, Sequence[Any]] = {}
        self._balances: dict[tuple[str, str], list[int]] = {}
        """Amounts to add to `spent` and `held`, by app and period."""
        self._sums: dict[tuple[str, ...], list[int]] = {}
        self._label_sums: dict[tuple[str, ...], list[int]] = {}
        self._unaudited: list[Sequence[Any]] = []

    # ── Settlements ──────────────────────────────────────────────────────────────────────────────

    def settle(self, settlements: Sequence[Settlement]) -> None:
        if not settlements:
            return
        wanted: dict[str, Settlement] = {}
        for one in settlements:
            if one.hold not in wanted or corrects(one, wanted[one.hold].kind):
                wanted[one.hold] = one
        known, epoch = self._known.holds, self._known.audit_epoch
        holds = {id: known[id] for id in wanted if id in known}
        if others := [id for id in wanted if id not in known]:
            holds |= {row.id: row for row in self._found(_FIND_HOLDS, _decode_holds, others)}
        for id, row in holds.items():
            self._settled.append(id)
            self._charge(row.app, row.day, wanted[id].billed, -row.bound)
            self._enter(row, wanted[id])
            if epoch:
                self._unaudited.append((row.request_id, id, epoch, wanted[id].interrupted))
        missing = [id for id in wanted if id not in holds]
        if missing:
            for entry in self._found(_FIND_ENTRIES, _decode_entries, missing):
                self._settle_late(entry, wanted[entry.hold.id])

    def _enter(self, row: HoldRow, settlement: Settlement) -> None:
        if settlement.model:
            row = replace(row, model=settlement.model)
        self._entries[row.id] = (
            row.id, row.app, row.provider, row.model, row.request_id, row.day, row.at, row.bound,
            settlement.at, settlement.billed, settlement.kind, settlement.input, settlement.read,
            settlement.written, settlement.output, settlement.saved, settlement.read_by_others,
            _encode(settlement.labels).decode(),
        )  # fmt: skip
        self._count(row, settlement)

    def _settle_late(self, entry: EntryRow, settlement: Settlement) -> None:
        if not corrects(settlement, entry.kind) or is_corrected(self._database, entry.hold.id):
            return
        row = entry.hold
        self._charge(row.app, row.day, settlement.billed - entry.billed, 0)
        self._count(row, entry.settlement, -1)
        self._enter(row, settlement)

    def _count(self, row: HoldRow, settlement: Settlement, sign: int = 1) -> None:
        """Adds a settlement to the sums, or subtracts it."""
        key = (row.day, row.app, row.provider, row.model)
        kind, billed = settlement.kind, sign * settlement.billed
        _add(
            self._sums, key,
            sign * (kind != "free"), billed, billed if kind in ESTIMATED_KINDS else 0,
            sign * settlement.saved, sign * settlement.input, sign * settlement.read,
            sign * settlement.written, sign * settlement.output,
        )  # fmt: skip
        for label, amount in settlement.labels.items():
            _add(self._label_sums, (*key, label), sign, sign * amount)

    # ── Holds ────────────────────────────────────────────────────────────────────────────────────

    def hold(self, requests: Sequence[HoldRequest]) -> dict[str, GrantExceeded]:
        """Takes the holds that their limits allow, in order. Returns why others were refused."""
        known = self._known
        if known.latest_day is None:
            known.latest_day = latest_day(self._database)
        latest = before = known.latest_day
        days = []
        for request in requests:
            if request.hold.at >= known.day_end:
                latest = max(latest, day_of(request.hold.at))
                known.day_end = end_of_day(latest)
            days.append(latest)
        refused: dict[str, GrantExceeded] = {}
        charged = self._charged(requests, days)
        for request, day in zip(requests, days, strict=True):
            hold, periods = request.hold, _periods(request.hold.app, day)
            problem = _exceeded(request, day, *(charged[one] for one in periods))
            if problem is not None:
                refused[hold.id] = problem
                continue
            for one in periods:
                charged[one] += hold.bound
            self._charge(hold.app, day, 0, hold.bound)
            self._held.append(
                HoldRow(
                    hold.id, hold.app, hold.provider, hold.model, hold.request_id, day, hold.at,
                    hold.bound,
                )
            )  # fmt: skip
        if latest > before:
            self._database.execute("UPDATE clock SET latest_day = ?", (latest,))
            known.latest_day = latest
        return refused

    def _charged(
        self, requests: Iterable[HoldRequest], days: Iterable[str]
    ) -> dict[tuple[str, str], int]:
        """Settled and held in each app's day and month, with this batch's settlements."""
        wanted = {
            period
            for request, day in zip(requests, days, strict=True)
            for period in _periods(request.hold.app, day)
        }
        known = self._known.balances
        if missing := wanted.difference(known):
            known.update(dict.fromkeys(missing, 0))
            apps, periods = {app for app, _ in missing}, {period for _, period in missing}
            for app, period, amount in self._found(_FIND_BALANCES, _decode_balances, apps, periods):
                if (app, period) in missing:
                    known[app, period] = amount
        return {one: known[one] + sum(self._balances.get(one, ())) for one in wanted}

    # ── Tables ───────────────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        if self._settled:
            self._database.execute(_REMOVE_HOLDS, (_encode(self._settled).decode(),))
        for insert, rows in (
            (_ADD_HOLDS, list(map(astuple, self._held))),
            (_PUT_ENTRIES, list(self._entries.values())),
            (_ADD_BALANCES, _rows(self._balances) if self._balances else []),
            (_ADD_SUMS, _rows(self._sums) if self._sums else []),
            (_ADD_LABEL_SUMS, _rows(self._label_sums) if self._label_sums else []),
            (_MARK_UNAUDITED, self._unaudited),
        ):
            if rows:
                insert.run(self._database, rows)

    def remember(self) -> None:
        """Updates the cache for the next batch, after the commit."""
        known = self._known
        for id in self._settled:
            known.holds.pop(id, None)
        for row in self._held:
            known.holds[row.id] = row
        for period, (spent, held) in self._balances.items():
            if period in known.balances:
                known.balances[period] += spent + held

    def _found(self, sql: str, decode: Callable[[str], T], *wanted: Iterable[str]) -> T:
        texts = [_encode(list(one)).decode() for one in wanted]
        return decode(self._database.execute(sql, texts).fetchone()[0])

    def _charge(self, app: str, day: str, spent: int, held: int) -> None:
        for period in _periods(app, day):
            _add(self._balances, period, spent, held)


def corrects(settlement: Settlement, kind: Settled) -> bool:
    """Whether a late settlement changes an entry: one at the bound gets the actual amount, all
    others are final."""
    return kind == "bound" and settlement.kind != "bound"


def _periods(app: str, day: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (app, day), (app, day[:7])


def _add(sums: dict[Any, list[int]], key: tuple[str, ...], *amounts: int) -> None:
    found = sums.get(key)
    if found is None:
        sums[key] = list(map(int, amounts))
    else:
        for at, amount in enumerate(amounts):
            found[at] += amount


def _rows(sums: dict[Any, list[int]]) -> list[tuple[Any, ...]]:
    return [(*key, *amounts) for key, amounts in sums.items()]


def _exceeded(request: HoldRequest, day: str, today: int, month: int) -> GrantExceeded | None:
    """The exceeded limit, the month's first, since it resets later."""
    bound, limits = request.hold.bound, request.limits
    if limits.per_month is not None and month + bound > limits.per_month:
        return refusal("usd_per_month", limits.per_month, bound, end_of_month(day))
    if limits.per_day is not None and today + bound > limits.per_day:
        return refusal("usd_per_day", limits.per_day, bound, end_of_day(day))
    return None


def refusal(name: str, limit: int, bound: int, end: float) -> GrantExceeded:
    """`end`: when the limit's period ends. Names no amount, which would reveal what other apps have
    in a shared cache."""
    if bound > limit:
        message = (
            f"{name} is less than this call can cost; a smaller max_tokens or a shorter prompt may"
            " fit"
        )
        return GrantExceeded(message, limit=name)
    moment = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = f"{name} does not allow this call any more; the limit resets at {moment}"
    return GrantExceeded(message, limit=name, resets_at=end)
