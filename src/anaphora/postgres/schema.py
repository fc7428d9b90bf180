"""The tables of a store in PostgreSQL, which the first node creates.

await create(connection)
await version(connection)       the schema version; 0: there are no tables
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from anaphora.errors import OtherSchema

from .connection import SCHEMA, transaction

if TYPE_CHECKING:
    from .connection import Connection

SCHEMA_VERSION = 10
#: The key of the advisory lock: "anapsche".
_LOCK = int.from_bytes(b"anapsche", "big")
_HAS_TABLE = "SELECT count(*) > 0 FROM pg_tables WHERE schemaname = $1 AND tablename = $2"
_PLACE = "the store in PostgreSQL"


async def version(connection: Connection) -> int:
    """Raises `OtherSchema` for tables of another version."""
    found = 0
    for table, column in (("schema_version", "version"), ("migrations", "number")):
        # Not `to_regclass`: while a transaction waits for a lock, it does not notice new tables.
        if await connection.fetchval(_HAS_TABLE, SCHEMA, table):
            found = await connection.fetchval(f"SELECT max({column}) FROM {SCHEMA}.{table}")
            break
    if found > SCHEMA_VERSION:
        raise OtherSchema(_PLACE, version=found, known=SCHEMA_VERSION)
    if 0 < found < SCHEMA_VERSION:
        raise OtherSchema(_PLACE, version=found, known=SCHEMA_VERSION)
    return found


async def create(connection: Connection) -> None:
    """Creates the tables if there are none; several processes may do that at the same time."""
    if await version(connection):
        return
    async with transaction(connection):
        await connection.execute("SET LOCAL statement_timeout TO 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await version(connection):
            return  # another process was faster
        # IF NOT EXISTS alone needs a privilege that a role may lack if an operator made the schema.
        if not await connection.fetchval(
            "SELECT count(*) > 0 FROM pg_namespace WHERE nspname = $1", SCHEMA
        ):
            await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await connection.execute((resources.files(__package__) / "schema.sql").read_text("utf-8"))
        await connection.execute("INSERT INTO schema_version VALUES ($1)", SCHEMA_VERSION)
