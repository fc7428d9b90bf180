"""Migrations: applied once, in order, by one process at a time, and checked by their checksums."""

from __future__ import annotations

import asyncio

import pytest
from support.event_loops import in_event_loop

from anaphora.errors import InvalidConfig, NewerSchema
from anaphora.postgres import migrations
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect
from anaphora.postgres.migrations import MigrationFile, files, migrate, state


def test_files_are_numbered_without_gaps() -> None:
    assert [one.number for one in files()] == list(range(1, len(files()) + 1))


@in_event_loop
async def test_migrations_are_applied_once_also_by_several_processes(database_url: str) -> None:
    address = PostgresAddress.parse(database_url)
    connections = [await connect(address) for _ in range(4)]
    assert (await state(connections[0])).applied == 0
    before = await asyncio.gather(*(migrate(connection) for connection in connections))
    assert sorted(one.applied for one in before)[-1] == len(files())  # one waited for another
    after = await state(connections[0])
    assert (after.applied, after.pending) == (len(files()), ())
    rows = await connections[0].fetch("SELECT number, checksum FROM migrations ORDER BY number")
    assert [tuple(row) for row in rows] == [(one.number, one.checksum) for one in files()]
    for connection in connections:
        await connection.close()


@in_event_loop
async def test_a_migration_that_fails_changes_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect(PostgresAddress.parse(database_url))
    await migrate(connection)
    number = len(files()) + 1
    broken = MigrationFile(number, "broken", "CREATE TABLE new (one int); SELECT 1 / 0")
    monkeypatch.setattr(migrations, "files", lambda: (*files(), broken))
    with pytest.raises(Exception, match="division by zero"):
        await migrate(connection)
    assert await connection.fetchval("SELECT to_regclass('anaphora.new')") is None
    assert (await state(connection)).pending == (f"{number:04d}_broken",)
    # The lock is free again.
    right = MigrationFile(number, "broken", "CREATE TABLE new (one int)")
    monkeypatch.setattr(migrations, "files", lambda: (*files(), right))
    await migrate(connection)
    assert (await state(connection)).pending == ()
    await connection.close()


@in_event_loop
async def test_a_file_that_was_changed_after_it_was_applied_is_refused(database_url: str) -> None:
    connection = await connect(PostgresAddress.parse(database_url))
    await migrate(connection)
    await connection.execute("UPDATE migrations SET checksum = 'other' WHERE number = 1")
    with pytest.raises(InvalidConfig, match="was made by another migration 0001_ledger"):
        await state(connection)
    await connection.close()


@in_event_loop
async def test_a_node_of_the_version_before_works_on_unless_a_file_says_no(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect(PostgresAddress.parse(database_url))
    known = files()
    added = MigrationFile(len(known) + 1, "more", "CREATE TABLE more (one int)")
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "files", lambda: (*known, added))
        await migrate(connection)
    assert (await state(connection)).pending == ()  # the older code works on
    last = MigrationFile(added.number + 1, "other", f"-- oldest: {added.number:04d}\nSELECT 1")
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "files", lambda: (*known, added, last))
        await migrate(connection)
        assert (await state(connection)).pending == ()
    with pytest.raises(
        NewerSchema, match=f"schema_version {last.number} is newer than {len(known)}"
    ):
        await state(connection)
    await connection.close()
