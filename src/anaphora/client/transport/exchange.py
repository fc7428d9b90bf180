"""One request and its response on one connection: for the client and the proxy.

Errors are raised outside of the `except` block, and foreign exceptions lose the frames below this
module: a traceback with local variables would show headers and a proxy's password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora.client.config import Timeouts
from anaphora.errors import Transport

from . import errors
from .connections import Address, Connections
from .timer import SharedTimer

#: Bodies up to this size are written together with the head, longer ones in pieces of this size.
PIECE = 128 * 1024
_SWITCHING = 101


class RequestHead:
    """Request line and headers. Only frames of this class hold them: tracebacks show the local
    variables of all other frames, asyncio's included."""

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


class OutgoingRequest:
    """A request as written to a connection, and its time limits."""

    __slots__ = ("body", "chunked", "head", "method", "on_write", "repeatable", "timeouts")

    def __init__(
        self,
        method: str,
        head: RequestHead,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        *,
        repeatable: bool,
        on_write: Callable[[], None] | None = None,
        chunked: bool = False,
    ) -> None:
        """`repeatable`: safe to send again when a kept-alive connection was closed. `chunked`: the
        head does not state the length of the body."""
        self.method = method
        self.head = head
        self.body = body
        self.timeouts = timeouts
        self.repeatable = repeatable
        self.on_write = on_write
        self.chunked = chunked


class NetworkExchange:
    """One request and its response on one connection. Ends with `release` or `abort`; both may be
    called more than once."""

    message: RawResponseMessage
    content: aiohttp.StreamReader

    def __init__(
        self,
        connection: Connection,
        active: dict[ResponseHandler, NetworkExchange | None],
        request: OutgoingRequest,
        url: URL,
        timer: SharedTimer | None,
    ) -> None:
        assert connection.protocol is not None
        self.written = False
        self.connection: Connection | None = connection
        """None once it is over."""
        self._protocol = connection.protocol
        self._active = active
        self._request = request
        self._url = url
        self._timer = timer
        self._answered = False
        self._writing: asyncio.Task[None] | None = None
        self._set_active(self)

    async def send(self, head_limits: Mapping[str, Any]) -> None:
        """Send the request; return when the head of the response has arrived."""
        protocol = self._protocol
        protocol.set_response_params(
            skip_payload=self._request.method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            **head_limits,
        )
        self._write()
        try:
            while True:
                self.message, self.content = await protocol.read()
                if not 100 <= self.message.code < 200 or self.message.code == _SWITCHING:
                    break
        finally:
            if self._timer is not None:
                self._timer.end(self)
        self._answered = True

    async def receive(self) -> bytes:
        """More of the body as it arrives; empty at its end."""
        content, timer = self.content, self._timer
        try:
            if content.is_eof():
                return content.read_nowait()
            if timer is None:
                return await content.readany()
            # The limit is for the server: time between two reads does not count.
            timer.begin(self, self._request.timeouts.idle)
            try:
                return await content.readany()
            finally:
                timer.end(self)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            self.abort()
            failure = self.body_error(error)
        except BaseException as error:
            self.abort()
            error.__traceback__ = None
            raise
        try:
            raise failure
        finally:
            del failure

    def body_error(self, error: Exception) -> Transport:
        return errors.body_error(error, self._request.timeouts, self._url)

    def too_long(self, most: int) -> Transport:
        return errors.too_long(most, self._url)

    def end(self) -> None:
        """Releases the connection if the body arrived to its end, else closes it."""
        if self.content.is_eof() and self.content.exception() is None:
            self.release()
        else:
            self.abort()

    def release(self) -> None:
        """Return the connection to the pool after the whole response was received. Closes it if the
        response arrived before the request was written: the rest is not sent."""
        connection = self.connection
        if connection is not None and self.written:
            self.connection = None
            self._set_active(None)
            connection.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; its `close` would wait until the peer has read the rest of
        the request."""
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
        """Tell the reader of the body that no more data will arrive."""
        if self._answered and not self.content.is_eof() and self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientPayloadError(), cause)

    def expire(self) -> None:
        if self._answered:
            self.content.set_exception(TimeoutError())
        else:
            self._protocol.set_exception(aiohttp.SocketTimeoutError())

    def _set_active(self, exchange: NetworkExchange | None) -> None:
        if self._protocol in self._active:
            self._active[self._protocol] = exchange

    def _write(self) -> None:
        protocol, request, body = self._protocol, self._request, self._request.body
        if protocol.transport is None:
            return  # closed already; reading raises
        if request.on_write is not None:
            request.on_write()
        if not isinstance(body, bytes):
            protocol.transport.write(request.head.with_body())
            pieces: AsyncIterator[Any] = body
        elif len(body) <= PIECE:
            protocol.transport.write(request.head.with_body(body))
            if not protocol.writing_paused:
                self._finish_writing()
                return
            pieces = _cut(b"")
        else:
            protocol.transport.write(request.head.with_body())
            pieces = _cut(body)
        self._writing = asyncio.create_task(self._write_rest(pieces, request.chunked))

    async def _write_rest(self, pieces: AsyncIterator[Any], chunked: bool) -> None:
        """Write the rest as it arrives and the peer reads. The response is awaited meanwhile: a
        server may refuse a long request before it has read all of it."""
        protocol = self._protocol
        try:
            await self._drain()
            async for data in pieces:
                if not data:
                    continue
                if protocol.transport is None:
                    return
                protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                await self._drain()
            if chunked and protocol.transport is not None:
                protocol.transport.write(b"0\r\n\r\n")
        except TimeoutError as error:
            protocol.set_exception(error)
        except OSError:
            pass  # the connection is closed; reading raises
        except Exception:
            # The body could not be read to its end: the server must not take it for complete.
            self.abort()
        else:
            if protocol.transport is not None:
                self._finish_writing()

    async def _drain(self) -> None:
        if self._protocol.writing_paused:
            idle = None if self._timer is None else self._request.timeouts.idle
            async with asyncio.timeout(idle):
                await self._protocol._drain_helper()

    def _finish_writing(self) -> None:
        self.written = True
        if self._timer is not None and not self._answered:
            self._timer.begin(self, self._request.timeouts.first_byte)


# ── On a connection ──────────────────────────────────────────────────────────────────────────────


async def send_request(
    connections: Connections,
    address: Address,
    request: OutgoingRequest,
    timer: SharedTimer | None = None,
) -> NetworkExchange:
    """Sends a request; returns when the head of the response has arrived. Without a timer, no time
    limit applies after connecting."""
    while True:
        exchange, reused = await _connect(connections, address, request, timer)
        try:
            await exchange.send(connections.head_limits)
            return exchange
        except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
            exchange.abort()
            failure = errors.no_response(
                error,
                request.timeouts,
                address.url,
                address.proxy,
                written=exchange.written,
                reused=reused,
            )
        except BaseException as error:
            exchange.abort()
            error.__traceback__ = None
            raise
        if connections.closed:
            failure = connections.closed_error(address.url)
        if failure.phase == "send" and reused and exchange.written and request.repeatable:
            continue
        try:
            raise failure
        finally:
            del failure  # the traceback keeps this frame


async def _connect(
    connections: Connections,
    address: Address,
    request: OutgoingRequest,
    timer: SharedTimer | None,
) -> tuple[NetworkExchange, bool]:
    """An exchange on a new or reused connection, and whether it was reused."""
    while True:
        try:
            if connections.closed:
                raise RuntimeError
            connector = connections.connector or connections.start()
            limit = connections.connect_limit(request.timeouts.connect)
            connection = await connector.connect(address.destination, [], limit)
        except (aiohttp.ClientError, OSError) as error:
            failure = errors.connect_error(error, request.timeouts, address.url, address.proxy)
        except BaseException as error:
            task = asyncio.current_task()
            mine = isinstance(error, asyncio.CancelledError | RuntimeError)
            if not (mine and connections.closed and (task is None or not task.cancelling())):
                error.__traceback__ = None
                raise
            failure = connections.closed_error(address.url)
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
            active = connections.active
            return NetworkExchange(connection, active, request, address.url, timer), reused
        if connections.closed:
            failure = connections.closed_error(address.url)
        try:
            raise failure
        finally:
            del failure


async def _cut(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), PIECE):
        yield view[start : start + PIECE]
