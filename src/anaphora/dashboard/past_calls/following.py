"""Follows an audit log: adds its new rows to the file of past calls, in one transaction with the
position, in a thread while pages are served."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec
from msgspec.structs import replace

from anaphora.client.failures import described, log
from anaphora.errors import AnaphoraError, Io
from anaphora.sqlite_files import transaction

from .adding import KEPT_CALLS, AddedCalls
from .log_tail import LogTail
from .names import KnownNames
from .schema import FillState, Pause, create, open_to_write, remove

_log = logging.getLogger("anaphora.dashboard")

#: Calls of one transaction, and rows that are read without a pause.
_MOST_CALLS, _SLICE = 10_000, 100
#: Seconds between two checks of the log, and the same while a page is open.
_INTERVAL, _SHORT_INTERVAL = 3.0, 0.2
#: A page counts as open for this many seconds after its last request.
_OPEN = 5.0
#: Seconds of rest for each second of work, and the same while a page is open.
_REST, _SHORT_REST = 3.0, 1.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FillState).decode


class Filler:
    """Writes the file. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        log: Path,
        *,
        clock: Callable[[], float] = time.time,
        kept_calls: int = KEPT_CALLS,
    ) -> None:
        self.path = path
        self.log = log
        self.problem = ""
        """Why the log cannot be read further; empty if it can."""
        self.behind = True
        """Whether the log may have many calls that are not added yet."""
        self.swapping = threading.Lock()
        """Held while the file is replaced: it must not be opened meanwhile."""
        self._clock = clock
        self._kept = kept_calls
        self._building = path.with_name(path.name + ".new")
        self._database: sqlite3.Connection | None = None
        self._number = 0
        """Of the file that is open."""
        self._names: KnownNames | None = None
        self._seen: object = None
        """What the log looked like when it was read to its end."""
        self.state = FillState(log=str(log))

    def open(self) -> None:
        """Opens the file, or creates it. Raises `Io`."""
        self.close()
        try:
            remove(self._building)
            database = open_to_write(self.path)
            if database is None:
                self._create()
                return
            try:
                self._use(database)
            except (sqlite3.DatabaseError, msgspec.DecodeError):  # damaged
                database.close()
                self._create()
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise Io(f"{self.path}: cannot be opened: {reason}") from None
        if self.state.log != str(self.log):
            self._create()

    def _file_exists(self) -> bool:
        """Whether the open file still exists."""
        try:
            return os.stat(self.path).st_ino == self._number
        except FileNotFoundError:
            return False

    def _create(self) -> None:
        self.close()
        with self.swapping:
            database = create(self.path)
            _store(database, FillState(log=str(self.log)))
        self._use(database)

    def _use(self, database: sqlite3.Connection) -> None:
        self.state = read_state(database)
        self._names = KnownNames(database)
        self._database, self._number = database, os.stat(self.path).st_ino

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = self._names = None

    def discard(self) -> None:
        """Deletes the file; it will be rebuilt."""
        self.close()
        with self.swapping:
            remove(self.path)
        self._seen = None

    # ── Filling ──────────────────────────────────────────────────────────────────────────────────

    def fill(self, pause: Pause = lambda _: None) -> bool:
        """Adds the new rows of the log, at most one transaction; True if there may be more. `pause`
        is called from time to time, with the seconds of work before it. A pruned or replaced log is
        read from its beginning, into a file that replaces this one."""
        if self._database is None or not self._file_exists():
            self.open()
            self._seen = None
        tail = LogTail(self.log)
        look = tail.signature()
        if look is None or look == self._seen:
            self.behind = False
            return False
        if not tail.is_at(self.state.position):
            self._rebuild(tail, pause)
            return True
        added = self._add(tail, pause)
        if not added:
            self._seen = look
        return added

    def _rebuild(self, tail: LogTail, pause: Pause) -> None:
        self.behind = True
        fresh = Filler(self._building, self.log, clock=self._clock, kept_calls=self._kept)
        fresh._create()
        try:
            while fresh._add(tail, pause):
                pass
            self.problem = fresh.problem
        finally:
            fresh.close()
        self.close()
        with self.swapping:
            remove(self.path)
            os.replace(self._building, self.path)
        self.open()

    def _add(self, tail: LogTail, pause: Pause) -> bool:
        """One transaction; False if there was nothing to add."""
        database, names = self._database, self._names
        assert database is not None
        assert names is not None
        added = AddedCalls(names, self.state, self._clock())
        position, unreadable = self.state.position, self.state.unreadable
        try:
            while added.count < _MOST_CALLS:
                began = time.thread_time()
                read = tail.after(position, _SLICE)
                for number, call, place in read.calls:
                    added.add(number, call, place)
                unreadable += read.unreadable
                self.problem = read.newer
                moved, position = read.position != position, read.position
                if not moved:
                    break
                pause(time.thread_time() - began)
            if position == self.state.position:
                return False
            with transaction(database):
                added.write(database, self._kept, pause)
                state = replace(added.state, position=position, unreadable=unreadable)
                _store(database, state)
        except BaseException:
            self._names = None  # they may include names of the failed transaction
            self._names = KnownNames(database)
            raise
        self.state = state
        self.behind = added.count >= _MOST_CALLS
        return True


def read_state(database: sqlite3.Connection) -> FillState:
    found = database.execute("SELECT value FROM state WHERE name = 'fill'").fetchone()
    return _decode(found[0]) if found is not None else FillState()


def _store(database: sqlite3.Connection, state: FillState) -> None:
    row = "fill", _encode(state)
    database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", row)


# ── The thread ───────────────────────────────────────────────────────────────────────────────────


class FillThread:
    """Fills every few seconds, and several times a second while a page is open. It rests longer
    than it works, so that reading a long log does not slow down the daemon's calls."""

    def __init__(self, filler: Filler) -> None:
        self.filler = filler
        self.version = 0
        """Grows when calls were added."""
        self.problem = ""
        """Why the sums cannot be filled; empty if they can."""
        self._asked = float("-inf")
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="anaphora dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; an unfinished batch is added at the next start."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.filler.close()

    def page_requested(self) -> None:
        """A page was requested."""
        before, self._asked = self._asked, monotonic()
        if self._asked - before > _OPEN:
            self._wake.set()

    @property
    def _page_is_open(self) -> bool:
        return monotonic() - self._asked < _OPEN

    def fill(self, pause: Pause) -> None:
        """Adds all new rows. For callers without a thread."""
        while self.filler.fill(pause):
            self.version += 1
        self.problem = self.filler.problem

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                if not self._fill():
                    self._wake.wait(_SHORT_INTERVAL if self._page_is_open else _INTERVAL)
                    self._wake.clear()
        except _Ended:
            pass

    def _fill(self) -> bool:
        """True if there may be more rows."""
        try:
            more = self.filler.fill(self._rest)
        except _Ended:
            raise
        except Exception as problem:  # pages show the earlier sums
            self._failed(problem)
            return False
        self.problem = self.filler.problem
        self.version += more
        return more

    def _failed(self, problem: Exception) -> None:
        if isinstance(problem, sqlite3.DatabaseError) and not isinstance(
            problem, sqlite3.OperationalError
        ):
            self.filler.discard()  # damaged: it is rebuilt
        known = isinstance(problem, OSError | sqlite3.Error | AnaphoraError)
        reason = str(problem) if known else described(problem)
        if reason != self.problem:
            log(
                logging.ERROR, f"the sums of the dashboard were not filled: {reason}", problem, _log
            )
        self.problem = reason

    def _rest(self, worked: float) -> None:
        if self._ending.wait(worked * (_SHORT_REST if self._page_is_open else _REST)):
            raise _Ended


class _Ended(Exception):
    """The thread ends within a batch, which is not written."""
