"""SQLite files of the daemon's store, of past calls, of the client's index and of usage: private
files, connections, transactions, and inserts of many rows."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

#: Seconds to wait for the lock of another process.
BUSY_SECONDS = 5.0


def connect_read_only(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """Does not check the content of the file. `any_thread`: several threads use it, one at a
    time."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=not any_thread,
    )


#: Of a foreign database: seconds for all its rows, more for a large file, by its bytes a second;
#: bytes of a value; bytes that a row takes at least.
_SECONDS, _BYTES_A_SECOND = 60.0, 5e6
_LONGEST_VALUE, _SHORTEST_ROW = 256 * 1024 * 1024, 8


class ForeignRows:
    """Reads tables of a database that others wrote, of `size` bytes. Raises `sqlite3.DatabaseError`
    for views and computed columns, which run what the file says, if the rows are more than the file
    can hold, and if they take too long."""

    def __init__(self, database: sqlite3.Connection, size: int, tables: Sequence[str]) -> None:
        self._database, self._bytes = database, 2 * size  # rows may be added meanwhile
        self._seconds = self._left = _SECONDS + size / _BYTES_A_SECOND
        self._until = time.monotonic() + self._left
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        database.set_progress_handler(lambda: time.monotonic() > self._until, 1000)
        for setting in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON"):
            database.execute(f"PRAGMA {setting}")
        listed = database.execute("PRAGMA main.table_list").fetchall()
        kinds = {name.lower(): kind for _, name, kind, *_ in listed}
        for table in tables:
            if table not in kinds:
                raise sqlite3.DatabaseError(f"no such table: {table}")
            if kinds[table] != "table":
                raise sqlite3.DatabaseError(f"{table!r} is no table, but of kind {kinds[table]}")
            columns = database.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
            if any(hidden for *_, hidden in columns):
                raise sqlite3.DatabaseError(f"a column of the table {table!r} is computed")

    def read(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows; the time between them does not count."""
        rows = self._database.execute(query, values)
        while True:
            self._until = time.monotonic() + self._left
            try:
                row = next(rows, None)
            except sqlite3.OperationalError:
                if time.monotonic() > self._until:
                    reason = f"its rows are not read within {self._seconds:.0f} s"
                    raise sqlite3.DatabaseError(reason) from None
                raise
            self._left = self._until - time.monotonic()
            if row is None:
                return
            self._bytes -= _SHORTEST_ROW + sum(len(v) for v in row if isinstance(v, str | bytes))
            if self._bytes < 0:
                raise sqlite3.DatabaseError("its rows are more than the file can hold: damaged")
            yield row


def numbered(*values: Any) -> dict[str, Any]:
    """Values of `$1`, `$2` …, as PostgreSQL writes them. Python 3.12.1 warns about `?1`."""
    return {str(number): value for number, value in enumerate(values, 1)}


def make_private(path: Path) -> None:
    """Makes the file and its folder, readable by the user only. SQLite gives its side files the
    same mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(path, os.O_RDONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError("it is no file")
        if os.name != "posix":
            return
        if found.st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(opened, 0o600)
    finally:
        os.close(opened)


def side_files(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm"))


def is_locked(problem: Exception) -> bool:
    """Whether another process holds the lock."""
    code = getattr(problem, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def use_wal(database: sqlite3.Connection) -> None:
    """Retries: SQLite refuses it at once while another process does the same."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            if not is_locked(problem) or time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def transaction(database: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit at the end, or roll back."""
    database.execute(begin)
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


#: Rows that one statement inserts: a statement of each size is prepared once.
_SIZES = (256, 64, 16, 8, 4, 3, 2, 1)


class RowInsert:
    """Inserts many rows into a table with few statements; with a key, adds to the figures of
    existing rows. SQLite releases the GIL during a statement: with one statement per row, a thread
    would wait for a busy event loop after each row."""

    def __init__(
        self,
        table: str,
        fields: Sequence[str],
        key: Sequence[str] = (),
        *,
        verb: str = "INSERT",
        end: str = "",
    ) -> None:
        row = f"({', '.join('?' * len(fields))})"
        if key:
            added = (f"{name} = {name} + excluded.{name}" for name in fields if name not in key)
            end = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(added)}"
        begin = f"{verb} INTO {table} ({', '.join(fields)}) VALUES "
        self._sql = {size: f"{begin}{', '.join([row] * size)} {end}" for size in _SIZES}

    def statements(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Any]]]:
        """The statements with their values."""
        at = 0
        for size in _SIZES:
            while len(rows) - at >= size:
                yield self._sql[size], list(chain.from_iterable(rows[at : at + size]))
                at += size

    def run(self, database: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        if len(rows) == 1:
            database.execute(self._sql[1], rows[0])
            return
        for sql, values in self.statements(rows):
            database.execute(sql, values)
