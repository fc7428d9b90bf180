"""The index of beginnings that were sent before, in a file that all processes of a user share.

    index = seen_index()                              $XDG_CACHE_HOME/anaphora/seen.sqlite
    found = await index.find(scope, keys)             before a call: what is known of its prompt
    index.record(scope, uses)                         after the answer; returns at once

The file holds keyed digests, times and counts: no text, and no key of a provider. The key of the
digests is random and in the file. One thread does all work with it. If the file cannot be used,
nothing is found or recorded, and calls go on without it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import sqlite3
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from blake3 import blake3

from anaphora.cache.plan import RecallingPlanner, SeenBeginning, SeenUse
from anaphora.errors import InvalidConfig, Io
from anaphora.rendered import Rendered
from anaphora.sqlite_files import BUSY_SECONDS, transaction

from .config.folders import user_folder

if TYPE_CHECKING:
    from .target import Target

T = TypeVar("T")

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
#: The most beginnings; then the third that was not used for longest is dropped. They fit into the
#: pages however unevenly these are filled.
MOST_BEGINNINGS = 60_000
#: Pauses that are kept of a beginning.
_MOST_PAUSES = 8
#: Uses that a process records until it counts the beginnings again.
_COUNT_EVERY = 4096
#: Records that wait to be written; more are dropped.
_MOST_WAITING = 10_000
#: Seconds that a call waits for the index.
_FIND_SECONDS = 0.25
#: Seconds without work after which the thread closes the file and ends.
_IDLE_SECONDS = 5.0


#: What a damaged file, a full disk or missing permissions raise.
_UNUSABLE = (sqlite3.Error, OSError, ValueError, TypeError, struct.error)


class SeenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the index holds, for people."""

    path: str
    state: Literal["ok", "missing", "unusable"]
    bytes: int = 0
    beginnings: int = 0
    returning: int = 0
    """Beginnings of more than one call."""
    uses: int = 0
    """By calls; a call has up to six beginnings."""
    oldest: float | None = None
    newest: float | None = None
    problem: str = ""


class SeenIndex:
    """The index in one file, for any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start()
        atexit.register(self._finish)

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: _SeenFile | None = None
        self._reads = self._writes = True
        """Whether the file can be used."""
        self._is_late = False
        """A call did not wait longer for the thread, which is still at work."""

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────

    async def recall(
        self, target: Target, planner: RecallingPlanner, rendered: Rendered, at: float
    ) -> bool:
        """Tells the planner what is known of a prompt that is about to be sent. True if that says
        that one of its beginnings comes back."""
        positions = planner.beginnings(rendered)
        if positions is None or not self._reads:
            return False
        found = await self.find(_scope(target), planner.keys(rendered, positions))
        return bool(found) and planner.recall(rendered, positions, found, at)

    def keep(
        self, target: Target, planner: RecallingPlanner, rendered: Rendered, at: float
    ) -> None:
        """Records a call that was answered; the planner has recorded it before."""
        self.record(_scope(target), planner.uses(rendered, at))

    async def find(self, scope: str, keys: Mapping[int, bytes]) -> dict[int, SeenBeginning]:
        """What is known of beginnings, by the same numbers. Empty if that takes too long."""
        if not keys or not self._reads or self._is_late:
            return {}
        found = self._submit(lambda file: file.find(scope, keys))
        try:
            async with asyncio.timeout(_FIND_SECONDS):
                return await asyncio.wrap_future(found) or {}
        except TimeoutError:
            self._is_late = True
            return {}

    def record(self, scope: str, uses: Sequence[SeenUse]) -> None:
        """Adds a call. Never waits, and never raises for the file."""
        if uses and self._reads and self._writes and self._jobs.qsize() < _MOST_WAITING:
            self._submit(lambda file: self._record(file, scope, uses))

    async def flush(self) -> None:
        """Waits until what was recorded is written, for a limited time."""
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_SECONDS):
                    await asyncio.wrap_future(self._submit(lambda _: None))

    def _submit(self, act: Callable[[_SeenFile], T]) -> Future[T | None]:
        if self._process != os.getpid():
            # After a fork: the thread and the connection are the parent's, and stay open.
            self._inherited = self._file
            self._start()
        result: Future[T | None] = Future()

        def job() -> None:
            done = self._done(act)
            self._is_late = False
            if result.set_running_or_notify_cancel():
                result.set_result(done)

        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="anaphora seen", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process ends
                    thread.start()
                    self._thread = thread
        return result

    def _finish(self) -> None:
        """At exit: what was recorded is written, for a limited time."""
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            self._jobs.put(None)
            thread.join(BUSY_SECONDS)

    # ── Its own thread ───────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while True:
            job = None
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            if job is not None:
                job()
                continue
            with self._lock:
                if self._jobs.empty():
                    self._thread, file, self._file = None, self._file, None
                    break
        if file is not None:
            file.close()

    def _done(self, act: Callable[[_SeenFile], T]) -> T | None:
        if not self._reads:
            return None
        try:
            if self._file is None:
                self._file = _SeenFile(self.path)
            return act(self._file)
        except _UNUSABLE as problem:
            # A lock that others hold for long may be free for the next call.
            self._reads = _is_locked(problem)
            return None

    def _record(self, file: _SeenFile, scope: str, uses: Sequence[SeenUse]) -> None:
        if self._writes:
            try:
                file.record(scope, uses)
            except _UNUSABLE as problem:
                self._writes = _is_locked(problem)


class _SeenFile:
    """A connection to the file, which is made if it is missing."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_private(path)
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
        _patiently(lambda: run("PRAGMA journal_mode = WAL"))
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
                last=row[1],
                started=row[2],
                continued=row[3],
                pauses=_pauses(row[4]),
                written_until=row[5],
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
        run("VACUUM")
        run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return dropped


def _scope(target: Target) -> str:
    """Where a cache is: beginnings of other models or servers are others."""
    return f"{target.endpoint.wire_name}\0{target.endpoint.host}\0{target.model}"


def _make_private(path: Path) -> None:
    """Makes the file, readable by the user only. SQLite gives its side files the same mode."""
    opened = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of this user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(opened, 0o600)
    finally:
        os.close(opened)


def _pauses(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def _packed(pauses: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(pauses)}I", *(min(pause, 0xFFFFFFFF) for pause in pauses))


def _is_locked(problem: Exception) -> bool:
    code = getattr(problem, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _patiently(act: Callable[[], Any]) -> None:
    """Does what SQLite refuses at once while another process does the same."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as problem:
            if not _is_locked(problem) or time.monotonic() > until:
                raise
            time.sleep(0.01)


# ── For clients and commands ─────────────────────────────────────────────────────────────────────

_indexes: dict[Path, SeenIndex] = {}


def seen_path() -> Path:
    return user_folder("XDG_CACHE_HOME", ".cache") / "seen.sqlite"


def seen_index() -> SeenIndex | None:
    """The user's index, one object a process; None for a user without a home folder."""
    try:
        path = seen_path()
    except InvalidConfig:
        return None
    return _indexes.setdefault(path, SeenIndex(path))


def file_bytes(path: Path) -> int:
    """The bytes of the file, with SQLite's log of changes."""
    sizes = 0
    for name in (path, *_side_files(path)):
        with contextlib.suppress(OSError):
            sizes += name.stat().st_size
    return sizes


def seen_figures() -> SeenFigures:
    """What the index holds. Makes no file."""
    path = seen_path()
    if not path.exists():
        return SeenFigures(path=str(path), state="missing")
    try:
        with contextlib.closing(_SeenFile(path)) as file:
            return file.figures(path)
    except _UNUSABLE as problem:
        return SeenFigures(
            path=str(path), state="unusable", bytes=file_bytes(path), problem=str(problem)
        )


def clear_seen() -> int:
    """Forgets all beginnings, and returns how many there were. A damaged file is removed."""
    path = seen_path()
    if not path.exists():
        return 0
    try:
        with contextlib.closing(_SeenFile(path)) as file:
            return file.clear()
    except _UNUSABLE as problem:
        if _is_locked(problem):
            raise Io(f"{path}: another process holds it; try again") from None
        for name in (path, *_side_files(path)):
            name.unlink(missing_ok=True)
        return 0


def _side_files(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm"))
