"""The bills of session files, and what their calls lost, in a SQLite file that later runs continue.

    index = UsageIndex(index_file())
    index.known()                          how far each file was read
    index.add(piece)                       the bills of its new lines
    with index.counted(paths): ...         the files to sum; copies of answers count once

The file has digests, counts, times and names: no text of prompts. Any number of processes may use
it at once: a piece is added only to the position that it was read from.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.answers import AnswerCopy, digest
from anaphora.analysis.trace.programs import ProgramName
from anaphora.client.config.folders import user_folder
from anaphora.sqlite_files import (
    BUSY_SECONDS,
    make_private,
    side_files,
    transaction,
    use_wal,
)
from anaphora.version import __version__

from .copies import choose, count
from .pieces import FilePiece, pack, unpack_position
from .records import COUNTS, CallBill, CallLoss

#: Marks the file as ours: "anau".
_APPLICATION = 0x616E6175
_CALLS = (
    "CREATE TABLE {} (file INTEGER NOT NULL, key BLOB NOT NULL, answer BLOB NOT NULL,"
    " copied INTEGER NOT NULL, label INTEGER NOT NULL, at REAL, "
    + ", ".join(f"{name} INTEGER NOT NULL" for name in (*COUNTS, "line", "partial"))
    + ", PRIMARY KEY (file, key)) WITHOUT ROWID"
)
_TABLES = (
    "CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, position BLOB NOT NULL,"
    " began REAL, ended REAL, session TEXT, judged BLOB, notices BLOB)",
    "CREATE TABLE labels (id INTEGER PRIMARY KEY, program TEXT NOT NULL, provider TEXT NOT NULL,"
    " model TEXT NOT NULL, tier TEXT NOT NULL, session TEXT NOT NULL, project TEXT NOT NULL,"
    " UNIQUE (session, model, project, program, provider, tier))",
    _CALLS.format("calls"),
    "CREATE INDEX calls_answer ON calls (answer)",
    # The files that were counted together; calls that do not count, with the file that keeps the
    # answer; and calls that count with the tokens of a copy that has more output.
    "CREATE TABLE counted (file INTEGER PRIMARY KEY, position BLOB NOT NULL)",
    "CREATE TABLE dropped (file INTEGER NOT NULL, key BLOB NOT NULL, keeper INTEGER,"
    " is_last INTEGER NOT NULL, PRIMARY KEY (file, key)) WITHOUT ROWID",
    "CREATE INDEX dropped_keeper ON dropped (keeper)",
    _CALLS.format("richer"),
    "CREATE TABLE losses (file INTEGER NOT NULL, key BLOB NOT NULL, cause TEXT NOT NULL,"
    " tokens INTEGER NOT NULL, nano_usd INTEGER, sentence TEXT NOT NULL, idle REAL,"
    " saved_nano_usd INTEGER,"
    " PRIMARY KEY (file, key, cause)) WITHOUT ROWID",
)
_COLUMNS = "file", "key", "answer", "copied", "label", "at", *COUNTS, "line", "partial"
#: A later line about the same answer replaces the earlier, unless that has more output or is whole.
_ADD = (
    f"INSERT INTO calls VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT DO UPDATE SET"
    f" {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[4:])}"
    " WHERE (partial, excluded.output) >= (excluded.partial, output)"
)
#: Labels that are kept in memory.
_MOST_LABELS = 10_000

_counts = attrgetter(*COUNTS)

Label: TypeAlias = tuple[str, str, str, str, str, str]
"""Program, provider, model, service tier, session and project of a call."""
Unjudged: TypeAlias = tuple[str, ProgramName, dict[bytes, AnswerCopy]]
"""Path and program of a file, and the answers that other files keep."""


def index_file() -> Path:
    """Raises `InvalidConfig` for a user without a home folder."""
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return user_folder("XDG_CACHE_HOME", caches) / "usage.sqlite"


def remove_index(path: Path) -> None:
    for name in (path, *side_files(path)):
        name.unlink(missing_ok=True)


def _version() -> int:
    """Of the tables, the readers and the prices; another one makes the index useless."""
    parts = f"{_TABLES} {__version__} {catalog.price_table_date()}"
    return zlib.crc32(parts.encode()) & 0x7FFFFFFF


class UsageIndex:
    """A connection to the file, which is made if it is missing. Without a path, to a temporary
    one. Raises `OSError` or `sqlite3.Error` if the file cannot be used."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            make_private(path)
            if os.name == "posix" and not os.access(path, os.W_OK):
                raise PermissionError("it is read-only")
        self._database = sqlite3.connect(
            path or "", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self.run = self._database.execute
        self._labels: dict[Label, int] = {}
        try:
            if path is not None:
                use_wal(self._database)
            self.run("PRAGMA synchronous = NORMAL")
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def _prepare(self) -> None:
        if self._is_ours():
            return
        with transaction(self._database):
            if self._is_ours():
                return
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
            for (name,) in self.run(tables).fetchall():
                self.run(f'DROP TABLE "{name}"')
            for table in _TABLES:
                self.run(table)
            self.run(f"PRAGMA application_id = {_APPLICATION}")
            self.run(f"PRAGMA user_version = {_version()}")

    def _is_ours(self) -> bool:
        (application,) = self.run("PRAGMA application_id").fetchone()
        (version,) = self.run("PRAGMA user_version").fetchone()
        return (application, version) == (_APPLICATION, _version())

    # ── Bills ────────────────────────────────────────────────────────────────────────────────────

    def known(self) -> dict[str, bytes]:
        """By the path, how far each file was read: a packed `ReadPosition`."""
        return dict(self.run("SELECT path, position FROM files"))

    def position(self, path: str) -> bytes:
        row = self.run("SELECT position FROM files WHERE path = ?", (path,)).fetchone()
        return row[0] if row else b""

    def add(self, pieces: Iterable[FilePiece]) -> list[str]:
        """Returns the paths of files that another process has read meanwhile, whose pieces were
        not added."""
        with transaction(self._database):
            return [piece.path for piece in pieces if not self._add(piece)]

    def _add(self, piece: FilePiece) -> bool:
        found = self.run("SELECT id, position FROM files WHERE path = ?", (piece.path,)).fetchone()
        if (found[1] if found else b"") != piece.known:
            return False
        times = [call.at for call in piece.calls if call.at is not None]
        ended = max(times) if times else None
        position, began = pack(piece.position), piece.position.began
        if found is None:
            new = (
                "INSERT INTO files (path, position, began, ended) VALUES (?, ?, ?, ?) RETURNING id"
            )
            (file,) = self.run(new, (piece.path, position, began, ended)).fetchone()
        else:
            file = found[0]
            if piece.anew:
                self.run("DELETE FROM calls WHERE file = ?", (file,))
                self.run("DELETE FROM losses WHERE file = ?", (file,))
                self.run("UPDATE files SET ended = NULL, session = NULL WHERE id = ?", (file,))
            self.run(
                "UPDATE files SET position = ?, began = ?,"
                " ended = max(coalesce(ended, ?), coalesce(?, ended)) WHERE id = ?",
                (position, began, ended, ended, file),
            )
        if piece.calls:
            session = piece.calls[-1].session
            self.run("UPDATE files SET session = ? WHERE id = ?", (session, file))
        rows = [(file, *self._row(piece.program, call)) for call in piece.calls]
        self._database.executemany(_ADD, rows)
        return True

    def _row(self, program: ProgramName, call: CallBill) -> tuple[Any, ...]:
        """The columns after `file`."""
        label = program, call.provider, call.model, call.tier, call.session, call.project
        same, number = call.untimed or call.key, self._label(label)
        return call.key, same, call.copied, number, call.at, *_counts(call), call.line, call.partial

    def _label(self, label: Label) -> int:
        if label not in self._labels:
            if len(self._labels) >= _MOST_LABELS:
                self._labels.clear()
            names = "program, provider, model, tier, session, project"
            self.run(f"INSERT OR IGNORE INTO labels ({names}) VALUES (?, ?, ?, ?, ?, ?)", label)
            find = f"SELECT id FROM labels WHERE ({names}) = (?, ?, ?, ?, ?, ?)"
            (self._labels[label],) = self.run(find, label).fetchone()
        return self._labels[label]

    def forget(self, paths: Sequence[str]) -> None:
        """Removes files that do not exist any more."""
        with transaction(self._database):
            for path in paths:
                for table in ("calls", "losses"):
                    own = "SELECT id FROM files WHERE path = ?"
                    self.run(f"DELETE FROM {table} WHERE file IN ({own})", (path,))
                self.run("DELETE FROM files WHERE path = ?", (path,))

    # ── Each answer once ─────────────────────────────────────────────────────────────────────────

    @contextmanager
    def counted(self, paths: Iterable[str]) -> Iterator[None]:
        """Chooses the files to sum, and finds the copies of answers in them. Until the end, no
        other process changes what is summed."""
        paths = [*paths]
        with transaction(self._database, "BEGIN"):
            if choose(self._database, paths) == 0:
                yield
                return
        with transaction(self._database):
            if choose(self._database, paths):
                count(self._database)
            yield

    # ── Losses ───────────────────────────────────────────────────────────────────────────────────

    def files_of(self, session: str) -> list[str]:
        """The files with calls of a session."""
        return [
            path
            for (path,) in self.run(
                "SELECT DISTINCT path FROM labels JOIN calls ON label = labels.id"
                " JOIN files ON files.id = file WHERE labels.session = ? ORDER BY path",
                (session,),
            )
        ]

    def to_judge(self) -> Iterator[tuple[bytes, int, list[Unjudged]]]:
        """The sessions that were not judged since one of their files changed: a mark for
        `add_losses`, their bytes and their files."""
        files = self.run(
            "SELECT session, id, path, position, judged, (SELECT program FROM labels WHERE id ="
            " (SELECT label FROM calls WHERE file = files.id)) FROM files"
            " WHERE id IN chosen AND session IS NOT NULL ORDER BY session, path"
        ).fetchall()
        dropped = (
            "SELECT key, path, is_last FROM dropped JOIN files ON files.id = keeper WHERE file = ?"
        )
        for _, rows in groupby(files, itemgetter(0)):
            parts, marked, known, size = [], [], set(), 0
            for _, id, path, packed, judged, program in rows:
                copies = {
                    key: AnswerCopy(path, bool(last), copied=False)
                    for key, path, last in self.run(dropped, (id,))
                }
                position = unpack_position(packed)
                now = [path, position.size, position.digest.hex(), position.read_at]
                marked.append([*now, *map(bytes.hex, copies)])
                parts.append((path, program, copies))
                known.add(judged)
                size += position.size
            if known != {mark := digest(marked)}:
                yield mark, size, parts

    def add_losses(
        self, mark: bytes, paths: list[str], losses: list[list[CallLoss]], notices: list[str]
    ) -> None:
        """The losses in each file of a session, and why calls were not judged."""
        with transaction(self._database):
            for path, found in zip(paths, losses, strict=True):
                for file in self.run("SELECT id FROM files WHERE path = ?", (path,)).fetchall():
                    self.run("DELETE FROM losses WHERE file = ?", file)
                    rows = ((*file, *msgspec.structs.astuple(one)) for one in found)
                    add = "INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                    self._database.executemany(add, rows)
                    done = mark, pack(notices), *file
                    self.run("UPDATE files SET judged = ?, notices = ? WHERE id = ?", done)

    def notices(self) -> list[str]:
        """Why calls of the chosen files were not judged."""
        rows = self.run("SELECT DISTINCT notices FROM files WHERE id IN chosen AND notices NOTNULL")
        found = (msgspec.msgpack.decode(row, type=list[str]) for (row,) in rows)
        return sorted({notice for notices in found for notice in notices})
