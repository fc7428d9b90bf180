"""The transport over aiohttp: pooled HTTP/1.1 connections, created in the first request's loop.

No cookies, no redirects (a 3xx is a response like any other), no proxies from the environment.
Connections (`TCPConnector`: DNS, TLS, proxies, the pool) and the response parser are aiohttp's;
its `ClientSession` is left out, because it costs more than both (docs/decisions/0014).

Errors are raised outside of the `except` that found them, and exceptions of others lose the frames
below this module: a traceback with local variables would show headers and a proxy's password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora.client.config.secrets import Secret

from . import HttpRequest, errors
from .connections import Connections, UrlRoute, connect_limit
from .decoding import Decompressor, InvalidCompression
from .timer import SharedTimer

#: Bodies up to this size are written together with the head, longer ones in pieces of this size.
PIECE = 128 * 1024

#: Safe to send again when a kept-alive connection was closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class RequestHead:
    """Request line and headers. No frame but its own holds them: the local variables of others are
    shown where an exception passes through, asyncio's included."""

    __slots__ = ("_length", "_lines")

    def __init__(self, lines: bytes, length: bytes) -> None:
        self._lines = lines
        self._length = length

    def with_length(self, size: int) -> RequestHead:
        """The same for a body of another size."""
        return RequestHead(self._lines, b"Content-Length: %d\r\n\r\n" % size)

    def with_body(self, body: bytes = b"") -> memoryview:
        """All bytes; a memoryview has no repr of them."""
        return memoryview(b"".join((self._lines, self._length, body)))


class AiohttpTransport:
    """`proxy` is a URL, with credentials if needed; `ca` a file of certificates to trust instead
    of the system's. A request waits for one of `connections` within its connect timeout."""

    tells_writing = True

    def __init__(
        self, proxy: str | Secret | None = None, ca: str | None = None, connections: int = 256
    ) -> None:
        secret = Secret(proxy) if isinstance(proxy, str) else proxy
        self._connections = Connections(secret, ca, connections)
        self._timer: SharedTimer
        self._open: WeakSet[AiohttpResponse] = WeakSet()

    async def send(self, request: HttpRequest) -> AiohttpResponse:
        connections = self._connections
        connector = connections.connector or self._start()
        route = connections.routes.get(request.url) or connections.route(request.url)
        method, size = request.method.upper(), len(request.body)
        last = route.last
        if size and last is not None and last[:2] == (request.method, request.headers):
            # The requests of a conversation differ in length only.
            head = last[2].with_length(size)
        else:
            head = RequestHead(*route.head(request.method, request.headers, size))
            if size:
                route.last = request.method, request.headers, head
        while True:
            exchange, reused = await self._connect(connector, route, request)
            try:
                message, content = await exchange.send(method, head, request.body)
                break
            except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
                exchange.abort()
                failure = errors.no_response(
                    error,
                    request.timeouts,
                    route.url,
                    connections.proxy,
                    written=exchange.written,
                    reused=reused,
                )
            except BaseException as error:
                exchange.abort()
                error.__traceback__ = None
                raise
            if connections.closed:
                failure = connections.closed_error(route.url)
            if failure.phase == "send" and reused and exchange.written and method in _IDEMPOTENT:
                continue
            try:
                raise failure
            finally:
                del failure  # the traceback keeps this frame
        response = AiohttpResponse(exchange, message, content)
        if not content.is_eof():
            self._open.add(response)
        return response

    async def close(self) -> None:
        """Return when every socket is closed. Requests under way fail with `Transport`."""
        connections = self._connections
        connections.closed = True
        if connections.connector is not None:
            self._timer.close()
            for response in list(self._open):
                await response.close()
            await connections.close()

    def _start(self) -> aiohttp.TCPConnector:
        connector = self._connections.start()
        self._timer = SharedTimer(asyncio.get_running_loop())
        return connector

    async def _connect(
        self, connector: aiohttp.TCPConnector, route: UrlRoute, request: HttpRequest
    ) -> tuple[HttpExchange, bool]:
        """An exchange on a connection, and whether the connection was used before."""
        connections, timeouts = self._connections, request.timeouts
        while True:
            try:
                limit = connect_limit(timeouts.connect)
                connection = await connector.connect(route.destination, [], limit)
            except (aiohttp.ClientError, OSError) as error:
                failure = errors.connect_error(error, timeouts, route.url, connections.proxy)
            except BaseException as error:
                task = asyncio.current_task()
                mine = isinstance(error, asyncio.CancelledError | RuntimeError)
                if not (mine and connections.closed and (task is None or not task.cancelling())):
                    error.__traceback__ = None
                    raise
                failure = connections.closed_error(route.url)
            else:
                protocol = connection.protocol
                assert protocol is not None
                reused = protocol in connections.active
                if not reused:
                    connections.track(protocol)
                elif protocol.should_close:
                    # The server sent data unasked; it would be read as our response.
                    connection.close()
                    continue
                exchange = HttpExchange(connection, connections, request, route.url, self._timer)
                return exchange, reused
            if connections.closed:
                failure = connections.closed_error(route.url)
            try:
                raise failure
            finally:
                del failure


class HttpExchange:
    """One request and its response on one connection. Ends with `release` or `abort`; both may be
    called more than once."""

    def __init__(
        self,
        connection: Connection,
        connections: Connections,
        request: HttpRequest,
        url: URL,
        timer: SharedTimer,
    ) -> None:
        assert connection.protocol is not None
        self.written = False
        self.connection: Connection | None = connection
        """None once it is over."""
        self._protocol = connection.protocol
        self._active = connections.active
        self.request = request
        self.url = url
        self.timer = timer
        self._content: aiohttp.StreamReader | None = None
        self._writing: asyncio.Task[None] | None = None
        self._set_active(self)

    async def send(
        self, method: str, head: RequestHead, body: bytes
    ) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Send the request; return the response head, and the body as it arrives."""
        protocol = self._protocol
        protocol.set_response_params(
            skip_payload=method == "HEAD", read_until_eof=True, auto_decompress=False
        )
        self._write(head, body)
        try:
            while True:
                message, content = await protocol.read()
                if not 100 <= message.code < 200 or message.code == 101:
                    break
        finally:
            self.timer.end(self)
        self._content = content
        return message, content

    def release(self) -> None:
        """Return the connection to the pool after the response was received to its end. Closes it
        if the response came before the request was written: the rest is not sent."""
        connection = self.connection
        if connection is not None and self.written:
            self.connection = None
            self._set_active(None)
            connection.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; its own `close` would wait for the peer to read what is
        still to be written."""
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        self._set_active(None)
        if self._writing is not None:
            self._writing.cancel()
        if connection.transport is not None:
            connection.transport.abort()
        connection.close()
        self.fail(EOFError())

    def fail(self, cause: BaseException) -> None:
        """Tell the reader of the body that no more of it will come."""
        content = self._content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError(), cause)

    def expire(self) -> None:
        self._protocol.set_exception(aiohttp.SocketTimeoutError())

    def _set_active(self, exchange: HttpExchange | None) -> None:
        if self._protocol in self._active:
            self._active[self._protocol] = exchange

    def _write(self, head: RequestHead, body: bytes) -> None:
        protocol = self._protocol
        if protocol.transport is None:
            return  # closed already; reading raises
        if self.request.on_write is not None:
            self.request.on_write()
        rest = memoryview(body)
        if len(body) <= PIECE:
            protocol.transport.write(head.with_body(body))
            if not protocol.writing_paused:
                self._finish_writing()
                return
            rest = rest[:0]
        else:
            protocol.transport.write(head.with_body())
        self._writing = asyncio.create_task(self._write_rest(rest))

    async def _write_rest(self, rest: memoryview) -> None:
        """Write as the peer reads. The response is awaited meanwhile: a server may refuse a long
        request before it has read all of it."""
        protocol = self._protocol
        try:
            while rest or protocol.writing_paused:
                async with asyncio.timeout(self.request.timeouts.idle):
                    await protocol._drain_helper()
                if protocol.transport is None:
                    return
                protocol.transport.write(rest[:PIECE])
                rest = rest[PIECE:]
        except TimeoutError as error:
            protocol.set_exception(error)
        except OSError:
            pass  # the connection is closed; reading raises
        else:
            self._finish_writing()

    def _finish_writing(self) -> None:
        self.written = True
        if self._content is None:
            self.timer.begin(self, self.request.timeouts.first_byte)


class AiohttpResponse:
    """A response; its body is read once, by `read` or by iteration."""

    def __init__(
        self, exchange: HttpExchange, message: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status: int = message.code
        self._exchange = exchange
        self._message = message
        self._content = content
        self._headers: dict[str, str] | None = None
        encoding = message.compression
        self._decompressor = None if encoding is None else Decompressor.of(encoding)
        self._received = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; repeated headers are joined with commas."""
        if self._headers is None:
            given = self._message.headers
            headers = {name.lower(): value for name, value in given.items()}
            if len(headers) < len(given):
                headers = {name: ", ".join(given.getall(name)) for name in headers}
            self._headers = headers
        return self._headers

    async def read(self) -> bytes:
        data = await self._next()
        if self._content.at_eof() and self._decompressor is None:
            return data
        pieces = [data]
        while data := await self._next():
            pieces.append(data)
        return b"".join(pieces)

    def __aiter__(self) -> AiohttpResponse:
        return self

    async def __anext__(self) -> bytes:
        if data := await self._next():
            return data
        raise StopAsyncIteration

    async def close(self) -> None:
        content = self._content
        if self._exchange.connection is None:
            return  # it was read to its end
        if content.is_eof() and content.exception() is None:
            self._exchange.release()
        else:
            self._exchange.abort()

    def __del__(self) -> None:
        if self._exchange.connection is not None:
            try:
                self._exchange.abort()
            except RuntimeError:
                pass  # the event loop is closed

    def expire(self) -> None:
        self._content.set_exception(TimeoutError())

    async def _next(self) -> bytes:
        """More of the body; empty at its end."""
        decompressor, most = self._decompressor, self._exchange.request.max_response_bytes
        try:
            while True:
                data = await self._receive()
                if decompressor is None:
                    break
                if not data:
                    decompressor.finish()
                    return data
                if data := decompressor.feed(data, most - self._received):
                    break  # otherwise zlib needs more
        except InvalidCompression as error:
            failure = errors.body_error(error, self._exchange.request.timeouts, self._exchange.url)
        else:
            self._received += len(data)
            if self._received <= most:
                if self._content.at_eof() and (decompressor is None or decompressor.is_complete):
                    self._exchange.release()
                return data
            failure = errors.too_long(most, self._exchange.url)
        self._exchange.abort()
        try:
            raise failure
        finally:
            del failure

    async def _receive(self) -> bytes:
        content, exchange = self._content, self._exchange
        request = exchange.request
        try:
            if content.is_eof():
                data = content.read_nowait()
            else:
                # The limit is for the server: time between two reads does not count.
                exchange.timer.begin(self, request.timeouts.idle)
                try:
                    data = await content.readany()
                finally:
                    exchange.timer.end(self)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            exchange.abort()
            failure = errors.body_error(error, request.timeouts, exchange.url)
        except BaseException as error:
            exchange.abort()
            error.__traceback__ = None
            raise
        else:
            return data
        try:
            raise failure
        finally:
            del failure
