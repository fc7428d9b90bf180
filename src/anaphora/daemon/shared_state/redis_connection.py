"""One connection to Redis or Valkey: commands of one iteration of the event loop are written
together, and replies come in their order. About 10 µs per command; redis-py takes 130.

    address = RedisAddress.parse("rediss://cache.example:6380/1", password)
    connection = await RedisConnection.connect(address)
    reply = await connection.send("GET", "name")        raises RedisLost, RedisRefused
    connection.post("SET", "name", b"value")            does not wait for the reply
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidConfig
from anaphora.redaction import hides_arguments

Argument: TypeAlias = str | bytes | int | float
OnReply: TypeAlias = Callable[[Any], None]
"""Gets the reply of a posted command, or an exception if there is none."""
OnLost: TypeAlias = "Callable[[RedisConnection, str], None]"
"""Gets the connection and the reason."""

#: Seconds for a reply; then the server counts as lost.
TIMEOUT = 0.05
#: Seconds to connect. No call waits for that.
_CONNECT = 0.5
#: Additional seconds for replies that arrived while this process was busy.
_LATE = 0.01
#: Maximum of bytes to be written, and of commands without a reply; beyond it, the server counts as
#: lost.
_MOST_BUFFERED, _MOST_PENDING = 8 * 1024 * 1024, 20_000

_NEEDS_TLS = "rediss:// needs a port that offers TLS"


class RedisLost(Exception):
    """The connection ended, or a reply timed out."""


class RedisRefused(Exception):
    """The server answered a command with an error."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    host: str = ""
    port: int = 6379
    path: str = ""
    """Path of a Unix socket."""
    database: int = 0
    user: str = ""
    password: Secret | None = None
    tls: bool = False
    ca: str | None = None
    """A file of certificates to trust instead of the system's."""

    @classmethod
    @hides_arguments
    def parse(cls, url: str, password: Secret | None = None) -> RedisAddress:
        """Raises `InvalidConfig`, which shows no part of the URL that may be a secret."""
        wrong = "daemon.shared: must be redis://HOST:PORT/DATABASE, rediss://… or unix:///PATH"
        try:
            parts = urlsplit(url)
            port, options = parts.port or 6379, dict(parse_qsl(parts.query, strict_parsing=False))
            database = options.pop("db", "")
            if parts.scheme != "unix":
                database = parts.path.strip("/") or database
            number = int(database or 0)
        except ValueError:
            raise InvalidConfig(wrong) from None
        if parts.password is not None or "password" in options:
            raise InvalidConfig(
                "daemon.shared: holds a password; write `shared_password: {secret: NAME}`"
            )
        tls, ca = parts.scheme == "rediss", options.pop("ca", None)
        is_socket = parts.scheme == "unix"
        if options or number < 0 or parts.scheme not in ("redis", "rediss", "unix"):
            raise InvalidConfig(wrong + "; ?db=NUMBER and ?ca=FILE are its options")
        if not (parts.path if is_socket else parts.hostname) or (ca is not None and not tls):
            raise InvalidConfig(wrong)
        return cls(
            host="" if is_socket else parts.hostname or "",
            port=port,
            path=unquote(parts.path) if is_socket else "",
            database=number,
            user=unquote(parts.username or ""),
            password=password,
            tls=tls,
            ca=ca,
        )

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """Verifies certificate and host. Raises `RedisLost` if `ca` cannot be used."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as problem:  # also for a file that is not a certificate
            raise RedisLost(f"the file of ?ca=, {self.ca}, cannot be used: {problem}") from None


class RedisConnection(asyncio.Protocol):
    """Used from one event loop. Once lost, it stays so."""

    def __init__(self, lost: OnLost, timeout: float = TIMEOUT) -> None:
        """`lost` is called once; `timeout` is for a reply, in seconds."""
        import hiredis

        self._pack = hiredis.pack_command
        self._is_error = hiredis.ReplyError
        self._reader = hiredis.Reader()
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._on_lost: OnLost | None = lost
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._pending: deque[tuple[float, asyncio.Future[Any] | None, OnReply | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = False

    @classmethod
    async def connect(
        cls, address: RedisAddress, lost: OnLost, timeout: float = TIMEOUT
    ) -> RedisConnection:
        """Connects and authenticates. Raises `RedisLost` or `RedisRefused`."""

        def made_here() -> RedisConnection:
            return cls(lost, timeout)

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(timeout, _CONNECT)):
                if address.path:
                    _, made = await loop.create_unix_connection(made_here, address.path)
                else:
                    context = address.ssl_context()
                    _, made = await loop.create_connection(
                        made_here, address.host, address.port, ssl=context
                    )
        except TimeoutError:
            # A port without TLS may read the handshake as the start of a command and wait.
            advice = f"; {_NEEDS_TLS}" if address.tls else ""
            raise RedisLost(f"no connection within {_CONNECT:g} s{advice}") from None
        except ssl.SSLError as problem:
            raise RedisLost(_tls_reason(problem)) from None
        except OSError as problem:
            raise RedisLost(_reason(problem)) from None
        try:
            await made._greet(address)
        except BaseException:
            made.close("not used")
            raise
        return made

    @hides_arguments
    async def _greet(self, address: RedisAddress) -> None:
        first = []
        if address.password is not None:
            user = (address.user,) if address.user else ()
            first.append(self.send("AUTH", *user, address.password.reveal()))
        if address.database:
            first.append(self.send("SELECT", address.database))
        first.append(self.send("PING"))
        # Each is awaited: asyncio reports exceptions that are never retrieved.
        replies = await asyncio.gather(*first, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply

    @property
    def is_open(self) -> bool:
        return self._on_lost is not None

    async def send(self, *command: Argument) -> Any:
        """Sends a command and returns its reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._write(command, future, None)
        return await future

    def post(self, *command: Argument, on_reply: OnReply | None = None) -> None:
        """Sends a command and does not wait for its reply."""
        self._write(command, None, on_reply)

    async def drain(self) -> None:
        """Waits for the replies to all commands."""
        if self.is_open and (self._pending or self._out):
            await self.send("PING")

    def close(self, reason: str = "closed") -> None:
        """Ends the connection. Commands without a reply fail."""
        lost, self._on_lost = self._on_lost, None
        if lost is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        problem = RedisLost(reason)
        for _, future, on_reply in pending:
            if future is not None and not future.done():
                future.set_exception(problem)
            elif on_reply is not None:
                on_reply(problem)
        self._out.clear()
        lost(self, reason)

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the server closed the connection" if exc is None else _reason(exc))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._overdue = False
        try:
            while (reply := self._reader.gets()) is not False:  # False: none is complete
                self._answered(reply)
        except Exception as problem:  # a protocol error: nothing after it can be read
            self.close(f"the server does not speak the protocol: {type(problem).__name__}")

    def _answered(self, reply: Any) -> None:
        _, future, on_reply = self._pending.popleft()
        if isinstance(reply, self._is_error):
            reply = RedisRefused(str(reply))
        if future is not None:
            if not future.done():
                if isinstance(reply, RedisRefused):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        elif on_reply is not None:
            on_reply(reply)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def _write(
        self,
        command: tuple[Argument, ...],
        future: asyncio.Future[Any] | None,
        on_reply: OnReply | None,
    ) -> None:
        if not self.is_open or len(self._pending) >= _MOST_PENDING:
            raise RedisLost("not connected")
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(command))  # type: ignore[arg-type]
        self._pending.append((self._loop.time(), future, on_reply))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._check_time)

    def _flush(self) -> None:
        if self._transport is None or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MOST_BUFFERED:
            self.close("the server does not read")

    def _check_time(self) -> None:
        """Ends the connection if the oldest command has timed out."""
        self._timer = None
        if not self._pending:
            self._overdue = False
            return
        late = self._loop.time() - self._pending[0][0] - self._timeout
        if late < 0:
            self._timer = self._loop.call_later(-late, self._check_time)
        elif not self._overdue:
            # If this process was busy, the reply may already have arrived: received data is read
            # first.
            self._overdue = True
            self._timer = self._loop.call_later(_LATE, self._check_time)
        else:
            self.close(f"no reply within {self._timeout * 1000:.0f} ms")


def _reason(problem: BaseException) -> str:
    text = getattr(problem, "strerror", None) or str(problem)
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def _tls_reason(problem: ssl.SSLError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        advice = "the certificate authority can be named with ?ca=FILE"
        return f"TLS failed: {problem.verify_message}; {advice}"
    return f"TLS failed: {problem.reason or problem}; {_NEEDS_TLS}"
