"""Logins of the dashboard in PostgreSQL, shared by all nodes.

The tables hold keyed hashes of cookies, and numbers of forms that can be sent once. The key is not
in the database, so reading it does not allow a login.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from anaphora.errors import StoreUnavailable
from anaphora.postgres.connection import transaction
from anaphora.postgres.lane import Lane

if TYPE_CHECKING:
    from anaphora.postgres.address import PostgresAddress
    from anaphora.postgres.connection import Connection

_log = logging.getLogger("anaphora.daemon")

#: Seconds for one statement or transaction, since a viewer waits for a page.
_SECONDS = 5.0

#: The least recently used sessions end for a new one.
_MAKE_ROOM = """
DELETE FROM ui_sessions WHERE digest IN (
    (SELECT digest FROM ui_sessions WHERE token = $1 ORDER BY used DESC OFFSET $2)
    UNION (SELECT digest FROM ui_sessions ORDER BY used DESC OFFSET $3))
"""
_FORMS = """
DELETE FROM ui_forms WHERE session = $1 AND number IN (
    SELECT number FROM ui_forms WHERE session = $1 ORDER BY made DESC OFFSET $2)
"""


class SharedLogin(msgspec.Struct, frozen=True):
    digest: bytes
    token: str
    app: str
    opened: float
    used: float


class SharedLogins:
    """Used from one event loop. Methods raise `StoreUnavailable` without PostgreSQL's address."""

    def __init__(self, address: PostgresAddress) -> None:
        self._lane = Lane(address, "dashboard", timeout=_SECONDS)

    async def close(self) -> None:
        await self._lane.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self._lane.connection() as connection, asyncio.timeout(_SECONDS):
                yield connection
        except StoreUnavailable as problem:
            _log.error("logins of the dashboard cannot be read: %s", problem)
            reason = "The store cannot be reached at the moment. Try again."
            raise StoreUnavailable(reason) from None

    async def add(self, login: SharedLogin, *, most: int, of_token: int) -> None:
        """Adds a login. Older ones beyond the limits, in total and of this token, are ended."""
        async with self._connection() as connection, transaction(connection):
            insert = "INSERT INTO ui_sessions VALUES ($1, $2, $3, $4, $5)"
            await connection.execute(insert, *msgspec.structs.astuple(login))
            await connection.execute(_MAKE_ROOM, login.token, of_token, most)

    async def find(self, digests: Sequence[bytes]) -> dict[bytes, SharedLogin]:
        """The logins that have not ended."""
        if not digests:
            return {}
        query = "SELECT * FROM ui_sessions WHERE digest = ANY($1)"
        async with self._connection() as connection:
            rows = await connection.fetch(query, digests)
        return {row[0]: SharedLogin(*row) for row in rows}

    async def use(self, digest: bytes, at: float) -> None:
        update = "UPDATE ui_sessions SET used = greatest(used, $2) WHERE digest = $1"
        async with self._connection() as connection:
            await connection.execute(update, digest, at)

    async def end(self, digests: Iterable[bytes]) -> None:
        async with self._connection() as connection:
            delete = "DELETE FROM ui_sessions WHERE digest = ANY($1)"
            await connection.execute(delete, [*digests])

    async def end_token(self, token: str) -> None:
        async with self._connection() as connection:
            delete = "DELETE FROM ui_sessions WHERE token = $1"
            await connection.execute(delete, token)

    async def end_expired(self, *, opened: float, used: float) -> None:
        """Ends logins opened or last used before these times."""
        async with self._connection() as connection:
            delete = "DELETE FROM ui_sessions WHERE opened <= $1 OR used <= $2"
            await connection.execute(delete, opened, used)

    # ── Forms ────────────────────────────────────────────────────────────────────────────────────

    async def add_form(
        self, digest: bytes, number: str, action: Sequence[str], *, most: int
    ) -> None:
        async with self._connection() as connection, transaction(connection):
            insert = "INSERT INTO ui_forms (session, number, action) VALUES ($1, $2, $3)"
            await connection.execute(insert, digest, number, [*action])
            await connection.execute(_FORMS, digest, most)

    async def take_form(self, digest: bytes, number: str, action: Sequence[str]) -> bool:
        """Whether such a form exists. It is removed: it can be sent once, to any node."""
        delete = "DELETE FROM ui_forms WHERE session = $1 AND number = $2 AND action = $3"
        async with self._connection() as connection:
            status = await connection.execute(delete, digest, number, [*action])
        return bool(status == "DELETE 1")
