"""Connections to SQLite files that are only read, and transactions: for audit logs, the daemon's
store and the sums of the dashboard."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Seconds to wait for the lock of another process.
BUSY_SECONDS = 5.0


def connect_read_only(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """Does not check what the file holds. `any_thread`: it is used by several threads, one at a
    time."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=not any_thread,
    )


@contextmanager
def transaction(database: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commits at the end, or changes nothing."""
    database.execute(begin)
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
