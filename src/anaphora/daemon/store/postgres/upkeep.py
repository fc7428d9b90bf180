"""Check and pruning of a store in PostgreSQL, with or without running nodes."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anaphora.daemon.store.reading import pruning_day, start_of_day
from anaphora.daemon.store.upkeep import (
    BOTH,
    MARK_PRUNED,
    POSTGRES_SUMS,
    PRUNE,
    PRUNED_UNTIL,
    PrunedStore,
    StoreReport,
    differences,
    prune_budgets,
    prune_values,
    sum_problems,
)
from anaphora.errors import InvalidConfig
from anaphora.postgres import schema
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect, connection_error, transaction

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: Tables of a store whose sizes a report names.
_COUNTED = ("entries", "holds", "tokens", "handles")
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = 'anaphora'::regnamespace AND relkind = 'r'
"""


@asynccontextmanager
async def connected(address: PostgresAddress) -> AsyncIterator[Connection]:
    """A connection for one command. Errors that end it become `StoreUnavailable`."""
    connection = await connect(address, name=f"command {os.getpid()}")
    try:
        await connection.execute("SET statement_timeout TO 0")  # as long as it takes
        yield connection
    except Exception as error:
        if connection.is_closed():
            raise connection_error(error, address) from None
        raise
    finally:
        connection.terminate()


async def check(address: PostgresAddress, *, now: float | None = None) -> StoreReport:
    """Checks in a snapshot that all sums agree with the entries. Changes nothing."""
    async with connected(address) as connection:
        version = await _checked_version(connection, address)
        async with transaction(connection, isolation="repeatable_read", readonly=True):
            wrong = {
                table: await connection.fetchval(sql) for table, sql in differences(POSTGRES_SUMS)
            }
            latest = await connection.fetchval("SELECT latest_day FROM clock")
            pruned = await connection.fetchval(PRUNED_UNTIL)
            both = await connection.fetchval(BOTH)
            counts = [
                await connection.fetchval(f"SELECT count(*) FROM {name}") for name in _COUNTED
            ]
            left = await connection.fetchval(
                "SELECT count(*) FROM holds WHERE NOT EXISTS (SELECT FROM nodes"
                " WHERE nodes.id = holds.node)"
            )
            size = await connection.fetchval(_SIZE)
    problems = list(sum_problems(wrong, both, latest, time.time() if now is None else now))
    if left:
        problems.append(f"holds of no node: {left}")
    entries, holds, tokens, handles = counts
    return StoreReport(
        store=str(address),
        schema_version=version,
        bytes=size,
        entries=entries,
        open_holds=holds,
        tokens=tokens,
        handles=handles,
        latest_day=latest,
        pruned_until=pruned,
        problems=tuple(problems),
    )


async def _checked_version(connection: Connection, address: PostgresAddress) -> int:
    """Raises `InvalidConfig` if there are no tables."""
    if not (found := await schema.version(connection)):
        raise InvalidConfig(
            f"{address}: holds no store of anaphora; a node makes one when it starts"
        )
    return found


async def prune(
    address: PostgresAddress, *, keep_days: float, now: float | None = None
) -> PrunedStore:
    """Deletes old entries, a few at a time; nodes may be running. Uses PostgreSQL's clock, like the
    days of the entries."""
    deleted = 0
    async with connected(address) as connection:
        await _checked_version(connection, address)
        if now is None:
            now = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
        until = pruning_day(keep_days, now)
        delete = f"{PRUNE.format('$1', '$2', '$3')} RETURNING 1"
        mark = f"{MARK_PRUNED.format('$2')} AND EXISTS (SELECT FROM gone)"
        sql = f"WITH gone AS ({delete}), marked AS ({mark}) SELECT count(*) FROM gone"
        while count := await connection.fetchval(sql, *prune_values(until)):
            deleted += count
        await _prune_budgets(connection, start_of_day(until))
    return PrunedStore(store=str(address), until=until, entries=deleted)


async def _prune_budgets(connection: Connection, ended: float) -> None:
    done = ""
    while done != "DELETE 0":
        async with transaction(connection):
            for sql in prune_budgets():
                done = await connection.execute(sql, ended)
