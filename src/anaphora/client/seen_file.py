"""The SQLite file of the index of beginnings: keyed digests, times and counts, in at most 20 MB,
shared by any number of processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from blake3 import blake3

from anaphora.cache.plan import SeenBeginning, SeenUse
from anaphora.errors import Io
from anaphora.sqlite_files import (
    BUSY_SECONDS,
    is_locked,
    make_private,
    side_files,
    transaction,
    use_wal,
)

#: Marks the file as ours: "anab".
_APPLICATION = 0x616E6162
_VERSION = 1
_TABLES = (
    "CREATE TABLE settings (one INTEGER PRIMARY KEY CHECK (one = 1), key BLOB NOT NULL)",
    "CREATE TABLE beginnings (digest BLOB PRIMARY KEY, last INTEGER NOT NULL,"
    " tokens INTEGER NOT NULL, started INTEGER NOT NULL, continued INTEGER NOT NULL,"
    " pauses BLOB NOT NULL, written_until INTEGER NOT NULL) WITHOUT ROWID",
)
#: The most pages of 4 KB: with a log of changes of the same size, less than 20 MB.
_MOST_PAGES = 2048
#: The most beginnings; beyond that, the least recently used third is dropped. They fit into the
#: pages even if these are unevenly filled.
MOST_BEGINNINGS = 60_000
#: Pauses that are kept of a beginning.
_MOST_PAUSES = 8
#: After this many recorded uses, a process counts the beginnings again.
_COUNT_EVERY = 4096
#: Exceptions for a damaged file, a full disk or missing permissions.
_UNUSABLE = (sqlite3.Error, OSError, ValueError, TypeError, struct.error)


class SeenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures about the index, for display."""

    path: str
    state: Literal["ok", "missing", "unusable"]
    bytes: int = 0
    beginnings: int = 0
    returning: int = 0
    """Beginnings that more than one call had."""
    uses: int = 0
    """Uses by calls; a call has up to six beginnings."""
    oldest: float | None = None
    newest: float | None = None
    problem: str = ""


class SeenFile:
    """A connection to the file, which is made if it is missing."""

    def __init__(self, path: Path) -> None:
        make_private(path)
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._uncounted = _COUNT_EVERY
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _prepare(self) -> None:
        run = self._database.execute
        use_wal(self._database)
        run(f"PRAGMA max_page_count = {_MOST_PAGES}")
        run("PRAGMA wal_autocheckpoint = 256")
        run("PRAGMA journal_size_limit = 1048576")
        run("PRAGMA synchronous = NORMAL")
        if self._version() == _VERSION:
            return
        with transaction(self._database):
            if self._version() == 0 and not run("SELECT 1 FROM sqlite_master").fetchone():
                for table in _TABLES:
                    run(table)
                run("INSERT INTO settings VALUES (1, ?)", (os.urandom(32),))
                run(f"PRAGMA application_id = {_APPLICATION}")
                run(f"PRAGMA user_version = {_VERSION}")
        if self._version() != _VERSION:
            raise sqlite3.DatabaseError("the file is of another program or a newer version")

    def _version(self) -> int:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        return int(version) if application == _APPLICATION else -1 if application else 0

    def _digester(self, scope: str) -> Callable[[bytes], bytes]:
        # Read each time: `clear` changes it.
        (key,) = self._database.execute("SELECT key FROM settings").fetchone()
        begin = blake3(scope.encode() + b"\0", key=key)

        def digest(beginning: bytes) -> bytes:
            hashed = begin.copy()
            hashed.update(beginning)
            return hashed.digest(length=16)

        return digest

    def find(self, scope: str, keys: Mapping[int, bytes]) -> dict[int, SeenBeginning]:
        digest = self._digester(scope)
        positions = {digest(key): position for position, key in keys.items()}
        rows = self._database.execute(
            "SELECT digest, last, started, continued, pauses, written_until FROM beginnings"
            f" WHERE digest IN ({', '.join('?' * len(positions))})",
            tuple(positions),
        )
        return {
            positions[row[0]]: SeenBeginning(
                last=float(row[1]),
                started=int(row[2]),
                continued=int(row[3]),
                pauses=_pauses(row[4]),
                written_until=float(row[5]),
            )
            for row in rows
        }

    def record(self, scope: str, uses: Sequence[SeenUse]) -> None:
        self._uncounted += len(uses)
        if self._uncounted >= _COUNT_EVERY:
            self._uncounted = 0
            self._prune()
        try:
            self._add(scope, uses)
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            self._prune(always=True)
            self._add(scope, uses)

    def _add(self, scope: str, uses: Sequence[SeenUse]) -> None:
        run = self._database.execute
        with transaction(self._database):
            digest = self._digester(scope)
            for use in uses:
                key, at = digest(use.key), int(use.at)
                query = "SELECT last, pauses FROM beginnings WHERE digest = ?"
                if (row := run(query, (key,)).fetchone()) is not None:
                    pauses = (*_pauses(row[1]), max(0, at - row[0]))[-_MOST_PAUSES:]
                else:
                    pauses = ()
                run(
                    "INSERT INTO beginnings VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest)"
                    " DO UPDATE SET last = max(last, excluded.last), tokens = excluded.tokens,"
                    " started = started + excluded.started,"
                    " continued = continued + excluded.continued, pauses = excluded.pauses,"
                    " written_until = max(written_until, excluded.written_until)",
                    (
                        *(key, at, use.tokens, not use.continued, use.continued),
                        *(_packed(pauses), int(use.written_until)),
                    ),
                )

    def _prune(self, *, always: bool = False) -> None:
        run = self._database.execute
        (count,) = run("SELECT count(*) FROM beginnings").fetchone()
        if count > MOST_BEGINNINGS or always:
            oldest = "SELECT digest FROM beginnings ORDER BY last LIMIT ?"
            run(f"DELETE FROM beginnings WHERE digest IN ({oldest})", (count // 3 + 1,))
            run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def figures(self, path: Path) -> SeenFigures:
        row = self._database.execute(
            "SELECT count(*), sum(started + continued > 1), sum(started + continued), min(last),"
            " max(last) FROM beginnings"
        ).fetchone()
        return SeenFigures(
            path=str(path),
            state="ok",
            bytes=file_bytes(path),
            beginnings=row[0],
            returning=row[1] or 0,
            uses=row[2] or 0,
            oldest=row[3],
            newest=row[4],
        )

    def clear(self) -> int:
        run = self._database.execute
        with transaction(self._database):
            dropped = run("DELETE FROM beginnings").rowcount
            run("UPDATE settings SET key = ?", (os.urandom(32),))
        with contextlib.suppress(sqlite3.OperationalError):  # others use it
            run("VACUUM")
            run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return dropped


def _pauses(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def _packed(pauses: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(pauses)}I", *(min(pause, 0xFFFFFFFF) for pause in pauses))


def file_bytes(path: Path) -> int:
    """The bytes of the file, with SQLite's log of changes."""
    sizes = 0
    for name in (path, *side_files(path)):
        with contextlib.suppress(OSError):
            sizes += name.stat().st_size
    return sizes


def seen_figures(path: Path) -> SeenFigures:
    """Figures about the index. Makes no file."""
    if not path.exists():
        return SeenFigures(path=str(path), state="missing")
    try:
        with contextlib.closing(SeenFile(path)) as file:
            return file.figures(path)
    except _UNUSABLE as problem:
        return SeenFigures(
            path=str(path), state="unusable", bytes=file_bytes(path), problem=str(problem)
        )


def clear_seen(path: Path) -> int:
    """Forgets all beginnings, and returns how many there were. A damaged file is removed."""
    if not path.exists():
        return 0
    try:
        with contextlib.closing(SeenFile(path)) as file:
            return file.clear()
    except _UNUSABLE as problem:
        if is_locked(problem):
            raise Io(f"{path}: another process holds it; try again") from None
        for name in (path, *side_files(path)):
            name.unlink(missing_ok=True)
        return 0
