"""Statements of tests in PostgreSQL, beside a daemon's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from support.servers import run_in_thread

from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

T = TypeVar("T")


def in_database(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    async def run() -> T:
        connection = await connect(PostgresAddress.parse(url))
        try:
            return await work(connection)
        finally:
            await connection.close()

    return run_in_thread(run())


def execute(url: str, sql: str, *values: object) -> list[tuple[object, ...]]:
    async def work(connection: Connection) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await connection.fetch(sql, *values)]

    return in_database(url, work)
