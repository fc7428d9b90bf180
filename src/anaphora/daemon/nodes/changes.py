"""Tokens, grants and drains that another node or a command wrote, within a second: PostgreSQL
notifies each node, and each looks twice a second, should a notification be lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from anaphora.client.failures import log
from anaphora.errors import StoreUnavailable
from anaphora.postgres.lane import Lane

if TYPE_CHECKING:
    from anaphora.postgres.address import PostgresAddress
    from anaphora.postgres.connection import Connection

CHANNEL = "anaphora_changes"
_LOOK_SECONDS = 0.5
#: Seconds for a statement: one that takes longer is tried on a new connection.
_TIMEOUT = 5.0


class ChangeFeed:
    """Calls the handler of a table when its rows have changed, and every one when it starts. A
    handler that fails is called again."""

    def __init__(
        self, address: PostgresAddress, handlers: Mapping[str, Callable[[Lane], Awaitable[None]]]
    ) -> None:
        self._handlers = handlers
        self._lane = Lane(address, "changes", on_connect=self._listen, timeout=_TIMEOUT)
        self._seen: dict[str, int | None] = {}
        self._woken = asyncio.Event()

    async def _listen(self, connection: Connection) -> None:
        """On a new connection all is read again: what this node could not write meanwhile is
        written then."""
        self._seen.clear()
        await connection.add_listener(CHANNEL, self._notified)

    def _notified(self, *_: Any) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):  # tried again; `/readyz` says so
                    await self._guarded_look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
                self._woken.clear()
        finally:
            await self._lane.close()

    async def _guarded_look(self) -> None:
        try:
            await self.look()
        except StoreUnavailable:
            raise
        except Exception as problem:
            log(logging.ERROR, f"a change was not read: {type(problem).__name__}", problem)

    async def look(self) -> None:
        """Calls the handlers of what has changed since the last look."""
        found = {row["name"]: row["version"] for row in await self._lane.fetch(_VERSIONS)}
        for name, handler in self._handlers.items():
            version = found.get(name)
            if name not in self._seen or self._seen[name] != version:
                await handler(self._lane)
                self._seen[name] = version


#: Nodes begin and end without a row in `changes`.
_VERSIONS = """
SELECT name, version FROM changes
UNION ALL SELECT 'nodes', sum(id)::bigint FROM nodes WHERE state = 'alive'
"""
