"""The tables of a store: created once, by one process at a time, and of one version."""

from __future__ import annotations

import asyncio

import pytest
from support.event_loops import in_event_loop

from anaphora.errors import OtherSchema
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect
from anaphora.postgres.schema import SCHEMA_VERSION, create, version


@in_event_loop
async def test_tables_are_created_once_also_by_several_processes(database_url: str) -> None:
    address = PostgresAddress.parse(database_url)
    connections = [await connect(address) for _ in range(4)]
    assert await version(connections[0]) == 0
    await asyncio.gather(*(create(connection) for connection in connections))
    assert [await version(connection) for connection in connections] == [SCHEMA_VERSION] * 4
    rows = await connections[0].fetch("SELECT version FROM schema_version")
    assert [tuple(row) for row in rows] == [(SCHEMA_VERSION,)]
    for connection in connections:
        await connection.close()


@in_event_loop
async def test_tables_of_another_version_are_refused(database_url: str) -> None:
    connection = await connect(PostgresAddress.parse(database_url))
    await create(connection)
    await connection.execute("UPDATE schema_version SET version = version + 1")
    with pytest.raises(OtherSchema, match=f"{SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}"):
        await create(connection)
    # As versions before left them.
    await connection.execute("DROP TABLE schema_version")
    await connection.execute("CREATE TABLE migrations (number integer)")
    await connection.execute("INSERT INTO migrations VALUES (8), (9)")
    with pytest.raises(OtherSchema, match="schema_version 9 is older"):
        await create(connection)
    await connection.close()
