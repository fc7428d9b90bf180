"""The tables of a store, and its version.

`holds` are open; settling one moves it to `entries`. `balances` has the sums for checking limits,
by app and day or month, and those of groups and budgets (see `budgets`); `sums` and `label_sums`
those of `anaphora spend`; `unaudited` the entries whose call has no audit row yet. All of them
change in the same transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from anaphora.errors import Io, OtherSchema
from anaphora.sqlite_files import BUSY_SECONDS, connect_read_only, transaction

from . import SettledFigures, Settlement

#: SQLite's application id of the file: "anas".
APPLICATION = 0x616E6173

#: Page cache for writing in kilobytes: rows are appended, and old ones seldom read.
_CACHE = 512

#: `clock`: the latest day of any hold; entries of days before `pruned_until`, the first of a month,
#: are deleted, and their sums kept; `audit_epoch` is that of the audit log's writer, 0 without one.
#: `accounts` of a hold or entry: the further names in `balances` that it counts in, as JSON, or
#: empty. An entry of the kind `correction` names the entry that it `corrects`: `billed` is the
#: amount that it adds, `confirmed` the amount that was estimated until then. `budgets`: narrowed
#: tokens. `audit_logs`: the first row of each log that has a MAC, and the id of the key.
_TABLES = """
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1), latest_day TEXT NOT NULL, pruned_until TEXT NOT NULL,
    audit_epoch INTEGER NOT NULL
);
INSERT INTO clock VALUES (1, '', '', 0);
CREATE TABLE balances (
    app TEXT NOT NULL, period TEXT NOT NULL, spent INTEGER NOT NULL, held INTEGER NOT NULL,
    PRIMARY KEY (app, period)
) WITHOUT ROWID;
CREATE TABLE holds (
    id TEXT PRIMARY KEY, app TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
    request_id TEXT NOT NULL, day TEXT NOT NULL, at REAL NOT NULL, bound INTEGER NOT NULL,
    accounts TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE entries (
    id TEXT PRIMARY KEY, app TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
    request_id TEXT NOT NULL, day TEXT NOT NULL, at REAL NOT NULL, bound INTEGER NOT NULL,
    settled_at REAL NOT NULL, billed INTEGER NOT NULL, kind TEXT NOT NULL,
    input INTEGER NOT NULL, read INTEGER NOT NULL, written INTEGER NOT NULL,
    output INTEGER NOT NULL, saved INTEGER NOT NULL, read_by_others INTEGER NOT NULL,
    labels TEXT NOT NULL, corrects TEXT NOT NULL DEFAULT '', confirmed INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', accounts TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX corrections ON entries (app, id) WHERE corrects <> '';
CREATE TABLE sums (
    day TEXT NOT NULL, app TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
    calls INTEGER NOT NULL, billed INTEGER NOT NULL, estimated INTEGER NOT NULL,
    saved INTEGER NOT NULL, input INTEGER NOT NULL, read INTEGER NOT NULL,
    written INTEGER NOT NULL, output INTEGER NOT NULL, corrected INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, app, provider, model)
) WITHOUT ROWID;
CREATE TABLE label_sums (
    day TEXT NOT NULL, app TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
    label TEXT NOT NULL, calls INTEGER NOT NULL, billed INTEGER NOT NULL,
    PRIMARY KEY (day, app, provider, model, label)
) WITHOUT ROWID;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, app TEXT NOT NULL, digest BLOB NOT NULL, created REAL NOT NULL,
    expires REAL, revoked REAL
) WITHOUT ROWID;
CREATE TABLE budgets (
    id TEXT PRIMARY KEY, app TEXT NOT NULL, digest BLOB NOT NULL, created REAL NOT NULL,
    expires REAL NOT NULL, revoked REAL, parent TEXT NOT NULL, nano_usd INTEGER NOT NULL,
    models TEXT NOT NULL, label TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX budgets_by_expiry ON budgets (expires);
CREATE INDEX budgets_of_parent ON budgets (parent);
CREATE TABLE handles (
    kind TEXT NOT NULL, id TEXT NOT NULL, provider TEXT NOT NULL, app TEXT NOT NULL,
    created REAL NOT NULL, tokens INTEGER,
    PRIMARY KEY (kind, id, provider)
) WITHOUT ROWID;
CREATE INDEX handles_of_app ON handles (app, kind);
CREATE INDEX handles_by_age ON handles (kind, created);
CREATE TABLE audit_logs (
    name TEXT PRIMARY KEY, signed_since INTEGER NOT NULL, key_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE unaudited (
    request_id TEXT NOT NULL, hold TEXT NOT NULL, epoch INTEGER NOT NULL,
    interrupted INTEGER NOT NULL,
    PRIMARY KEY (request_id, hold)
) WITHOUT ROWID
"""
SCHEMA_VERSION = 10

#: The figures of the table `sums`, in the SQL of both stores.
ENTRY_SUMS = """
    SUM(CASE WHEN kind IN ('free', 'correction') THEN 0 ELSE 1 END) AS calls,
    SUM(billed) AS billed,
    SUM(CASE WHEN kind IN ('estimated', 'bound', 'disputed') THEN billed ELSE -confirmed END)
        AS estimated,
    SUM(saved) AS saved, SUM(input) AS input, SUM(read) AS read, SUM(written) AS written,
    SUM(output) AS output, SUM(CASE WHEN kind = 'correction' THEN billed ELSE 0 END) AS corrected
"""


def sums_of(entries: str, *key: str) -> str:
    """The sums of some entries."""
    columns = ", ".join(("day", "app", "provider", "model", *key))
    return f"SELECT {columns}, {ENTRY_SUMS} FROM {entries} GROUP BY {columns}"


#: The expected contents of the table `sums`.
SUMS_OF_ENTRIES = sums_of("entries")


def connect(path: Path) -> sqlite3.Connection:
    """Connects for reading and writing. The file must exist; the version is not checked."""
    database = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    try:
        database.execute("PRAGMA synchronous=FULL")
        database.execute(f"PRAGMA cache_size=-{_CACHE}")
    except BaseException:
        database.close()
        raise
    return database


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connects for reading. Raises `Io` if there is no store of this version."""
    refuse_lost_file(path)
    if not path.is_file():
        raise Io(f"{path}: no such store")
    with readable(path):
        database = connect_read_only(path, any_thread=True)
        try:
            if not version_of(database, path):
                raise Io(f"{path}: holds no store of anaphora")
        except BaseException:
            database.close()
            raise
    return database


def refuse_lost_file(path: Path) -> None:
    """Raises `Io` if the file is missing or empty and its log is not: SQLite would delete the log
    and begin a new store without any spend."""
    log = path.with_name(path.name + "-wal")
    if (not path.exists() or not path.stat().st_size) and log.exists() and log.stat().st_size:
        raise Io(
            f"{path}: is missing or empty, and its log {log.name} is not: put the file back; or"
            f" move {log.name} away, and restore a backup"
        )


def has_store(path: Path) -> bool:
    """Whether a store exists. Raises `Io` if its file is lost."""
    refuse_lost_file(path)
    return path.exists()


def create(path: Path) -> None:
    """Creates an empty file that only its owner can read, if there is none."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Creates the tables of a new store, atomically."""
    version = version_of(database, path)
    mode = database.execute("PRAGMA journal_mode=WAL").fetchone()[0]  # a backup is not in this mode
    if mode != "wal":
        raise Io(f"{path}: SQLite's WAL mode does not work here; use a local disk")
    if version:
        return
    with transaction(database):
        if version_of(database, path):
            return  # another process was faster
        for statement in _TABLES.split(";\n"):
            database.execute(statement)
        database.execute(f"PRAGMA application_id={APPLICATION}")
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def version_of(database: sqlite3.Connection, path: Path) -> int:
    """The schema version; 0 for an empty file. Raises if the file is no store of this version."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION:
        if database.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise Io(f"{path}: holds no store of anaphora")
        return 0
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise OtherSchema(str(path), version=version, known=SCHEMA_VERSION)
    if version < SCHEMA_VERSION:
        raise OtherSchema(str(path), version=version, known=SCHEMA_VERSION)
    return version


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns the errors of SQLite and the system into `Io`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise Io(f"{path}: cannot be opened: {described(error)}") from None


def described(error: BaseException) -> str:
    """An error of SQLite or the system, without a path."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


class HoldRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of `holds`."""

    id: str
    app: str
    provider: str
    model: str
    request_id: str
    day: str
    at: float
    bound: int
    accounts: str
    """See `budgets.accounts_of`."""


class EntryRow(SettledFigures, frozen=True, array_like=True):
    """A row of `entries`: how a hold was settled, and the hold."""

    labels: str
    """A JSON object."""
    hold: HoldRow

    @property
    def settlement(self) -> Settlement:
        return Settlement(
            hold=self.hold.id,
            billed=self.billed,
            kind=self.kind,
            at=self.settled_at,
            input=self.input,
            read=self.read,
            written=self.written,
            output=self.output,
            read_by_others=self.read_by_others,
            labels=msgspec.json.decode(self.labels),
            saved=self.saved,
        )
