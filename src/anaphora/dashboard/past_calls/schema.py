"""The tables of past calls, and connections to their file.

`calls` has a row for each of the latest calls. Tables of sums have the same figures by step of
time; they are filled by GROUP BY from the rows that a transaction adds (`added`, `added_blocks`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from anaphora.sqlite_files import BUSY_SECONDS, RowInsert, connect_read_only

from .log_tail import Position

#: Marks the file as ours: "anad".
APPLICATION: Final = 0x616E6164
#: A file of another version is rebuilt from the log.
VERSION: Final = 9

#: The step lengths that sums are stored for, in seconds; each is a multiple of the one before.
MINUTE, QUARTER, HOUR, THIRD, WEEK = 60, 900, 3_600, 28_800, 604_800
DAY: Final = 86_400
STEPS: Final = (MINUTE, QUARTER, HOUR, THIRD, WEEK)

#: The figures of `CallTotals`, in its order.
SUMS: Final = (
    "calls", "failed", "input", "read", "written", "output", "cost", "unpriced", "saved", "breaks",
    "lost", "lost_cost", "unbilled",
    "unreported",
)  # fmt: skip
#: Differences to the sums for an app that may not see its reads of other apps' entries.
MASKS: Final = ("read", "written", "cost", "unpriced", "saved", "unbilled")
#: The same for blocks.
BLOCK_MASKS: Final = ("read", "cost", "unpriced")
#: All figures of a call.
FIGURES: Final = (*SUMS, "retries", *(f"own_{name}" for name in MASKS))
#: The figures of the blocks of one label.
BLOCK_FIGURES: Final = (
    "calls", "tokens", "read", "cost", "unpriced", "breaks", "lost", "lost_cost",
    "unreported", *(f"own_{name}" for name in BLOCK_MASKS),
)  # fmt: skip
Pause: TypeAlias = Callable[[float], None]
"""Called from time to time, with the seconds of work before it."""
#: Seconds of work between two pauses.
_WORK: Final = 0.005
#: Label set number that stands for all calls.
ALL_CALLS: Final = -1

_SERVICE: Final = ("app", "provider", "model", "app_group")


class SumTable(msgspec.Struct, frozen=True, dict=True):
    """A table of sums: its key, and the added rows that it sums."""

    name: str
    key: tuple[str, ...]
    figures: tuple[str, ...]
    source: str = "added"
    where: str = "true"

    @property
    def fresh(self) -> str:
        """The temporary table with the sums of one transaction, by the shortest step."""
        return f"fresh_{self.name}"

    @property
    def columns(self) -> str:
        return f"{_integers(self.key)}, {_integers(self.figures)}"

    def sum(self, key: tuple[str, ...], where: str = "true") -> str:
        """Sums added rows; `key` are the expressions of the key."""
        return (
            f"INSERT INTO {self.fresh} SELECT {self._summed(key)} FROM {self.source}"
            f" WHERE {self.where} AND {where} GROUP BY {_numbers(key)}"
        )

    def add(self, source: str, where: str = "true", step: int | None = None) -> str:
        """Adds the sums of another table, with the same or a shorter step."""
        whole = {"step": f"{step}", "start": f"start / {step} * {step}"} if step else {}
        key = [whole.get(name, name) for name in self.key]
        return (
            f"INSERT INTO {self.name} SELECT {self._summed(key)} FROM {source}"
            f" WHERE {where} GROUP BY {_numbers(key)} ON CONFLICT DO UPDATE SET {self._added}"
        )

    def _summed(self, key: Sequence[str]) -> str:
        return ", ".join((*key, self._sums))

    @cached_property
    def _sums(self) -> str:
        return ", ".join(f"sum({name})" for name in self.figures)

    @cached_property
    def _added(self) -> str:
        return ", ".join(f"{name} = {name} + excluded.{name}" for name in self.figures)


def _numbers(columns: Sequence[str]) -> str:
    return ", ".join(str(place + 1) for place in range(len(columns)))


def _integers(names: Sequence[str]) -> str:
    return ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in names)


def _by_labels(*more: str) -> tuple[str, ...]:
    return ("step", "label_set", "start", *_SERVICE, *more)


_BLOCK_KEY: Final = ("step", "label", "start", *_SERVICE)
SUM_TABLES: Final = (
    SumTable("sums", _by_labels(), FIGURES),
    SumTable("causes", _by_labels("cause"), FIGURES, where="cause > 0"),
    SumTable("outcomes", _by_labels("outcome"), ("calls",), where="failed > 0"),
    SumTable("blocks", _BLOCK_KEY, BLOCK_FIGURES, "added_blocks"),
    SumTable("changes", (*_BLOCK_KEY, "change"), ("breaks",), "added_blocks", "change > 0"),
    SumTable(
        "latency", ("step", "start", "provider", "bucket"), ("times",), where="bucket IS NOT NULL"
    ),
    SumTable("tags", ("step", "start", "tag"), SUMS, "added JOIN added_tags USING (seq)"),
    SumTable("changed", ("step", "start", "changed"), SUMS, where="changed > 0"),
)


class FillState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the tables are filled; stored with them."""

    log: str = ""
    position: Position = Position()
    calls: int = 0
    """That were added."""
    unreadable: int = 0
    """Lines of the log that are not rows; `anaphora audit verify` lists them."""
    minutes_since: float = 0.0
    """Minutes are kept from here on."""
    longer_until: float = 0.0
    """Steps longer than a minute have the calls before this time; later ones are in minutes."""
    calls_since: float = 0.0
    """All calls after this time are kept."""


#: The columns of `calls`.
CALL_COLUMNS: Final = (
    "seq", "at", "segment", "place", *_SERVICE, "outcome", "cause", "label_set", "conversation",
    "first", *FIGURES,
)  # fmt: skip
#: Columns of `added`: the same, and those that only sums and conversations need.
ADDED_COLUMNS: Final = (
    *(name for name in CALL_COLUMNS if name != "conversation"),
    "step", "start", "changed", "bucket", "times", "conversation_name", "ended",
)  # fmt: skip
BLOCK_COLUMNS: Final = ("step", "start", *_SERVICE, "label", "change", *BLOCK_FIGURES)

_TABLES: Final = f"""
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL,
    UNIQUE (kind, text));
CREATE TABLE app_labels (app INTEGER NOT NULL, label INTEGER NOT NULL, kind TEXT NOT NULL,
    ttl TEXT, at REAL NOT NULL, PRIMARY KEY (app, label)) WITHOUT ROWID;
CREATE TABLE label_sets (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE);
CREATE TABLE set_labels (label INTEGER NOT NULL, label_set INTEGER NOT NULL,
    PRIMARY KEY (label, label_set)) WITHOUT ROWID;
CREATE TABLE calls (seq INTEGER PRIMARY KEY, at REAL NOT NULL, segment INTEGER NOT NULL,
    place INTEGER NOT NULL, app INTEGER NOT NULL, provider INTEGER NOT NULL,
    model INTEGER NOT NULL, app_group INTEGER NOT NULL, outcome INTEGER NOT NULL,
    cause INTEGER NOT NULL, label_set INTEGER NOT NULL, conversation INTEGER NOT NULL, first REAL,
    {_integers(FIGURES)});
CREATE INDEX calls_at ON calls (at, app, provider, model, outcome, cause, label_set, breaks);
CREATE INDEX calls_app ON calls (app, at);
CREATE INDEX calls_conversation ON calls (conversation);
CREATE TABLE call_ids (seq INTEGER PRIMARY KEY, ids TEXT NOT NULL);
CREATE TABLE conversations (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    app INTEGER NOT NULL, provider INTEGER NOT NULL, model INTEGER NOT NULL,
    app_group INTEGER NOT NULL, began REAL NOT NULL, ended REAL NOT NULL, {_integers(FIGURES)});
CREATE INDEX conversations_ended ON conversations (ended);
""" + "".join(
    f"CREATE TABLE {table.name} ({table.columns}, PRIMARY KEY ({', '.join(table.key)}))"
    " WITHOUT ROWID;\n"
    for table in SUM_TABLES
)
#: Rows added by one transaction; empty between transactions.
ADDED_TABLES: Final = ("added", "added_blocks", "added_tags")
_TEMPORARY: Final = f"""
PRAGMA temp_store=MEMORY;
CREATE TEMP TABLE added ({", ".join(ADDED_COLUMNS)});
CREATE TEMP TABLE added_blocks ({", ".join(BLOCK_COLUMNS)});
CREATE TEMP TABLE added_tags (seq, tag);
""" + "".join(f"CREATE TEMP TABLE {table.fresh} ({table.columns});\n" for table in SUM_TABLES)


class PausedWork:
    """Runs statements, with pauses."""

    def __init__(self, database: sqlite3.Connection, pause: Pause) -> None:
        self.database = database
        self._pause = pause
        self._began, self._due = time.thread_time(), time.perf_counter() + _WORK

    def run(self, sql: str, values: Sequence[object] = ()) -> None:
        self.database.execute(sql, values)
        if time.perf_counter() > self._due:
            self.pause()

    def fetch(self, sql: str, values: Sequence[object] = ()) -> Sequence[Any]:
        found: Sequence[Any] = self.database.execute(sql, values).fetchone()
        return found

    def insert(self, insert: RowInsert, rows: Sequence[Sequence[object]]) -> None:
        for sql, values in insert.statements(rows):
            self.run(sql, values)

    def pause(self) -> None:
        self._pause(time.thread_time() - self._began)
        self._began, self._due = time.thread_time(), time.perf_counter() + _WORK


def create(path: Path) -> sqlite3.Connection:
    """Creates a file without calls; an earlier one is deleted."""
    remove(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    database = _connected(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(
        f"BEGIN; PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION};"
        f" {_TABLES} COMMIT;"
    )
    return database


def create_in_memory() -> sqlite3.Connection:
    """May be used by any thread, one at a time."""
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.executescript(_TABLES + _TEMPORARY)
    return database


def open_to_write(path: Path) -> sqlite3.Connection | None:
    """None if the file is missing or of another version."""
    if not path.exists():
        return None
    try:
        database = _connected(path)
    except sqlite3.DatabaseError:
        return None
    try:
        if _is_ours(database):
            return database
    except sqlite3.DatabaseError:
        pass
    database.close()
    return None


def open_to_read(path: Path) -> sqlite3.Connection:
    """Empty tables if the file is missing or of another version."""
    if not path.exists():
        return create_in_memory()
    database = connect_read_only(path, any_thread=True)
    if not _is_ours(database):
        database.close()
        return create_in_memory()
    database.execute("PRAGMA mmap_size=1073741824")
    database.execute("PRAGMA cache_size=-16384")
    return database


def remove(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
    )
    try:
        # Rows lost in a crash of the machine are read from the log again.
        database.execute("PRAGMA synchronous=NORMAL")
        # In a daemon, which stays small, for as long as it runs.
        database.execute("PRAGMA cache_size=-2048")
        database.executescript(_TEMPORARY)
    except sqlite3.DatabaseError:  # no database
        database.close()
        raise
    return database


def _is_ours(database: sqlite3.Connection) -> bool:
    found = [
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    ]
    return found == [APPLICATION, VERSION]


_NEW_CONVERSATIONS: Final = """
INSERT OR IGNORE INTO conversations (name, app, provider, model, app_group, began, ended)
SELECT conversation_name, app, provider, model, app_group, at, ended FROM added
WHERE conversation_name != '' ORDER BY rowid
"""
_CONVERSATIONS: Final = f"""
UPDATE conversations SET began = min(conversations.began, own.began),
    ended = max(conversations.ended, own.ended),
    {", ".join(f"{name} = conversations.{name} + own.{name}" for name in FIGURES)}
FROM (SELECT conversation_name, min(at) AS began, max(ended) AS ended,
    {", ".join(f"sum({name}) AS {name}" for name in FIGURES)} FROM added GROUP BY 1) AS own
WHERE name = conversation_name
"""
#: SQLite: with a single `max`, the other columns are those of its row.
_LATEST_SERVICES: Final = """
UPDATE conversations
SET provider = own.provider, model = own.model, app_group = own.app_group
FROM (SELECT conversation_name, provider, model, app_group, max(rowid) FROM added GROUP BY 1) AS own
WHERE name = conversation_name
"""


def write_conversations(work: PausedWork) -> None:
    """Adds the calls of `added` to their conversations."""
    for sql in (_NEW_CONVERSATIONS, _CONVERSATIONS, _LATEST_SERVICES):
        work.run(sql)
