"""Copies logs row by row, checking each row: `move_log` from an SQLite file of an earlier version
to a folder, `copy_log` from a folder to PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anaphora.errors import ChainBroken, Io, NewerSchema
from anaphora.postgres.connection import transaction
from anaphora.sqlite_files import ForeignRows, connect_read_only, side_files

from .chain import ChainChecker, ChainHead
from .envelope import SCHEMA_VERSION
from .log_file import FileReader, check_name, segment_path
from .log_postgres import write_anchor
from .side_files import WriterLock, copy_key, is_locked, sync_folder

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: The application id of a log: "anau".
_APPLICATION = 0x616E6175
#: Rows copied to PostgreSQL by one statement.
_COPIED = 2_000


# ── From an SQLite file to a folder ──────────────────────────────────────────────────────────────


class MovedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that was copied from an SQLite file to a folder. Its chain was verified."""

    source: str
    log: str
    rows: int
    first: int
    """The number of its first row: above 1 if earlier ones were pruned."""
    last: int
    hash: str
    """Of the last row: the same in the file and in the folder."""


def move_log(
    source: Path, folder: Path, *, progress: Callable[[int], None] | None = None
) -> MovedLog:
    """Copies the rows of an SQLite log to a new folder, byte for byte, with its key. The file
    stays. `progress` gets the number of rows, from time to time. Raises `Io` if the folder is not
    empty or a process writes the log, and `ChainBroken` if the log was changed."""
    check_name(folder)
    if folder.exists() and any(folder.iterdir()):
        raise Io(f"{folder}: is not empty; name a new folder")
    if is_locked(source):
        raise Io(f"{source}: a process is writing this log; stop it first")
    lock = WriterLock(folder)
    unfinished = folder.with_name(f".{folder.name}.moving")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        try:
            unfinished.mkdir(mode=0o700, exist_ok=True)
            head, start = _copy_to_file(source, segment_path(unfinished, 1), progress)
            _check_copy_to_file(unfinished, source.name)
            copy_key(source, folder)
            if folder.exists():
                folder.rmdir()
            unfinished.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            lock.release()
    except OSError as error:
        raise Io(f"{folder}: cannot be written: {error.strerror or error}") from None
    return MovedLog(
        source=str(source),
        log=str(folder),
        rows=head.seq - start.seq,
        first=start.seq + 1,
        last=head.seq,
        hash=head.hash,
    )


def _check_copy_to_file(folder: Path, place: str) -> None:
    """Reads the folder as `verify` does: a row with a line break would become two."""
    copied = FileReader(folder)
    checker = ChainChecker(copied.start())
    for section in copied.sections:
        for _ in checker.check(copied.lines(section), lambda _: place):
            pass
    checker.finish()


def _copy_to_file(
    source: Path, target: Path, progress: Callable[[int], None] | None
) -> tuple[ChainHead, ChainHead]:
    """The last row, and the row before the first. Checks each row."""
    with _opened(source) as database:
        start = _start(database)
        checker = ChainChecker(start)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:

            def lines() -> Iterator[bytes]:
                for line in _lines(database, start, source.name):
                    yield line
                    file.write(line + b"\n")  # the checker took it

            for index in checker.check(lines(), lambda _: source.name):
                if progress is not None:
                    progress(index)
            checker.finish()
            file.flush()
            os.fsync(file.fileno())
    if checker.head == start:
        raise Io(f"{source}: the log has no rows")
    return checker.head, start


@contextmanager
def _opened(path: Path) -> Iterator[ForeignRows]:
    """A snapshot of the log, even while it is written."""
    database = connect_read_only(path)
    try:
        try:
            database.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # On a read-only medium, SQLite cannot create its lock file.
            if path.with_name(path.name + "-wal").exists():
                raise
            database.close()
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            database = sqlite3.connect(uri, uri=True, isolation_level=None)
        if database.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise Io(f"{path}: holds no audit log")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise NewerSchema(str(path), version=version, known=SCHEMA_VERSION)
        database.execute("BEGIN")
        files = [one for one in (path, *side_files(path)) if one.is_file()]
        size = sum(one.stat().st_size for one in files)
        yield ForeignRows(database, size, ("start", "rows"))
    except sqlite3.Error as error:
        raise Io(f"{path}: holds no audit log: {error}") from None
    finally:
        with suppress(sqlite3.Error):
            database.close()


def _start(database: ForeignRows) -> ChainHead:
    try:
        found = next(database.read("SELECT seq, hash FROM start"), None)
    except sqlite3.Error as error:
        raise ChainBroken(f"cannot be read: {error}", row=1) from None
    if found is None:
        return ChainHead()
    seq, digest = found
    return ChainHead(seq if isinstance(seq, int) else 0, str(digest))


def _lines(database: ForeignRows, start: ChainHead, place: str) -> Iterator[bytes]:
    seq = start.seq
    try:
        for number, line in database.read("SELECT seq, line FROM rows ORDER BY seq"):
            seq += 1
            yield line if number == seq and isinstance(line, bytes) else b"?"
    except sqlite3.Error as error:
        raise ChainBroken(f"cannot be read: {error}", row=seq + 1, place=place) from None


# ── From a folder to PostgreSQL ──────────────────────────────────────────────────────────────────


class CopiedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log of files that was copied to a chain in PostgreSQL."""

    chain: int
    rows: int
    head: ChainHead
    """Its last row: the same as in the original log."""


async def copy_log(
    connection: Connection,
    source: Path,
    *,
    node: str = "",
    key: bytes = b"",
    progress: Callable[[int], None] | None = None,
) -> CopiedLog:
    """Adds the rows of a folder as a new chain, with an anchor; within a transaction of the caller,
    or a new one. Each row is checked. Raises `ChainBroken` if the log was changed, and `Io` while a
    process writes it."""
    if is_locked(source):
        raise Io(f"{source}: a process is writing this log; stop it first")
    check_name(source)
    reader = FileReader(source)
    start = reader.start()
    checker, at = ChainChecker(start), 0.0
    async with transaction(connection):
        chain: int = await connection.fetchval(
            "INSERT INTO audit_chains (name, closed, start_seq, start_hash)"
            " VALUES ($1, now(), $2, $3) RETURNING id",
            source.name,
            start.seq,
            start.hash,
        )
        for section in reader.sections:
            lines: list[bytes] = []
            for line in reader.lines(section, unfinished=False):
                lines.append(line)
                if len(lines) == _COPIED:
                    at = await _copy_lines(connection, chain, checker, lines, at)
                    if progress is not None:
                        progress(checker.head.seq - start.seq)
                    lines = []
            at = await _copy_lines(connection, chain, checker, lines, at)
        checker.finish()
        head = checker.head
        update = "UPDATE audit_chains SET last_seq = $2, last_hash = $3 WHERE id = $1"
        await connection.execute(update, chain, head.seq, head.hash)
        await write_anchor(connection, node=node, key=key)
    return CopiedLog(chain=chain, rows=head.seq - start.seq, head=head)


async def _copy_lines(
    connection: Connection, chain: int, checker: ChainChecker, lines: list[bytes], at: float
) -> float:
    """Returns the latest time so far: rows are read in the order of their times."""
    first = checker.head.seq + 1
    for _ in checker.check(lines, lambda index: f"row {first + index:,}"):
        pass
    rows, now = [], time.time()
    for index, line in enumerate(lines):
        # The time it was written, so that it can be pruned by age.
        at = min(max(at, _decode_time(line).at), now)
        rows.append((chain, first + index, datetime.fromtimestamp(at, UTC), line))
    await connection.copy_records_to_table(
        "audit_rows", records=rows, columns=("chain", "seq", "at", "line")
    )
    return at


class _RowTime(msgspec.Struct, frozen=True):
    at: float


_decode_time = msgspec.json.Decoder(_RowTime).decode
