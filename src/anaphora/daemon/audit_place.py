"""Where the audit log of a daemon is: in its home, or in PostgreSQL with the rest of the store."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from anaphora.audit.chain import RowKey
from anaphora.audit.log import AuditLog
from anaphora.audit.log_postgres import PostgresLog, close_chain
from anaphora.audit.log_sqlite import connect_read_only
from anaphora.audit.side_files import key_id

from .home import Home, derived_key
from .home.config import DaemonConfig
from .store.opening import store_address
from .store.schema import SCHEMA_VERSION, readable, version_of
from .store.sqlite import SqliteStore

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

    from .store.postgres import PostgresStore

#: Seconds that rows wait for others: one commit for many calls.
_COLLECT = 0.05


def audit_place(home: Home, config: DaemonConfig) -> Path | PostgresLog:
    """Raises `InvalidConfig` and `MissingSecret`."""
    address = store_address(home, config)
    if address is None:
        return home.audit
    # The key of digests is not in the database, and no file of its own has to be copied.
    return PostgresLog(address, key=derived_key(home, "audit log"), row_key=row_key(home))


def row_key(home: Home) -> bytes:
    """The key of the MACs of audit rows. Not that of digests, which is beside the log."""
    return derived_key(home, "audit rows")


def checked_rows(home: Home) -> RowKey | None:
    """What the MACs of the log in a home are checked with; None where its store knows no row that
    has one."""
    since = _signed_since(home.store, home.audit.name, key_id(row_key(home)))
    return None if since is None else RowKey(key=row_key(home), since=since)


def _signed_since(store: Path, log: str, key: str) -> int | None:
    if not store.is_file():
        return None
    with readable(store), closing(connect_read_only(store)) as database:
        if version_of(database, store) < SCHEMA_VERSION:
            return None  # no daemon of today's version has written the log
        query = "SELECT signed_since FROM audit_logs WHERE name = ? AND key_id = ?"
        found = database.execute(query, (log, key)).fetchone()
        return None if found is None else found[0]


async def open_audit(
    stack: contextlib.AsyncExitStack,
    place: Path | PostgresLog,
    store: object,
    node: str,
    key: bytes,
) -> AuditLog:
    """The log of this node, until `stack` closes. `store` is the daemon's, `key` that of the MACs
    of a log in a home."""
    if isinstance(place, PostgresLog):
        from .store.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        nodes = store
        # A command is no node: its chain ends with it.
        id_of = (lambda: nodes.node_id) if nodes.node_id else None
        log = await asyncio.to_thread(AuditLog, place, node=node, node_id=id_of, collect=_COLLECT)
    else:
        assert isinstance(store, SqliteStore)
        log = AuditLog(place, collect=_COLLECT, row_key=key)
        await store.record_signed_rows(place.name, log.first_row, key_id(key))
    stack.push_async_callback(asyncio.to_thread, log.close)
    return log


def close_chains_of_dead_nodes(store: PostgresStore, node: str, key: bytes) -> None:
    """From now on, in the transaction that marks a node dead."""

    async def closed(connection: Connection, dead: int) -> None:
        await close_chain(connection, dead, by=node, row_key=key)

    store.on_swept.append(closed)
