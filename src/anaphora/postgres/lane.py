"""A connection to PostgreSQL that is opened on demand, and again after it was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from anaphora.errors import AnaphoraError, InvalidConfig, StoreUnavailable

from .address import PostgresAddress
from .connection import STATEMENT_SECONDS, UNREACHABLE, can_retry, connect, described, transaction

if TYPE_CHECKING:
    from .connection import Connection

#: Seconds after which PostgreSQL ends an idle transaction of a lane: a process stopped in the
#: middle must not keep locks that others wait for.
IDLE_SECONDS = 3.0

#: Seconds between two attempts to connect, at first and at most: in between, statements fail
#: immediately.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0

T = TypeVar("T")

_CLOSED = "the store is closed"


class Lane:
    """One dedicated connection, opened on demand and again after it was lost. Statements run one at
    a time. Transient errors become `StoreUnavailable`; others are the driver's."""

    def __init__(
        self,
        address: PostgresAddress,
        name: str,
        *,
        on_connect: Callable[[Connection], Awaitable[None]] | None = None,
        timeout: float = STATEMENT_SECONDS,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds for one statement, after which the connection is dropped; `patience`:
        for a statement together with those before it and the opening of a connection."""
        self.address = address
        self.name = name
        self.problem: str | None = None
        """Why there is no connection; None if there is one, or none was needed so far."""
        self._on_connect = on_connect
        self._timeout = timeout
        self._patience = patience
        self._clock = clock
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._wait = _FIRST_WAIT
        self._next_attempt = 0.0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """The lane's connection, for several statements or a transaction. Other callers wait."""
        async with self._lock:
            connection = await self._opened()
            with self.errors():
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection, transaction(connection):
            yield connection

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        async with self._in_time() as connection:
            rows: list[Any] = await connection.fetch(sql, *values, timeout=self._timeout)
            return rows

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        async with self._in_time() as connection:
            return await connection.fetchrow(sql, *values, timeout=self._timeout)

    async def fetchval(self, sql: str, *values: Any) -> Any:
        async with self._in_time() as connection:
            return await connection.fetchval(sql, *values, timeout=self._timeout)

    async def execute(self, sql: str, *values: Any) -> str:
        async with self._in_time() as connection:
            status: str = await connection.execute(sql, *values, timeout=self._timeout)
            return status

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[Connection]:
        try:
            async with asyncio.timeout(self._patience), self.connection() as connection:
                yield connection
        except TimeoutError:
            problem = f"{self.address}: no answer in time"
            if not self.is_connected:
                self._failed(problem)
            raise StoreUnavailable(problem, public=UNREACHABLE) from None

    async def _opened(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        if self.problem is not None and self._clock() < self._next_attempt:
            raise StoreUnavailable(self.problem, public=UNREACHABLE)
        self._connection = None
        try:
            connection = await connect(
                self.address, name=self.name, statements=max(self._timeout, STATEMENT_SECONDS)
            )
            try:
                with self.errors():
                    async with asyncio.timeout(self._timeout):
                        await connection.execute(
                            f"SET idle_in_transaction_session_timeout TO {int(IDLE_SECONDS * 1000)}"
                        )
                        if self._on_connect is not None:
                            await self._on_connect(connection)
                    if self._closed:
                        raise StoreUnavailable(_CLOSED)
            except BaseException:
                connection.terminate()
                raise
        except AnaphoraError as error:
            self._failed(str(error))
            if isinstance(error, InvalidConfig):  # it was right when the store was opened
                raise StoreUnavailable(str(error), public=UNREACHABLE) from None
            raise
        self.problem, self._wait = None, _FIRST_WAIT
        self._connection = connection
        return connection

    def _failed(self, problem: str) -> None:
        """No connection could be opened."""
        self.problem = problem
        self._next_attempt = self._clock() + self._wait
        self._wait = min(self._wait * 2, _LONGEST_WAIT)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Drops the connection after a transient error, and raises `StoreUnavailable`."""
        try:
            yield
        except AnaphoraError:
            raise
        except asyncio.CancelledError:
            self.drop()  # the statement may still be under way
            raise
        except Exception as error:
            if can_retry(error):
                self._lost(error)
            raise

    def _lost(self, error: Exception) -> NoReturn:
        self.drop()
        self.problem = f"{self.address}: {described(error)}"
        self._next_attempt = 0.0  # the next one tries to connect, at once
        raise StoreUnavailable(self.problem, public=UNREACHABLE) from None

    def drop(self) -> None:
        """Closes the connection without waiting; the next statement opens another one."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=2.0)
            except Exception:
                connection.terminate()
