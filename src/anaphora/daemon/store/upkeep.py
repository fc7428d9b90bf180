"""Backup, check and pruning of a store's file, with or without a running daemon."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec

from anaphora.errors import Io
from anaphora.sqlite_files import numbered, transaction
from anaphora.wording import counted

from .batch import latest_day
from .reading import SUMS, day_of, pruning_day, start_of_day
from .schema import (
    SUMS_OF_ENTRIES,
    connect,
    connect_to_read,
    described,
    readable,
    version_of,
)


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    store: str
    schema_version: int
    bytes: int
    entries: int
    open_holds: int
    tokens: int
    handles: int
    latest_day: str
    pruned_until: str
    """Entries of earlier days are deleted; empty if none are."""
    problems: tuple[str, ...]
    """Empty if the store is sound."""


class PrunedStore(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    until: str
    """The first day whose entries are kept."""
    entries: int
    """Number of deleted entries."""


def back_up(path: Path, target: Path) -> None:
    """Copies a consistent snapshot of a store, which may be in use, to a new file that only its
    owner can read."""
    try:
        with closing(connect_to_read(path)) as source:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            # In one step: a copy in several steps would restart whenever the daemon writes.
            with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                _quick_check(copy, path)
    except (OSError, sqlite3.Error) as error:
        raise Io(f"{target}: cannot be written: {described(error)}") from None


def _quick_check(database: sqlite3.Connection, path: Path) -> None:
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise Io(f"{path}: is damaged: {found}")


def prune(path: Path, *, keep_days: float, now: float | None = None) -> PrunedStore:
    """Deletes the entries of months before the last `keep_days`, a few at a time; a daemon may use
    the store. The sums are kept. The file keeps its size, and its free space is reused."""
    connect_to_read(path).close()
    until = pruning_day(keep_days, time.time() if now is None else now)
    deleted = 0
    with readable(path), closing(connect(path)) as database:
        while True:
            with transaction(database):
                count = database.execute(PRUNE.format("?", "?", "?"), prune_values(until)).rowcount
                if count:
                    database.execute(MARK_PRUNED.format("$1"), numbered(until))
            if not count:
                _prune_budgets(database, until)
                return PrunedStore(store=str(path), until=until, entries=deleted)
            deleted += count


def _prune_budgets(database: sqlite3.Connection, until: str) -> None:
    ended, statements = start_of_day(until), prune_budgets()
    while True:
        with transaction(database):
            deleted = [database.execute(sql, numbered(ended)).rowcount for sql in statements]
        if not deleted[-1]:
            return


def prune_budgets() -> tuple[str, ...]:
    """Statements that delete the oldest budgets that expired before a time: they have only counted
    in months whose entries are deleted. The last one returns how many were deleted."""
    some = "(SELECT id FROM budgets WHERE expires < $1 ORDER BY expires, id LIMIT 500)"
    return (
        f"DELETE FROM balances WHERE app IN (SELECT 'budget:' || id FROM {some} AS ended)",
        f"DELETE FROM budgets WHERE id IN {some}",
    )


#: Deletes the oldest entries. Ids sort by time, and a call is charged to its day or a later one, so
#: no entry after that id is of an earlier day.
PRUNE = """
DELETE FROM entries WHERE id IN (
    SELECT id FROM entries WHERE id < {} AND day < {} ORDER BY id LIMIT {}
)
"""
#: In the same transaction: records that sums of these days have no entries.
MARK_PRUNED = "UPDATE clock SET pruned_until = {0} WHERE pruned_until < {0}"
_PRUNED_AT_ONCE = 2_000


def prune_values(until: str) -> tuple[str, str, int]:
    return f"{int(start_of_day(until) * 1000):012x}", until, _PRUNED_AT_ONCE


def check(path: Path, *, now: float | None = None) -> StoreReport:
    """Checks the file, and that all sums agree with the entries. Changes nothing."""
    with closing(connect_to_read(path)) as database:
        try:
            with transaction(database, "BEGIN"):  # a snapshot, even while the daemon writes
                problems = tuple(_problems(database, time.time() if now is None else now))
                counts = {
                    name: database.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]
                    for name in ("entries", "holds", "tokens", "handles")
                }
                return StoreReport(
                    store=str(path),
                    schema_version=version_of(database, path),
                    bytes=path.stat().st_size,
                    entries=counts["entries"],
                    open_holds=counts["holds"],
                    tokens=counts["tokens"],
                    handles=counts["handles"],
                    latest_day=latest_day(database),
                    pruned_until=database.execute(PRUNED_UNTIL).fetchone()[0],
                    problems=problems,
                )
        except sqlite3.DatabaseError as error:
            raise Io(f"{path}: is damaged: {error}") from None


#: Sums of entries and holds by app and day or month: the expected contents of `balances`.
_BALANCES = """
SELECT app, period, SUM(spent) AS spent, SUM(held) AS held FROM (
    SELECT app, day AS period, billed AS spent, 0 AS held FROM entries
    UNION ALL SELECT app, substr(day, 1, 7), billed, 0 FROM entries
    UNION ALL SELECT app, day, 0, bound FROM holds
    UNION ALL SELECT app, substr(day, 1, 7), 0, bound FROM holds
    UNION ALL SELECT {value}, day, billed, 0 FROM entries, {each} WHERE accounts <> ''
    UNION ALL SELECT {value}, substr(day, 1, 7), billed, 0 FROM entries, {each}
        WHERE accounts <> '' AND {value} LIKE 'group:%'
    UNION ALL SELECT {value}, day, 0, bound FROM holds, {each} WHERE accounts <> ''
    UNION ALL SELECT {value}, substr(day, 1, 7), 0, bound FROM holds, {each}
        WHERE accounts <> '' AND {value} LIKE 'group:%'
) AS parts GROUP BY app, period
"""

_LABELS = """
SELECT entries.day, entries.app, entries.provider, entries.model, label.key,
    SUM(CASE WHEN entries.kind = 'correction' THEN 0 ELSE 1 END), SUM({value})
FROM entries, {each}(entries.labels) AS label GROUP BY 1, 2, 3, 4, 5
"""


class SumsDialect(msgspec.Struct, frozen=True):
    """What differs between the stores in the expected sums."""

    labels: str
    balances: str


_SQLITE_SUMS = SumsDialect(
    _LABELS.format(value="label.value", each="json_each"),
    _BALANCES.format(
        value="further.value",
        each="json_each(CASE accounts WHEN '' THEN '[]' ELSE accounts END) AS further",
    ),
)
POSTGRES_SUMS = SumsDialect(
    _LABELS.format(value="label.value::bigint", each="jsonb_each_text"),
    _BALANCES.format(
        value="further.value",
        each="jsonb_array_elements_text(CASE accounts WHEN '' THEN '[]' ELSE accounts END::jsonb)"
        " AS further (value)",
    ),
)


def differences(dialect: SumsDialect) -> Iterator[tuple[str, str]]:
    """For each table of sums, a query that counts missing or wrong rows in the months that were not
    pruned; rows of zeros may be absent."""
    for table, period, figures, expected in (
        ("balances", "period", ("spent", "held"), dialect.balances),
        ("sums", "day", SUMS, SUMS_OF_ENTRIES),
        ("label_sums", "day", ("calls", "billed"), dialect.labels),
    ):
        absolute = " + ".join(f"abs({name})" for name in figures)
        kept = f"{period} >= substr(({PRUNED_UNTIL}), 1, 7)"
        right = f"SELECT * FROM ({expected}) AS right_ones WHERE {kept}"
        yield (
            table,
            f"SELECT (SELECT COUNT(*) FROM ({right} EXCEPT SELECT * FROM {table}) AS missing)"
            f" + (SELECT COUNT(*) FROM (SELECT * FROM {table} WHERE {absolute} > 0 AND {kept}"
            f" EXCEPT {right}) AS wrong)",
        )


PRUNED_UNTIL = "SELECT pruned_until FROM clock"
BOTH = "SELECT COUNT(*) FROM holds JOIN entries USING (id)"


def sum_problems(wrong: Mapping[str, int], both: int, latest: str, now: float) -> Iterator[str]:
    """Messages for the counts of wrong rows and of holds that are also settled."""
    for table, count in wrong.items():
        if count:
            yield f"{table} and the entries differ in {counted(count, 'row')}"
    if both:
        yield f"both open and settled: {counted(both, 'hold')}"
    if latest > (today := day_of(now)):
        yield (
            f"the clock was at {latest} before, and is at {today}: calls are charged to {latest}"
            " until then"
        )


def _problems(database: sqlite3.Connection, now: float) -> Iterator[str]:
    for (line,) in database.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            yield f"the file is damaged: {line}"

    def count(sql: str) -> int:
        return cast(int, database.execute(sql).fetchone()[0])

    wrong = {table: count(sql) for table, sql in differences(_SQLITE_SUMS)}
    yield from sum_problems(wrong, count(BOTH), latest_day(database), now)
