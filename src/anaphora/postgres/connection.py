"""Connections to PostgreSQL that are checked when they are opened, and transactions on them.

Errors are of two kinds: `StoreRefused` if the operator must change something, `StoreUnavailable` if
a later attempt may succeed. Neither shows a password, and neither keeps the frames of the driver,
which hold it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from anaphora.errors import AnaphoraError, MissingExtra, StoreRefused, StoreUnavailable

from .address import PostgresAddress

if TYPE_CHECKING:
    import asyncpg

    Connection: TypeAlias = asyncpg.Connection

#: The schema that holds all tables.
SCHEMA = "anaphora"

OLDEST_VERSION = 13

#: Timeouts in seconds: to connect, and for one statement.
CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
#: Seconds after which a connection to an unreachable server ends: a machine that has gone closes
#: nothing.
_GONE_SECONDS = 10

#: Shown to apps: nothing about where PostgreSQL is.
UNREACHABLE = "the store of the daemon cannot be reached; send the call again later"

_SETTINGS = """
SELECT current_setting('server_version_num')::int AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names', true) <> '' AS has_standbys,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS read_only,
    pg_backend_pid() AS pid
"""


async def connect(
    address: PostgresAddress,
    *,
    name: str = "",
    timeout: float = CONNECT_SECONDS,
    statements: float | None = None,
) -> Connection:
    """Raises `StoreRefused`, `StoreUnavailable`, and `MissingExtra` if asyncpg is not installed.
    `name` is shown in PostgreSQL's list of connections; `statements` is the default timeout of a
    statement in seconds."""
    problem: AnaphoraError
    try:
        return await _connect(address, name, timeout, statements)
    except AnaphoraError as error:
        problem = error
    except Exception as error:
        problem = connection_error(error, address)
    problem.__traceback__ = problem.__context__ = problem.__cause__ = None
    raise problem


async def _connect(
    address: PostgresAddress, name: str, timeout: float, statements: float | None
) -> Connection:
    connection = await _open(address, name, timeout, statements)
    try:
        async with asyncio.timeout(timeout):
            # Not in the startup packet: a pooler in session mode would refuse them there.
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


async def _open(
    address: PostgresAddress, name: str, timeout: float, statements: float | None = None
) -> Connection:
    try:
        import asyncpg
    except ModuleNotFoundError:
        raise MissingExtra(
            "a store in PostgreSQL needs asyncpg: pip install 'anaphora[nodes]'", extra="nodes"
        ) from None
    password = address.password
    loop = asyncio.get_running_loop()
    opening = _OpeningLoop(loop)
    try:
        connection = await asyncpg.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            database=address.database,
            # Not None: the driver would then read the environment and ~/.pgpass.
            password=password.reveal if password is not None else "",
            ssl=address.ssl_options(),
            timeout=timeout,
            command_timeout=statements,
            server_settings={"application_name": f"anaphora {name}".strip()[:63]},
            loop=opening,
        )
    except BaseException:
        opening.abort()
        raise
    connection._loop = loop
    set_keepalive(connection._transport.get_extra_info("socket"))
    return connection


class _OpeningLoop:
    """The event loop during a login. It aborts the transports of a failed login: the driver leaves
    them to a TLS shutdown, which lasts until the server answers, or half a minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._opened: list[asyncio.Transport] = []
        # The driver calls these for each statement.
        self.time, self.call_later = loop.time, loop.call_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        transport, protocol = await self._loop.create_connection(*args, **options)
        self._opened.append(transport)
        return transport, protocol

    async def create_unix_connection(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        transport, protocol = await self._loop.create_unix_connection(*args, **options)
        self._opened.append(transport)
        return transport, protocol

    def abort(self) -> None:
        for transport in self._opened:
            transport.abort()


def set_keepalive(connection: socket.socket | None) -> None:
    """Makes a TCP connection end within seconds if the other side does not acknowledge data or
    keep-alive probes; otherwise that takes a quarter of an hour, or for ever."""
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
        raise StoreRefused(
            f"{address}: is PostgreSQL {version}; {OLDEST_VERSION} or newer is required"
        )
    if found["encoding"] != "UTF8":
        raise StoreRefused(f"{address}: has the encoding {found['encoding']}; UTF8 is required")
    mode = found["synchronous_commit"]
    if mode == "off" or (mode in ("local", "remote_write") and found["has_standbys"]):
        raise StoreRefused(
            f"{address}: synchronous_commit is {mode}, so a crash would lose settled amounts; set"
            f" it to on, for example: ALTER ROLE {address.user} SET synchronous_commit TO on"
        )
    if found["read_only"]:
        reason = f"{address}: is read-only: a standby, or during a failover"
        raise StoreUnavailable(reason, public=UNREACHABLE)


async def _refuse_transaction_pooler(
    connection: Connection, address: PostgresAddress, timeout: float
) -> None:
    """A pooler answered the handshake. A pooler in transaction mode lends the same server
    connection to a second client, or another one to the first."""
    other = await _open(address, "pooler check", timeout)
    try:
        for _ in range(3):
            before = await connection.fetchval("SELECT pg_backend_pid()")
            async with transaction(other):
                others = await other.fetchval("SELECT pg_backend_pid()")
                after = await connection.fetchval("SELECT pg_backend_pid()")
            if before == others or before != after:
                raise _pooler(address)
    finally:
        other.terminate()


def _pooler(address: PostgresAddress) -> StoreRefused:
    return StoreRefused(
        f"{address}: is a pooler in transaction mode, which breaks locks, notifications and"
        " prepared statements; connect to PostgreSQL itself, or set the pooler to"
        " pool_mode=session"
    )


@asynccontextmanager
async def transaction(connection: Connection, **options: Any) -> AsyncIterator[None]:
    """A transaction of the driver. If a statement gets no answer, or its caller is cancelled, the
    connection ends, and the server rolls back; the driver would wait for the statement to end,
    which a server that hangs never does."""
    driver = connection.transaction(**options)
    await driver.start()
    try:
        yield
    except (asyncio.CancelledError, TimeoutError, GeneratorExit):
        connection.terminate()
        raise
    except BaseException:
        if not connection.is_closed():
            await driver.rollback()
        raise
    await driver.commit()


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

#: SQLSTATE classes and codes of transient errors: connections, resources, an administrator's
#: shutdown, a cancelled statement, a deadlock, a server that is read-only during a failover.
_PASSING = ("08", "25006", "40", "53", "55P03", "57", "58")


#: A prepared statement is missing, or exists already: a pooler has switched the connection.
_UNPREPARED = ("26000", "42P05")


def can_retry(error: BaseException) -> bool:
    """Whether trying again later may help, without a change by the operator."""
    import asyncpg

    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", None) or "").startswith(_PASSING)
    if is_data_error(error):
        return False
    # The driver's internal errors: a connection that ended at the wrong moment.
    kinds = OSError | TimeoutError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError
    return isinstance(error, kinds)


def is_data_error(error: BaseException) -> bool:
    """Whether a value is invalid: it cannot be encoded, or violates a constraint."""
    state = str(getattr(error, "sqlstate", None) or "")
    return state.startswith(("22", "23")) or (
        isinstance(error, ValueError) and not isinstance(error, OSError)
    )


def connection_error(error: BaseException, address: PostgresAddress) -> AnaphoraError:
    """The error to raise if a connection cannot be opened."""
    import asyncpg

    if isinstance(error, asyncpg.InvalidPasswordError):
        hint = (
            "set store_password: {secret: NAME}"
            if address.password is None
            else "see the secret that store_password names"
        )
        return StoreRefused(
            f"{address}: the password of user {address.user!r} was not accepted; {hint}"
        )
    if getattr(error, "sqlstate", None) in _UNPREPARED:
        return _pooler(address)
    if isinstance(error, ssl.SSLError):
        return StoreRefused(f"{address}: TLS failed: {error.reason or error}; {_tls_hint(error)}")
    if isinstance(error, asyncpg.PostgresError) and not can_retry(error):
        return StoreRefused(f"{address}: cannot be used: {described(error)}")
    if isinstance(error, ConnectionError) and "SSL" in str(error):
        return StoreRefused(
            f"{address}: does not offer TLS; turn it on there, or write ?sslmode=disable if the"
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
    """The first line of an error, without the driver's additions; never empty."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text or type(error).__name__
