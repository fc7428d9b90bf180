"""The tables of the sums, and connections to their file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

from anaphora.audit.log_sqlite import BUSY_SECONDS, connect_read_only

#: Marks the file as ours: "anad".
APPLICATION: Final = 0x616E6164
#: A file of another version is made anew.
VERSION: Final = 6

#: The steps that sums are kept for, in seconds; each is a multiple of the one before.
MINUTE, QUARTER, HOUR, THIRD, WEEK = 60, 900, 3_600, 28_800, 604_800
STEPS: Final = (MINUTE, QUARTER, HOUR, THIRD, WEEK)

#: The figures of `CallSums`, in its order.
SUMS: Final = (
    "calls", "failed", "input", "read", "written", "output", "cost", "unpriced", "saved", "breaks",
    "lost", "lost_cost", "unbilled",
    "unreported",
)  # fmt: skip
#: What a sum changes by where an app may not see what it read of other apps.
MASKS: Final = ("read", "written", "cost", "unpriced", "saved", "unbilled")
#: The same of blocks.
BLOCK_MASKS: Final = ("read", "cost", "unpriced")
#: All figures of a call.
FIGURES: Final = (*SUMS, "retries", *(f"own_{name}" for name in MASKS))
#: The figures of the blocks of one label.
BLOCK_FIGURES: Final = (
    "calls", "tokens", "read", "cost", "unpriced", "breaks", "lost", "lost_cost",
    "unreported", *(f"own_{name}" for name in BLOCK_MASKS),
)  # fmt: skip
#: In place of a set of labels: all calls, whatever their labels.
ALL_CALLS: Final = -1

_KEY: Final = ("step", "label_set", "start", "app", "provider", "model")
_BLOCK_KEY: Final = ("step", "label", "start", "app", "provider", "model")


class SumTable(NamedTuple):
    """A table of sums, and what they are kept by."""

    name: str
    key: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def added(self) -> str:
        """Adds the figures of a row to those of one that is there."""
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in self.figures)
        return f"ON CONFLICT DO UPDATE SET {sums}"

    @property
    def created(self) -> str:
        return (
            f"CREATE TABLE {self.name} ({_integers(self.key)}, {_integers(self.figures)},"
            f" PRIMARY KEY ({', '.join(self.key)})) WITHOUT ROWID;"
        )


def _integers(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in names)


CALL_SUMS: Final = SumTable("sums", _KEY, FIGURES)
CAUSES: Final = SumTable("causes", (*_KEY, "cause"), FIGURES)
OUTCOMES: Final = SumTable("outcomes", (*_KEY, "outcome"), ("calls",))
BLOCKS: Final = SumTable("blocks", _BLOCK_KEY, BLOCK_FIGURES)
CHANGES: Final = SumTable("changes", (*_BLOCK_KEY, "change"), ("breaks",))
LATENCY: Final = SumTable("latency", ("step", "start", "provider", "bucket"), ("calls",))
SUM_TABLES: Final = (CALL_SUMS, CAUSES, OUTCOMES, BLOCKS, CHANGES, LATENCY)


_TABLES: Final = f"""
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL,
    UNIQUE (kind, text));
CREATE TABLE app_labels (app INTEGER NOT NULL, label INTEGER NOT NULL, kind TEXT NOT NULL,
    ttl TEXT, at REAL NOT NULL, PRIMARY KEY (app, label)) WITHOUT ROWID;
CREATE TABLE label_sets (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE);
CREATE TABLE set_labels (label INTEGER NOT NULL, label_set INTEGER NOT NULL,
    PRIMARY KEY (label, label_set)) WITHOUT ROWID;
{" ".join(table.created for table in SUM_TABLES)}
CREATE TABLE calls (seq INTEGER PRIMARY KEY, at REAL NOT NULL, segment INTEGER NOT NULL,
    place INTEGER NOT NULL, app INTEGER NOT NULL, provider INTEGER NOT NULL,
    model INTEGER NOT NULL, outcome INTEGER NOT NULL, cause INTEGER NOT NULL,
    label_set INTEGER NOT NULL, conversation INTEGER NOT NULL, first REAL,
    {_integers(FIGURES)});
CREATE INDEX calls_at ON calls (at, app, provider, model, outcome, cause, label_set, breaks);
CREATE INDEX calls_app ON calls (app, at);
CREATE INDEX calls_conversation ON calls (conversation);
CREATE TABLE id_pieces (id INTEGER PRIMARY KEY, last INTEGER NOT NULL, ids TEXT NOT NULL);
CREATE TABLE conversations (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    app INTEGER NOT NULL, provider INTEGER NOT NULL, model INTEGER NOT NULL,
    began REAL NOT NULL, ended REAL NOT NULL, {_integers(FIGURES)});
CREATE INDEX conversations_ended ON conversations (ended);
"""


def create(path: Path) -> sqlite3.Connection:
    """A new file, without calls; an earlier one is deleted."""
    remove(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    database = _connected(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(
        f"BEGIN; PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION};"
        f" {_TABLES} COMMIT;"
    )
    return database


def open_to_write(path: Path) -> sqlite3.Connection | None:
    """None where there is no such file, or one of another version."""
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
    """Tables without rows where there is no file yet."""
    if not path.exists():
        empty = sqlite3.connect(":memory:", isolation_level=None)
        empty.executescript(_TABLES)
        return empty
    database = connect_read_only(path, any_thread=True)
    database.execute("PRAGMA mmap_size=1073741824")
    database.execute("PRAGMA cache_size=-16384")
    return database


def remove(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def add_longer_steps(database: sqlite3.Connection, since: float, until: float) -> None:
    """Adds minutes of which there are no longer steps yet to those. Within a transaction."""
    for table in SUM_TABLES:
        sums = ", ".join(f"sum({name})" for name in table.figures)
        for step in STEPS[1:]:
            key = ", ".join(
                {"step": f"{step}", "start": f"start / {step} * {step}"}.get(name, name)
                for name in table.key
            )
            group = ", ".join(str(number + 1) for number in range(1, len(table.key)))
            database.execute(
                f"INSERT INTO {table.name} SELECT {key}, {sums} FROM {table.name}"
                f" WHERE step = ? AND start >= ? AND start < ? GROUP BY {group} {table.added}",
                (MINUTE, since, until),
            )


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
    )
    try:
        # What a crash of the machine loses is read from the log again.
        database.execute("PRAGMA synchronous=NORMAL")
        # In a daemon, which stays small, for as long as it runs.
        database.execute("PRAGMA cache_size=-4096")
    except sqlite3.DatabaseError:  # no database
        database.close()
        raise
    return database


def _is_ours(database: sqlite3.Connection) -> bool:
    found = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY]
    return found == [APPLICATION, VERSION]


_IDENTITY: Final = ("application_id", "user_version")
