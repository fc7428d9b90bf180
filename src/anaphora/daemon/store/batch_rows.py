"""The rows of a batch: those known from earlier ones, and new ones, which one statement writes to
all tables.

New rows are inserted into a temporary view whose triggers write each to its table. sqlite3 releases
Python's lock several times in each statement and then waits for it, behind a busy event loop: so
the number of statements decides what a batch costs. Outside a transaction the statement is one, and
durable when it returns.
"""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import ESTIMATED_KINDS
from .schema import EntryRow, HoldRow

Row: TypeAlias = Sequence[Any]
"""The kind of a row, and its values."""

HOLD_FIELDS = HoldRow.__struct_fields__
SETTLED_FIELDS = EntryRow.__struct_fields__[:-1]
#: Maximum number of balances, and of holds, that are cached.
_MOST_KNOWN = 10_000
#: Most rows of a statement; further ones need a transaction.
MOST_ROWS = 256
#: Rows of a statement: the rest is filled with empty ones, so that few are prepared.
_SIZES = (4, 6, 8, 12, 16, 24, 32, 64, 128, MOST_ROWS)
#: Kinds of rows: a hold, the entry of one that is settled, a new amount of an entry, and the calls
#: whose audit rows are durable.
HOLD, ENTRY, LATE_ENTRY, AUDITED = range(1, 5)
#: In a hold's row, for a grant without a limit.
NO_LIMIT = 2**63 - 1

#: The columns that a statement writes: `accounts`, which most calls leave empty, is set separately.
_FIELDS = HOLD_FIELDS[:-1]
_ENTRY_FIELDS = (*_FIELDS, *SETTLED_FIELDS)
_WIDTH = len(_ENTRY_FIELDS) + 2
_STALE = "another process has written"
#: Of no kind. sqlite3 binds a number much faster than a `None` or a bool.
_NOTHING = (0,) * (_WIDTH + 1)


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
        self.further: set[str] = set()
        """Those of `holds` that count in further accounts."""
        self.audit_epoch = 0
        """Epoch of the audit log's writer: settlements are marked until their call has its row. 0
        without an audit log."""
        self._version: int | None = None

    def check(self, database: sqlite3.Connection) -> bool:
        """Clears the cache if another connection has written. Returns whether it is as it was."""
        version = database.execute("PRAGMA data_version").fetchone()[0]
        full = len(self.balances) > _MOST_KNOWN or len(self.holds) > _MOST_KNOWN
        if version != self._version or full:
            self.clear()
            self._version = version
            return False
        return True

    def clear(self) -> None:
        self.latest_day = self._version = None
        self.day_end = -math.inf
        self.balances.clear()
        self.holds.clear()
        self.further.clear()


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def _insert(table: str, fields: Sequence[str], *, verb: str = "INSERT") -> str:
    values = ", ".join(f"NEW.v{at}" for at in range(len(fields)))
    return f"{verb} INTO {table} ({', '.join(fields)}) VALUES ({values})"


def _added(key: str, figures: str) -> str:
    """Adds to the figures of an existing row."""
    sums = (f"{name} = {name} + excluded.{name}" for name in figures.split(", "))
    return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(sums)}"


def _charge(spent: str, held: str) -> str:
    """Adds amounts to the balances of the app's day and month."""
    rows = ", ".join(f"({{app}}, {period}, {spent}, {held})" for period in ("{day}", _MONTH))
    sql = f"INSERT INTO balances (app, period, spent, held) VALUES {rows}"
    return _of_new(f"{sql} {_added('app, period', 'spent, held')}")


def _balance(period: str) -> str:
    return f"(SELECT spent + held FROM balances WHERE app = {{app}} AND period = {period})"


def _refuse(condition: str) -> str:
    """Undoes the statement if another process has changed what it depends on."""
    return _of_new(f"SELECT RAISE(ABORT, '{_STALE}') WHERE {condition}")


def _count(sign: str, *, stored: bool = False) -> tuple[str, str]:
    """Adds an entry to the sums, or subtracts it: the new one, or the stored one of the same id."""
    figures = "calls, billed, estimated, saved, input, read, written, output"
    estimated = ", ".join(f"'{kind}'" for kind in sorted(ESTIMATED_KINDS))
    sums = (
        f"INSERT INTO sums ({_SUM_KEY}, {figures})"
        f" SELECT {{day}}, {{app}}, {{provider}}, {{model}},"
        f" {sign}({{kind}} <> 'free'), {sign}{{billed}},"
        f" {sign}(CASE WHEN {{kind}} IN ({estimated}) THEN {{billed}} ELSE 0 END),"
        f" {sign}{{saved}}, {sign}{{input}}, {sign}{{read}}, {sign}{{written}}, {sign}{{output}}"
    )
    labels = (
        f"INSERT INTO label_sums ({_SUM_KEY}, label, calls, billed) SELECT {{day}}, {{app}},"
        f" {{provider}}, {{model}}, label.key, {sign}1, {sign}label.value"
    )
    where, each = "WHERE true", "FROM json_each({labels}) AS label"
    if stored:
        where = "FROM entries AS old WHERE old.id = NEW.v0"
        each = "FROM entries AS old, json_each(old.labels) AS label WHERE old.id = NEW.v0"
    else:
        each = f"{each} WHERE true"
    named = _of_old if stored else _of_new
    return (
        named(f"{sums} {where} {_added(_SUM_KEY, figures)}"),
        named(f"{labels} {each} {_added(f'{_SUM_KEY}, label', 'calls, billed')}"),
    )


def _of_new(sql: str) -> str:
    return sql.format_map({name: f"NEW.v{at}" for at, name in enumerate(_ENTRY_FIELDS)})


def _of_old(sql: str) -> str:
    return sql.format_map({name: f"old.{name}" for name in _ENTRY_FIELDS})


_SUM_KEY = "day, app, provider, model"
_MONTH = "substr({day}, 1, 7)"
_PER_DAY, _PER_MONTH = (f"NEW.v{len(_FIELDS) + at}" for at in range(2))
_PUT_ENTRY = _insert("entries", _ENTRY_FIELDS, verb="INSERT OR REPLACE")
_EPOCH, _INTERRUPTED = (f"NEW.v{len(_ENTRY_FIELDS) + at}" for at in range(2))
_STATEMENTS = {
    HOLD: (
        _insert("holds", _FIELDS),
        _charge("0", "{bound}"),
        _refuse(f"{_balance('{day}')} > {_PER_DAY} OR {_balance(_MONTH)} > {_PER_MONTH}"),
    ),
    ENTRY: (
        _refuse("NOT EXISTS (SELECT 1 FROM holds WHERE id = {id})"),
        "DELETE FROM holds WHERE id = NEW.v0",
        _PUT_ENTRY,
        "INSERT OR IGNORE INTO unaudited (request_id, hold, epoch, interrupted)"
        f" SELECT NEW.v4, NEW.v0, {_EPOCH}, {_INTERRUPTED} WHERE {_EPOCH} > 0",
        _charge("{billed}", "-{bound}"),
        *_count(""),
    ),
    LATE_ENTRY: (
        _charge("{billed} - (SELECT old.billed FROM entries AS old WHERE old.id = NEW.v0)", "0"),
        *_count("-", stored=True),
        _PUT_ENTRY,
        *_count(""),
    ),
    AUDITED: ("DELETE FROM unaudited WHERE request_id IN (SELECT value FROM json_each(NEW.v0))",),
}


def create_view(database: sqlite3.Connection) -> None:
    """Creates the view in a connection, if it has none."""
    columns = ", ".join(f"NULL AS v{at}" for at in range(_WIDTH))
    database.execute(f"CREATE TEMP VIEW IF NOT EXISTS batch AS SELECT NULL AS kind, {columns}")
    for kind, statements in _STATEMENTS.items():
        database.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS batch_{kind} INSTEAD OF INSERT ON batch"
            f" WHEN NEW.kind = {kind} BEGIN {'; '.join(statements)}; END"
        )


def write_rows(database: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """In a transaction if there are more than `MOST_ROWS`."""
    for at in range(0, len(rows), MOST_ROWS):
        some = rows[at : at + MOST_ROWS]
        values: list[Any] = []
        for row in some:
            values += row
            values += _NOTHING[len(row) :]
        size = _SIZES[bisect_left(_SIZES, len(some))]
        values += _NOTHING * (size - len(some))
        database.execute(_INSERTS[size], values)


_ROW = f"({', '.join('?' * len(_NOTHING))})"
_INSERTS = {size: f"INSERT INTO batch VALUES {', '.join([_ROW] * size)}" for size in _SIZES}


def is_stale(problem: sqlite3.Error) -> bool:
    """Whether another process has changed what a row depends on."""
    return isinstance(problem, sqlite3.IntegrityError) and str(problem) == _STALE
