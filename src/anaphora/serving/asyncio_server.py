"""HTTP/1.1 connections on asyncio, with TLS whose certificate may change while the server runs, and
with the credentials of peers at a Unix socket. `listening` has the listening sockets.

ASGI applications are called in the event loop of the connections, without a thread in between.
"""

from __future__ import annotations

import asyncio
import logging
import select
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.web_protocol import RequestHandler

from .connection_limits import (
    CONNECTION,
    ConnectionLimits,
    ConnectionPlace,
    ConnectionTable,
    connection_scope,
    peer_of,
)
from .server import StoppableApp

#: Seconds that connections may take to close.
CLOSE_SECONDS = 1.0
#: Seconds after which a proxy's idle connection is closed.
_FOREVER = 10.0**9
#: A body that no handler reads is discarded, so that its sender sees the response: this many bytes,
#: then a pause of this many seconds for other connections, and this many seconds in total.
_DISCARDED, _DISCARD_PAUSE, _DISCARD_SECONDS = 256 * 1024, 0.03, 5.0
#: Bodies discarded at the same time; others, and their senders, wait.
_DISCARDED_AT_ONCE = 2

_WITHOUT_BODY = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode()
    for each in HTTPStatus
    if each >= HTTPStatus.OK and each not in _WITHOUT_BODY
}
#: Headers of a response that need aiohttp's care.
_UNUSUAL = frozenset((b"connection", b"date", b"server", b"transfer-encoding", b"upgrade"))

_quiet = logging.Logger("anaphora.serving", logging.CRITICAL + 1)


class ServedConnections(web.Server):
    """The connections of one server."""

    def __init__(
        self, app: StoppableApp, limits: ConnectionLimits, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(self._answer, access_log=None, logger=_quiet)
        self._app = app
        self._limits = limits
        self._tls = tls
        self.table = ConnectionTable(limits)
        self.discarding = asyncio.Semaphore(_DISCARDED_AT_ONCE)
        self.open: set[_Connection] = set()
        self.ends_each: Callable[[], bool] = lambda: False
        """Whether each response ends its connection, with `connection: close`."""

    def close_idle(self, seconds: float) -> None:
        """Closes connections that were idle for this long and have no open request."""
        before = asyncio.get_running_loop().time() - seconds
        for each in tuple(self.open):
            if each.idle_since is not None and each.idle_since <= before and not each.has_input():
                each.close_idle()

    def accept(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        connection = _Connection(self, self._limits)
        return connection if self._tls is None else _TlsHandshake(connection, self._tls)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        exchange = _AsgiExchange(request, connection)
        place = connection.place
        assert place is not None
        place.begin()
        connection.begun += 1
        connection.idle_since = None
        try:
            await self._app(connection.scope(request), exchange.receive, exchange.send)
        except Exception:
            exchange.cut()
        finally:
            place.end()
            connection.idle_since = asyncio.get_running_loop().time()
        if not request.content.is_eof():
            await exchange.discard(self.discarding)
        return exchange.response()


class _TlsHandshake(asyncio.Protocol):
    """A connection that is counted before its TLS handshake: one that never sends anything takes a
    place as well."""

    def __init__(self, connection: _Connection, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the data is part of the handshake
        if self._connection.take_place(transport):
            self._task = asyncio.create_task(self._shake_hands(transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
            encrypted = await loop.start_tls(
                transport,
                connection,
                self._context,
                server_side=True,
                ssl_handshake_timeout=connection.idle_seconds,
            )
        except (OSError, asyncio.CancelledError):
            encrypted = None
        if encrypted is None or connection.is_closed:
            transport.abort()
            connection.leave()
        else:
            connection.connection_made(encrypted)


class _Connection(RequestHandler):
    def __init__(self, connections: ServedConnections, limits: ConnectionLimits) -> None:
        super().__init__(
            connections,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_quiet,
            keepalive_timeout=limits.idle_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            lingering_time=CLOSE_SECONDS,
            auto_decompress=False,
        )
        self.idle_seconds = limits.idle_seconds
        self.connections = connections
        self.idle_since: float | None = asyncio.get_running_loop().time()
        """When it was opened, last received data or was answered; None while a request is open."""
        self._scope: dict[str, Any] = {}
        self._accepted: asyncio.Transport | None = None
        self.place: ConnectionPlace | None = None
        self.is_closed = False
        self.begun = 0
        """Requests answered or being answered."""
        self.discards = False
        """It discards a body."""
        self.lost = asyncio.Event()

    def take_place(self, transport: asyncio.Transport) -> bool:
        """Counts the connection, and closes it if there is no place."""
        self._accepted = transport
        self._scope = connection_scope(transport)
        self.place = self.connections.table.enter(
            peer_of(self._scope), self.has_input, self.close_idle
        )
        if self.place is None:
            self.is_closed = True
            self._manager = None
            transport.abort()
            return False
        self.connections.open.add(self)
        self._scope[CONNECTION] = self.place
        if self.place.keeps:
            self._keepalive_timeout = _FOREVER
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self.place is None:
            if not self.take_place(transport):
                return
        else:  # after its handshake
            self._scope["scheme"] = "https"
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set()
        self.leave()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Gives up its place."""
        self.is_closed = True
        self.connections.open.discard(self)
        if self.place is not None:
            self.place.leave()

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            self.idle_since = asyncio.get_running_loop().time()
        super().data_received(data)

    def has_input(self) -> bool:
        if self._accepted is None or self.is_closed or self.discards:
            return False
        if self._request_count > self.begun:
            return True
        waiting = select.poll()
        waiting.register(self._accepted.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def close_idle(self) -> None:
        self.is_closed = True
        self.force_close()
        if self._accepted is not None:
            self._accepted.abort()

    def scope(self, request: web.BaseRequest) -> dict[str, Any]:
        """ASGI's description of a request."""
        url = request.rel_url
        return {
            **self._scope,
            "method": request.method,
            "path": url.path,
            "raw_path": url.raw_path.encode("latin-1"),
            "query_string": url.raw_query_string.encode("latin-1"),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
        }

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """A request that is not valid HTTP, or has too large a head. The response omits the
        parser's message."""
        response = web.Response(status=status, text="the request is not valid HTTP\n")
        response.headers["server"] = "anaphora"
        response.force_close()
        return response


class _Response(web.StreamResponse):
    #: The head goes out with the first piece of the body.
    _send_headers_immediately = False


class _AsgiExchange:
    """ASGI's `receive` and `send` for one request."""

    __slots__ = ("_connection", "_continue", "_read", "_request", "_response", "_start", "_streams")

    def __init__(self, request: web.BaseRequest, connection: _Connection) -> None:
        self._request = request
        self._connection = connection
        self._read = False
        self._continue = request.headers.get("expect", "").lower() == "100-continue"
        self._start: Any = None
        self._response: web.StreamResponse | None = None
        self._streams = False
        """A response is written here, piece by piece."""

    async def receive(self) -> dict[str, Any]:
        if self._read:
            await self._connection.lost.wait()
            return {"type": "http.disconnect"}
        try:
            if self._continue:
                self._continue = False
                self._request.transport.write(_CONTINUE)  # type: ignore[union-attr]
            data = await self._request.content.readany()
        except (OSError, web.RequestPayloadError):
            self._read = True
            return {"type": "http.disconnect"}
        self._read = self._request.content.at_eof()
        return {"type": "http.request", "body": data, "more_body": not self._read}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        assert self._start is not None, "a response starts with its status"
        response, body = self._response, message.get("body", b"")
        more: bool = message.get("more_body", False)
        if self._streams:
            await self._write(b"", body, more)
            return
        if response is None:
            ends = self._connection.connections.ends_each()
            if not ends and await self._send_first(body, more):
                return
            response = self._response = _response(self._start, ends=ends)
        if self._request.method == "HEAD" or response.status in _WITHOUT_BODY:
            body = b""
        try:
            if not response.prepared:
                await response.prepare(self._request)
            if more:
                if body:
                    await response.write(body)
            else:
                await response.write_eof(body)
        except ConnectionError:
            return  # as ASGI has it: `receive` tells that the client is gone

    async def _send_first(self, body: bytes, more: bool) -> bool:
        """Writes the head with the body, or with its first piece; False if the response or its
        request is not an ordinary one, which is left to aiohttp."""
        request, start = self._request, self._start
        line = _STATUS_LINES.get(start["status"])
        if line is None or request.version != HttpVersion11 or request.method == "HEAD":
            return False
        if not request.keep_alive or (more and not body):
            return False
        head = _head(start["headers"], None if more else len(body))
        transport = self._connection.transport
        if head is None or transport is None or transport.is_closing():
            return False
        self._streams = more
        await self._write(line + head, body, more)
        return True

    async def _write(self, head: bytes, body: bytes, more: bool) -> None:
        """Writes a whole response, or a piece of one as a chunk. If the client is gone, `receive`
        tells it, as ASGI has it."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            return
        if self._streams:
            chunk = (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
            transport.write(b"".join((head, *chunk, b"" if more else b"0\r\n\r\n")))
        else:
            transport.write(b"".join((head, body)))
        try:
            await self._request._payload_writer.drain()
        except ConnectionError:
            return
        if not more:
            self._response = _SENT

    async def discard(self, discarding: asyncio.Semaphore) -> None:
        """Reads the rest of a body that its handler did not read, slowly and for a limited time.
        Then the connection is closed: the sender has had time to read the response."""
        content, loop = self._request.content, asyncio.get_running_loop()
        self._connection.discards = True
        until, size = loop.time() + _DISCARD_SECONDS, 0
        try:
            async with asyncio.timeout_at(until), discarding:
                while not content.is_eof():
                    size += len(await content.readany())
                    if size >= _DISCARDED:
                        size = 0
                        await asyncio.sleep(_DISCARD_PAUSE)
        except (TimeoutError, OSError, web.RequestPayloadError):
            self.cut()

    def response(self) -> web.StreamResponse:
        """The response, after the application has returned."""
        response = self._response
        if response is None or not response._eof_sent:
            self.cut()
            raise ConnectionResetError
        return response

    def cut(self) -> None:
        """Ends the connection immediately."""
        if (transport := self._connection.transport) is not None:
            transport.abort()


def _sent() -> web.StreamResponse:
    response = web.StreamResponse()
    response._eof_sent = response._keep_alive = True
    return response


#: Tells aiohttp that a response was written and its connection stays.
_SENT = _sent()


def _head(headers: list[tuple[bytes, bytes]], size: int | None) -> bytes | None:
    """The headers of a response with a body of that size, or of chunks, as bytes; None if some of
    them are unusual or missing."""
    named = dict(headers)
    length = None if size is None else b"%d" % size
    if named.get(b"content-length") != length or b"content-type" not in named:
        return None
    lines = [b"%b: %b\r\n" % pair for pair in headers]
    if size is None:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    lines.append(b"server: anaphora\r\nDate: %b\r\n\r\n" % rfc822_formatted_time().encode())
    head = b"".join(lines)
    count = len(lines) + 2
    if not _UNUSUAL.isdisjoint(named) or b"\0" in head or head.count(b"\n") != count:
        return None
    return head if head.count(b"\r") == count else None


def _response(message: Any, *, ends: bool) -> web.StreamResponse:
    response = _Response(status=message["status"])
    headers = response.headers
    for name, value in message["headers"]:
        headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
    headers["server"] = "anaphora"
    if ends:
        headers["connection"] = "close"
    if headers.get("connection", "").lower() == "close":
        response.force_close()  # what follows on the connection is not answered
    return response
