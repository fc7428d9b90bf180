"""Where the audit log of a daemon is: in its home, or in PostgreSQL with the rest of the store."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from anaphora.audit.log import AuditLog
from anaphora.audit.log_postgres import PostgresLog, close_chain

from .home import Home, derived_key
from .home.config import DaemonConfig
from .store.opening import store_address

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
    return PostgresLog(address, key=derived_key(home, "audit log"))


async def open_audit(
    stack: contextlib.AsyncExitStack,
    place: Path | PostgresLog,
    store: object,
    node: str,
) -> AuditLog:
    """The log of this node, until `stack` closes. `store` is the daemon's."""
    if isinstance(place, PostgresLog):
        from .store.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        nodes = store
        log = await asyncio.to_thread(
            AuditLog, place, node=node, node_id=lambda: nodes.node_id, collect=_COLLECT
        )
    else:
        log = AuditLog(place, collect=_COLLECT)
    stack.push_async_callback(asyncio.to_thread, log.close)
    return log


def close_chains_of_dead_nodes(store: PostgresStore, node: str) -> None:
    """From now on, in the transaction that marks a node dead."""

    async def closed(connection: Connection, dead: int) -> None:
        await close_chain(connection, dead, by=node)

    store.on_swept.append(closed)
