"""Migrates the tables of a database to the current version, with the SQL files of `migrations/`.

A file is applied once, in its own transaction, and its checksum is stored. Files only add, so that
nodes of the previous version keep working. A file that breaks older nodes says so in its first
line, `-- oldest: NNNN`: the number of the last file that a running node must know.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from anaphora.errors import NewerSchema, StoreRefused, StoreUnavailable

from .connection import SCHEMA, transaction

if TYPE_CHECKING:
    from .connection import Connection

_log = logging.getLogger("anaphora.daemon")

#: The key of the advisory lock: "anapmigr".
_LOCK = int.from_bytes(b"anapmigr", "big")
#: Seconds to wait for another process that migrates, and for a locked table.
_LOCK_SECONDS, _TABLE_SECONDS = 60.0, 5.0

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_OLDEST = re.compile(r"-- oldest: (\d+)\n")

_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, oldest int NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
)
"""


class MigrationFile(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def oldest(self) -> int:
        """The last file that the code of a running node must know."""
        found = _OLDEST.match(self.sql)
        return int(found[1]) if found else 0


class MigrationState(msgspec.Struct, frozen=True):
    """The last applied file, and the last file that exists; 0: none."""

    applied: int
    known: int
    pending: tuple[str, ...] = ()
    """Names of the files still to be applied."""


def files() -> tuple[MigrationFile, ...]:
    """In order."""
    folder = resources.files(__package__) / "migrations"
    found = [
        MigrationFile(int(match[1]), match[2], file.read_text("utf-8"))
        for file in folder.iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    found.sort(key=lambda one: one.number)
    return tuple(found)


async def state(connection: Connection) -> MigrationState:
    """Raises `StoreRefused` if an applied file differs, and `NewerSchema` if the database needs a
    newer version of this package."""
    rows = []
    if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.migrations"):
        rows = await connection.fetch(
            f"SELECT number, name, checksum, oldest FROM {SCHEMA}.migrations ORDER BY number"
        )
    shipped = files()
    known = {one.number: one for one in shipped}
    last = max(known, default=0)
    for number, name, checksum, oldest in rows:
        if oldest > last:
            raise NewerSchema("the store in PostgreSQL", version=number, known=last)
        if number in known and known[number].checksum != checksum:
            raise StoreRefused(
                f"the store in PostgreSQL was made by another migration {number:04d}_{name};"
                " use the version of anaphora that made it, or a database of its own"
            )
    applied = {row["number"] for row in rows}
    pending = tuple(f"{one.number:04d}_{one.name}" for one in shipped if one.number not in applied)
    return MigrationState(max(applied, default=0), last, pending)


async def migrate(connection: Connection) -> MigrationState:
    """Applies the missing files; returns the state before. Safe while nodes run, and while another
    process does the same."""
    before = await state(connection)
    if not before.pending:
        return before
    await _lock(connection)
    try:
        before = await state(connection)  # another process may have been faster
        await _create_schema(connection)
        for file in files():
            if f"{file.number:04d}_{file.name}" in before.pending:
                await _apply(connection, file)
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)
    return before


async def _lock(connection: Connection) -> None:
    # A session that waits in pg_advisory_lock would block concurrent index builds.
    waited = 0.0
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
        if waited >= _LOCK_SECONDS:
            raise StoreUnavailable("another process is migrating the store; try again later")
        if not waited:
            _log.info("waiting for another process that migrates the store")
        await asyncio.sleep(0.1)
        waited += 0.1


async def _create_schema(connection: Connection) -> None:
    # IF NOT EXISTS alone needs a privilege that a role may lack if an operator made the schema.
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", SCHEMA):
        await connection.execute(f"CREATE SCHEMA {SCHEMA}")
    await connection.execute(_TABLE)


async def _apply(connection: Connection, file: MigrationFile) -> None:
    async with transaction(connection):
        await connection.execute(
            f"SET LOCAL lock_timeout TO {int(_TABLE_SECONDS * 1000)};"
            " SET LOCAL statement_timeout TO 0"
        )
        await connection.execute(file.sql)
        await connection.execute(
            "INSERT INTO migrations (number, name, checksum, oldest) VALUES ($1, $2, $3, $4)",
            file.number, file.name, file.checksum, file.oldest,
        )  # fmt: skip
    _log.info("the store was migrated: %04d_%s", file.number, file.name)
