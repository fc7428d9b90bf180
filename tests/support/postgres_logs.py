"""Audit logs in PostgreSQL for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from support.audit_logs import with_tests
from support.servers import PostgresServer, run_in_thread

from anaphora.audit import AuditEnvelope, AuditLog, rows, verify
from anaphora.audit.log_postgres import PostgresLog, close_chain
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect
from anaphora.postgres.migrations import migrate

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

T = TypeVar("T")

KEY = bytes(range(32))


def migrated(url: str) -> None:
    """Makes the tables of a store."""
    in_database(url, migrate)


def in_database(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Runs statements beside the log, as who can write the database can."""

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


def add_node(url: str, name: str = "node-a") -> int:
    """A node that is alive, as the store of a daemon notes it."""
    sql = "INSERT INTO nodes (name, version) VALUES ($1, '1') RETURNING id"
    [(node,)] = execute(url, sql, name)
    assert isinstance(node, int)
    return node


def fill_chains(log: PostgresLog, calls: Sequence[AuditEnvelope], *, nodes: int) -> None:
    """Writes calls as several nodes do, each of which takes a part of them; and stops them."""
    with ExitStack() as stack:
        names = [f"node-{number}" for number in range(nodes)]
        logs = [stack.enter_context(AuditLog(log, node=name)) for name in names]
        for number, call in enumerate(calls):
            logs[number % nodes].append(call)


@contextmanager
def postgres_log(server: PostgresServer, key: bytes = KEY) -> Iterator[tuple[PostgresLog, str]]:
    """A log in a database of its own, and the address of that."""
    url = server.create_database(migrated)
    log = PostgresLog(PostgresAddress.parse(url), key=key)
    try:
        yield log, url
    finally:
        log.close()
        server.drop_database(url)


def declare_dead(url: str, node: int) -> None:
    """As the node does that sweeps."""

    async def work(connection: Connection) -> None:
        async with connection.transaction():
            await connection.execute("UPDATE nodes SET state = 'dead' WHERE id = $1", node)
            await close_chain(connection, node, by="node-b")

    in_database(url, work)


# ── Killed writers ───────────────────────────────────────────────────────────────────────────────

_WRITER = """
import os, sys
from anaphora.audit import AuditLog
from anaphora.audit.log_postgres import PostgresLog
from anaphora.postgres.address import PostgresAddress
from support.audit_logs import envelope

url, node = sys.argv[1], int(sys.argv[2])
place = PostgresLog(PostgresAddress.parse(url), key=bytes(range(32)))
with AuditLog(place.of_node(lambda: node), node=f"node-{node}") as log:
    number = 0
    while True:
        for _ in range(1 + number % 7):
            number += 1
            log.append(envelope(number))
        log.flush()
        os.write(1, b"%d\\n" % number)
"""


def kill_chain_writers(log: PostgresLog, url: str, kills: int) -> None:
    """Kills so many nodes that write, and closes their chains: what was acknowledged is there, and
    all chains are whole."""
    for number in range(kills):
        node = add_node(url, f"node-{number}")
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, url, str(node)],
            stdout=subprocess.PIPE,
            env=with_tests(),
        ) as writer:
            assert writer.stdout is not None
            for _ in range(5 * (number % 10) + 1):
                last = int(writer.stdout.readline())
            writer.kill()
            rest = writer.stdout.read().splitlines()
        last = int(rest[-1]) if rest else last
        # Its connection may be at work still: closing the chain waits for it.
        declare_dead(url, node)
        verify(log)
        contents = [row.content for row in rows(log)]
        calls = [one for one in contents if isinstance(one, AuditEnvelope)]
        ids = [one.request_id for one in calls if one.node == f"node-{node}"]
        assert ids == [f"req-{each + 1}" for each in range(len(ids))]
        assert len(ids) >= last
