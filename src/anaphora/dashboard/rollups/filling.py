"""Fills the file of sums from an audit log: new rows, in one transaction with the position."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from anaphora.audit.log_postgres import PostgresLog
from anaphora.audit.log_sqlite import transaction
from anaphora.errors import Io

from .batch import Batch
from .call_ids import remove_ids
from .chain_tail import ChainsTail
from .known_names import KnownNames
from .log_tail import FolderTail, LogTail, Position
from .schema import (
    HOUR,
    MINUTE,
    QUARTER,
    SUM_TABLES,
    add_longer_steps,
    create,
    open_to_write,
    remove,
)

#: Calls of one transaction, and rows that are read without a pause.
_MOST_CALLS, _SLICE = 10_000, 100
#: Latest calls that are kept one by one, and how many may be there before some are deleted.
KEPT_CALLS, _SLACK = 1_000_000, 20_000
#: Seconds for which minutes are kept.
KEPT_MINUTES = 26 * HOUR


class FillState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the sums are, as they are stored with them."""

    log: str = ""
    position: Position = Position()
    calls: int = 0
    """That were added."""
    unreadable: int = 0
    """Lines of the log that are no rows; `anaphora audit verify` tells which."""
    minutes_since: float = 0.0
    """Minutes are kept from here on."""
    longer_until: float = 0.0
    """Steps longer than a minute have the calls before this time; later ones are in minutes."""
    calls_since: float = 0.0
    """All calls after this time are kept."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FillState).decode


class Filler:
    """Writes the file. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        log: Path | PostgresLog,
        *,
        clock: Callable[[], float] = time.time,
        kept_calls: int = KEPT_CALLS,
    ) -> None:
        self.path = path
        self.log = log
        self.problem = ""
        """Why the log cannot be read further; empty where it can."""
        self.behind = True
        """Whether the log may have many calls that are not added yet."""
        self.swapping = threading.Lock()
        """Held while the file is exchanged: opening it must not happen meanwhile."""
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
        """Opens the file, or makes one. Raises `Io`."""
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

    def _is_here(self) -> bool:
        """Whether the open file was not deleted."""
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
        """Deletes the file, which is made anew."""
        self.close()
        with self.swapping:
            remove(self.path)
        self._seen = None

    # ── Filling ──────────────────────────────────────────────────────────────────────────────────

    def fill(self, pause: Callable[[float], None] = lambda _: None) -> bool:
        """Adds the new rows of the log, at most one transaction; whether there may be more. `pause`
        is called now and then, with the seconds of work before it. A log of which rows were pruned,
        or another one in its place, is read anew, into a file that replaces this one."""
        if self._database is None or not self._is_here():
            self.open()
            self._seen = None
        tail = tail_of(self.log)
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

    def _rebuild(self, tail: LogTail, pause: Callable[[float], None]) -> None:
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

    def _add(self, tail: LogTail, pause: Callable[[float], None]) -> bool:
        """One transaction; False where there was nothing to add."""
        database, names, state = self._database, self._names, self.state
        assert database is not None
        assert names is not None
        now = self._clock()
        since = max(state.minutes_since, (now - KEPT_MINUTES) // HOUR * HOUR)
        longer = max(state.longer_until, now // HOUR * HOUR)
        batch = Batch(names, since, longer)
        position, unreadable = state.position, state.unreadable
        try:
            while batch.calls < _MOST_CALLS:
                began = time.thread_time()
                read = tail.after(position, _SLICE)
                batch.add(read.calls)
                unreadable += read.unreadable
                self.problem = read.newer
                moved, position = read.position != position, read.position
                if not moved:
                    break
                pause(time.thread_time() - began)
            if position == state.position:
                return False
            state = replace(
                state,
                position=position,
                calls=state.calls + batch.calls,
                unreadable=unreadable,
                minutes_since=since,
                longer_until=longer,
            )
            with transaction(database):
                if longer > self.state.longer_until:
                    add_longer_steps(database, self.state.longer_until, longer)
                batch.write(database, pause)
                state = self._delete_old(database, state)
                _store(database, state)
        except BaseException:
            self._names = None  # they may hold names of the transaction that failed
            self._names = KnownNames(database)
            raise
        names.written()
        self.state = state
        self.behind = batch.calls >= _MOST_CALLS
        return True

    def _delete_old(self, database: sqlite3.Connection, state: FillState) -> FillState:
        if state.minutes_since > self.state.minutes_since:
            for table in SUM_TABLES:
                delete = f"DELETE FROM {table.name} WHERE step = ? AND start < ?"
                for step in (MINUTE, QUARTER):
                    database.execute(delete, (step, state.minutes_since))
        first, last = database.execute("SELECT min(seq), max(seq) FROM calls").fetchone()
        if first is None or last - first < self._kept + min(_SLACK, self._kept // 2):
            return state
        through = last - self._kept
        latest = "SELECT max(at) FROM calls WHERE seq <= ?"
        since = database.execute(latest, (through,)).fetchone()[0]
        database.execute("DELETE FROM calls WHERE seq <= ?", (through,))
        remove_ids(database, through)
        database.execute(
            "DELETE FROM conversations WHERE ended <= ? AND NOT EXISTS"
            " (SELECT 1 FROM calls WHERE conversation = conversations.id)",
            (since,),
        )
        return replace(state, calls_since=max(state.calls_since, since))


def read_state(database: sqlite3.Connection) -> FillState:
    found = database.execute("SELECT value FROM state WHERE name = 'fill'").fetchone()
    return _decode(found[0]) if found is not None else FillState()


def _store(database: sqlite3.Connection, state: FillState) -> None:
    row = "fill", _encode(state)
    database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", row)


def tail_of(log: Path | PostgresLog) -> LogTail:
    return ChainsTail(log) if isinstance(log, PostgresLog) else FolderTail(log)
