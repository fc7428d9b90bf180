"""Connections to PostgreSQL that are checked when they are opened, and lanes that reopen theirs.

Errors are of two kinds: `InvalidConfig` for what the operator must change, `StoreUnavailable` for
what passes. Neither shows a password, and neither keeps the frames of the driver, which hold it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from anaphora.errors import AnaphoraError, InvalidConfig, MissingExtra, StoreUnavailable

from .address import PostgresAddress

if TYPE_CHECKING:
    import asyncpg

    Connection: TypeAlias = asyncpg.Connection

#: The schema that holds all tables.
SCHEMA = "anaphora"

OLDEST_VERSION = 13

#: Seconds: to connect, and for one statement.
CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
#: Seconds after which a connection ends whose server is not there any more: one whose machine is
#: gone closes nothing.
_GONE_SECONDS = 10

#: Seconds after which PostgreSQL ends a transaction of a lane that sends nothing: a process that is
#: stopped in the middle must not keep the locks that others wait for.
IDLE_SECONDS = 3.0

#: What apps are told: nothing about where PostgreSQL is.
UNREACHABLE = "the store of the daemon cannot be reached; send the call again later"

#: Seconds between two attempts to connect, at first and at most: between them a lane fails at once.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0

_SETTINGS = """
SELECT current_setting('server_version_num')::int AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names', true) <> '' AS has_standbys,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS read_only,
    pg_backend_pid() AS pid
"""


async def connect(
    address: PostgresAddress, *, name: str = "", timeout: float = CONNECT_SECONDS
) -> Connection:
    """Raises `InvalidConfig`, `StoreUnavailable`, and `MissingExtra` where asyncpg is not
    installed. `name` is shown in PostgreSQL's list of connections."""
    problem: AnaphoraError
    try:
        return await _connect(address, name, timeout)
    except AnaphoraError as error:
        problem = error
    except Exception as error:
        problem = connection_error(error, address)
    problem.__traceback__ = problem.__context__ = problem.__cause__ = None
    raise problem


async def _connect(address: PostgresAddress, name: str, timeout: float) -> Connection:
    connection = await _open(address, name, timeout)
    try:
        async with asyncio.timeout(timeout):
            # Not in the startup packet: a pooler in session mode would refuse these there.
            await connection.execute(
                f"SET search_path TO {SCHEMA}; SET jit TO off;"
                " SET default_transaction_isolation TO 'read committed';"
                f" SET statement_timeout TO {int(STATEMENT_SECONDS * 1000)};"
                " SET idle_in_transaction_session_timeout TO 60000"
            )
            found = await connection.fetchrow(_SETTINGS)
            assert found is not None
            _check(found, address)
            if found["pid"] != connection.get_server_pid():
                await _refuse_transaction_pooler(connection, address, timeout)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _open(address: PostgresAddress, name: str, timeout: float) -> Connection:
    try:
        import asyncpg
    except ModuleNotFoundError:
        raise MissingExtra(
            "a store in PostgreSQL needs asyncpg: pip install 'anaphora[nodes]'", extra="nodes"
        ) from None
    password = address.password
    connection = await asyncpg.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        database=address.database,
        # Not None: the driver would look into the environment and into ~/.pgpass.
        password=password.reveal if password is not None else "",
        ssl=address.ssl_options(),
        timeout=timeout,
        server_settings={"application_name": f"anaphora {name}".strip()[:63]},
    )
    end_when_gone(connection._transport.get_extra_info("socket"))
    return connection


def end_when_gone(connection: socket.socket | None) -> None:
    """A TCP connection ends within seconds where the other side does not confirm what was sent, or
    that it is there; otherwise that takes a quarter of an hour, or for ever."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _GONE_SECONDS),
        ("TCP_KEEPALIVE", _GONE_SECONDS),  # as macOS names it
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _GONE_SECONDS * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _check(found: Any, address: PostgresAddress) -> None:
    version = found["version"] // 10_000
    if version < OLDEST_VERSION:
        raise InvalidConfig(f"{address}: is PostgreSQL {version}; needed is {OLDEST_VERSION}")
    if found["encoding"] != "UTF8":
        raise InvalidConfig(f"{address}: has the encoding {found['encoding']}; needed is UTF8")
    mode = found["synchronous_commit"]
    if mode == "off" or (mode in ("local", "remote_write") and found["has_standbys"]):
        raise InvalidConfig(
            f"{address}: synchronous_commit is {mode}, so a crash would lose settled amounts; set"
            f" it to on, for example: ALTER ROLE {address.user} SET synchronous_commit TO on"
        )
    if found["read_only"]:
        reason = f"{address}: is read-only: a standby, or during a failover"
        raise StoreUnavailable(reason, public=UNREACHABLE)


async def _refuse_transaction_pooler(
    connection: Connection, address: PostgresAddress, timeout: float
) -> None:
    """A pooler answered the handshake. One that lends a server connection to each transaction
    lends the same one to a second client, or another one to the first."""
    other = await _open(address, "pooler check", timeout)
    try:
        for _ in range(3):
            before = await connection.fetchval("SELECT pg_backend_pid()")
            async with other.transaction():
                others = await other.fetchval("SELECT pg_backend_pid()")
                after = await connection.fetchval("SELECT pg_backend_pid()")
            if before == others or before != after:
                raise _pooler(address)
    finally:
        other.terminate()


def _pooler(address: PostgresAddress) -> InvalidConfig:
    return InvalidConfig(
        f"{address}: is a pooler in transaction mode, which breaks locks, notifications and"
        " prepared statements; connect to PostgreSQL itself, or set the pooler to"
        " pool_mode=session"
    )


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

#: SQLSTATE classes and codes of what passes: connections, resources, an administrator's shutdown,
#: a cancelled statement, a deadlock, a server that is read-only during a failover.
_PASSING = ("08", "25006", "40", "53", "55P03", "57", "58")


#: A prepared statement that is missing, or there already: the connection is another one.
_UNPREPARED = ("26000", "42P05")


def is_passing(error: BaseException) -> bool:
    """Whether trying again later may help, without a change of the operator."""
    import asyncpg

    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", None) or "").startswith(_PASSING)
    if is_data_error(error):
        return False
    # The driver's internal errors: a connection that ended at the wrong moment.
    kinds = OSError | TimeoutError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError
    return isinstance(error, kinds)


def is_data_error(error: BaseException) -> bool:
    """Whether a value is at fault: it cannot be encoded, or breaks a rule of its table."""
    state = str(getattr(error, "sqlstate", None) or "")
    return state.startswith(("22", "23")) or (
        isinstance(error, ValueError) and not isinstance(error, OSError)
    )


def connection_error(error: BaseException, address: PostgresAddress) -> AnaphoraError:
    """The error to raise where a connection cannot be opened."""
    import asyncpg

    if isinstance(error, asyncpg.InvalidPasswordError):
        hint = (
            "set store_password: {secret: NAME}"
            if address.password is None
            else "see the secret that store_password names"
        )
        return InvalidConfig(
            f"{address}: the password of user {address.user!r} was not accepted; {hint}"
        )
    if getattr(error, "sqlstate", None) in _UNPREPARED:
        return _pooler(address)
    if isinstance(error, ssl.SSLError):
        return InvalidConfig(f"{address}: TLS failed: {error.reason or error}; {_tls_hint(error)}")
    if isinstance(error, asyncpg.PostgresError) and not is_passing(error):
        return InvalidConfig(f"{address}: cannot be used: {described(error)}")
    if isinstance(error, ConnectionError) and "SSL" in str(error):
        return InvalidConfig(
            f"{address}: does not offer TLS; turn it on there, or write ?sslmode=disable where the"
            " network is trusted"
        )
    reason = f"{address}: cannot be reached: {described(error)}"
    return StoreUnavailable(reason, public=UNREACHABLE)


def _tls_hint(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{error.verify_message}: name the certificate authority with ?sslrootcert=FILE, or"
            " write ?sslmode=require to skip the check"
        )
    return "see sslmode, sslrootcert, sslcert and sslkey"


def described(error: BaseException) -> str:
    """Without what the driver adds in further lines; never empty."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text or type(error).__name__


# ── Lanes ────────────────────────────────────────────────────────────────────────────────────────


class Lane:
    """One connection of its own: opened when it is needed, and again after it was lost. Statements
    run one at a time. Errors that pass are `StoreUnavailable`; others are the driver's."""

    def __init__(
        self,
        address: PostgresAddress,
        name: str,
        *,
        on_connect: Callable[[Connection], Awaitable[None]] | None = None,
        timeout: float = STATEMENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds for one statement, after which the connection is dropped."""
        self.address = address
        self.name = name
        self.problem: str | None = None
        """Why there is no connection; None: there is one, or none was needed so far."""
        self._on_connect = on_connect
        self._timeout = timeout
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

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        async with self.connection() as connection:
            rows: list[Any] = await connection.fetch(sql, *values, timeout=self._timeout)
            return rows

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *values, timeout=self._timeout)

    async def fetchval(self, sql: str, *values: Any) -> Any:
        async with self.connection() as connection:
            return await connection.fetchval(sql, *values, timeout=self._timeout)

    async def execute(self, sql: str, *values: Any) -> str:
        async with self.connection() as connection:
            status: str = await connection.execute(sql, *values, timeout=self._timeout)
            return status

    async def _opened(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self.problem is not None and self._clock() < self._next_attempt:
            raise StoreUnavailable(self.problem, public=UNREACHABLE)
        self._connection = None
        try:
            connection = await connect(self.address, name=self.name)
            try:
                with self.errors():
                    async with asyncio.timeout(self._timeout):
                        await connection.execute(
                            f"SET idle_in_transaction_session_timeout TO {int(IDLE_SECONDS * 1000)}"
                        )
                        if self._on_connect is not None:
                            await self._on_connect(connection)
            except BaseException:
                connection.terminate()
                raise
        except AnaphoraError as error:
            self.problem = str(error)
            self._next_attempt = self._clock() + self._wait
            self._wait = min(self._wait * 2, _LONGEST_WAIT)
            if isinstance(error, InvalidConfig):  # it was right when the store was opened
                raise StoreUnavailable(self.problem, public=UNREACHABLE) from None
            raise
        self.problem, self._wait = None, _FIRST_WAIT
        self._connection = connection
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Drops the connection after an error that passes, and raises `StoreUnavailable`."""
        try:
            yield
        except AnaphoraError:
            raise
        except asyncio.CancelledError:
            self.drop()  # the statement may still be under way
            raise
        except Exception as error:
            if is_passing(error):
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
