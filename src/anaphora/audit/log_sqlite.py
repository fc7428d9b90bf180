"""A log as one SQLite file: the same lines as a folder's, one row each.

`connect_read_only` and `transaction` also serve the daemon's store and the sums of the dashboard.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anaphora.errors import ChainBroken, Io, NewerSchema

from .chain import ChainChecker, ChainHead
from .envelope import SCHEMA_VERSION, Boundary, SegmentRow, StopRow, decode
from .log_file import Recovered

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


SUFFIXES = (".db", ".sqlite", ".sqlite3")

#: Marks the file as ours: "anau".
_APPLICATION = 0x616E6175

#: Rows at the end that are checked when a log is opened.
_CHECKED = 1000

_TABLES = """
CREATE TABLE rows (seq INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE start (seq INTEGER NOT NULL, hash TEXT NOT NULL);
"""


def is_sqlite(path: Path) -> bool:
    if path.is_file():
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\x00" or path.suffix in SUFFIXES
    return path.suffix in SUFFIXES and not path.is_dir()


class SqliteReader:
    """Reads a log without changing it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections: Sequence[Path] = (path,)
        try:
            self._database = _read_only(path)
            _check_version(self._database, path)
            self._database.execute("BEGIN")  # one state of the log, also while it is written
        except sqlite3.Error as error:
            raise Io(f"{path}: holds no audit log: {error}") from None

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def start(self) -> ChainHead:
        try:
            found = self._database.execute("SELECT seq, hash FROM start").fetchone()
        except sqlite3.Error as error:
            raise ChainBroken(f"cannot be read: {error}", row=1) from None
        return ChainHead() if found is None else _head(found)

    def lines(self, section: Path, *, unfinished: bool = True) -> Iterator[bytes]:  # noqa: ARG002
        seq = self.start().seq
        try:
            for number, line in self._database.execute("SELECT seq, line FROM rows ORDER BY seq"):
                seq += 1
                yield bytes(line) if number == seq and isinstance(line, bytes) else b"?"
        except sqlite3.Error as error:
            raise ChainBroken(f"cannot be read: {error}", row=seq + 1, place=section.name) from None

    def place(self, section: Path, index: int) -> str:  # noqa: ARG002
        return section.name

    def __del__(self) -> None:
        database = getattr(self, "_database", None)
        if database is not None:
            database.close()


class SqliteLogStore:
    """Writes a log. Used by one thread."""

    def __init__(self, path: Path, segment_bytes: int = 0) -> None:  # noqa: ARG002
        self.path = path
        self._database: sqlite3.Connection | None = None
        self._number = (0, 0)
        """Of the file that is open."""
        self._empty = True

    def open(self) -> Recovered:
        database = self._connect()
        last = "SELECT line FROM rows ORDER BY seq DESC LIMIT ?"
        try:
            lines = [bytes(line) for (line,) in database.execute(last, (_CHECKED,))][::-1]
        except (sqlite3.Error, TypeError) as error:
            raise ChainBroken(f"cannot be read: {error}", row=1, place=self.path.name) from None
        if not lines:
            return Recovered()
        self._empty = False
        first = decode(lines[0], self.path.name)
        checker = ChainChecker(ChainHead(first.seq, first.hash))
        for _ in checker.check(lines[1:], lambda _: self.path.name):
            pass
        row = decode(lines[-1], self.path.name)
        return Recovered(checker.head, row.content.epoch, isinstance(row.content, StopRow))

    def _connect(self) -> sqlite3.Connection:
        try:
            if not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA synchronous=FULL")
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                # All or nothing: the next start finds an empty file, or a log.
                database.execute("PRAGMA journal_mode=WAL")
                database.executescript(
                    f"BEGIN; PRAGMA application_id={_APPLICATION};"
                    f"PRAGMA user_version={SCHEMA_VERSION}; {_TABLES} COMMIT;"
                )
            _check_version(database, self.path)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise Io(f"{self.path}: cannot be opened: {reason}") from None
        stat = os.stat(self.path)
        self._database, self._number = database, (stat.st_dev, stat.st_ino)
        return database

    def segment_due(self, now: float) -> int:  # noqa: ARG002
        """The first row of a file names the row before it."""
        return 1 if self._empty else 0

    def append(self, lines: Sequence[bytes], segment: int = 0) -> None:
        """Commits rows: they are on the disk when this returns. Where it fails, the log is as
        before."""
        database = self._check_place()
        rows = [decode(lines[0])] if segment else []
        with transaction(database):
            if rows and isinstance(rows[0].content, SegmentRow):
                first = (rows[0].seq - 1, rows[0].content.prev)
                database.execute("INSERT INTO start VALUES (?, ?)", first)
            database.executemany(
                "INSERT INTO rows VALUES (?, ?)", ((_seq(line), line) for line in lines)
            )
        self._empty = False

    def _check_place(self) -> sqlite3.Connection:
        """Raises where the file is no longer there: a row written to it would be gone. The next
        attempt begins a new file."""
        if self._database is None:
            return self._connect()
        try:
            stat = os.stat(self.path)
            if (stat.st_dev, stat.st_ino) == self._number:
                return self._database
        except FileNotFoundError:
            pass
        self.close()
        self._empty = True
        raise FileNotFoundError(2, "the log was deleted", str(self.path))

    def boundaries(self, before: float) -> tuple[Boundary, ...]:
        """The last row of those at the beginning that were written before that time."""
        database = self._check_place()
        last = None
        for (line,) in database.execute("SELECT line FROM rows ORDER BY seq"):
            row = decode(bytes(line))
            if row.content.at >= before:
                break
            last = row
        return () if last is None else (Boundary(last.seq, last.hash),)

    def remove(self, boundaries: Sequence[Boundary]) -> None:
        database = self._check_place()
        last = boundaries[-1]
        with transaction(database):
            database.execute("DELETE FROM rows WHERE seq <= ?", (last.through,))
            database.execute("UPDATE start SET seq = ?, hash = ?", (last.through, last.hash))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _read_only(path: Path) -> sqlite3.Connection:
    database = connect_read_only(path)
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # On a medium that cannot be written, SQLite cannot create the file for its locks.
        if path.with_name(path.name + "-wal").exists():
            raise
        database.close()
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True, isolation_level=None)
    return database


def _seq(line: bytes) -> int:
    return int(line[line.index(b'"seq":') + 6 : line.index(b',"row"')])


def _head(found: tuple[object, object]) -> ChainHead:
    seq, digest = found
    return ChainHead(seq if isinstance(seq, int) else 0, str(digest))


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    if application != _APPLICATION:
        raise Io(f"{path}: holds no audit log")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise NewerSchema(str(path), version=version, known=SCHEMA_VERSION)
