"""The network as the proxy's upstream: requests and responses as bytes, over aiohttp's connections.

As in the client's transport (docs/decisions/0014), connections (DNS, TLS, proxies, the pool) and
the response parser are aiohttp's, and its session is left out: it would add headers. Nothing is
decompressed, redirects are not followed, and no time limit applies once the connection is there:
models think for as long as they do.

Errors are raised outside of the `except` that found them, and exceptions of others lose the frames
below this module: a traceback with local variables would show headers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.transport import errors
from anaphora.client.transport.connections import KEEPALIVE_SECONDS, Destination
from anaphora.client.transport.over_aiohttp import RequestHead
from anaphora.errors import InvalidConfig, Transport
from anaphora.traffic.calls import Headers, UpstreamRequest

#: Bodies up to this size are written together with the head, longer ones in pieces of this size.
_PIECE = 128 * 1024
#: The longest line and field of a response's head.
_HEAD_BYTES = 64 * 1024
_HEAD_FIELDS = 512
#: Seconds of silence after which the system asks whether the other side is still there.
_SILENCE = 60
#: The only limit: that of the connection. The others are never applied.
_TIMEOUTS = Timeouts(connect=30.0)
_CONNECT = aiohttp.ClientTimeout(total=None, connect=_TIMEOUTS.connect)
#: Safe to send again when a kept-alive connection was closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SWITCHING, _FINAL = 101, 200


class NetworkUpstream:
    """Providers over the network; proxies as the environment says (`HTTPS_PROXY`, `NO_PROXY`), and
    certificates that the system trusts, or those of the file `ca`."""

    def __init__(self, ca: str | None = None) -> None:
        self._ssl = True if ca is None else errors.tls_context(ca)
        self._connector: aiohttp.TCPConnector | None = None
        self._closed = False
        self._addresses: dict[str, UpstreamAddress] = {}
        self._open: set[NetworkExchange] = set()
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def send(self, request: UpstreamRequest) -> NetworkResponse:
        """The response, when its head has arrived."""
        address = self._address(request.route.upstream)
        while True:
            exchange, reused = await self._connect(address)
            try:
                message, content = await exchange.send(request)
                break
            except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
                exchange.abort()
                failure = errors.no_response(
                    error,
                    _TIMEOUTS,
                    address.url,
                    address.proxy,
                    written=exchange.written,
                    reused=reused,
                )
            except BaseException as error:
                exchange.abort()
                error.__traceback__ = None
                raise
            if failure.phase == "send" and reused and _may_repeat(request) and not self._closed:
                continue
            try:
                raise failure
            finally:
                del failure  # the traceback keeps this frame
        return NetworkResponse(exchange, message, content)

    async def close(self) -> None:
        self._closed = True
        for exchange in tuple(self._open):
            exchange.abort()
        if self._connector is not None:
            await self._connector.close()

    def _address(self, base: str) -> UpstreamAddress:
        found = self._addresses.get(base)
        if found is None:
            found = self._addresses[base] = UpstreamAddress(base)
        return found

    async def _connect(self, address: UpstreamAddress) -> tuple[NetworkExchange, bool]:
        """An exchange on a connection, and whether the connection was used before."""
        if self._connector is None:
            self._connector = aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=self._ssl,
                socket_factory=_socket,
            )
        while True:
            try:
                connection = await self._connector.connect(address.destination, [], _CONNECT)
            except (aiohttp.ClientError, OSError) as error:
                failure = errors.connect_error(error, _TIMEOUTS, address.url, address.proxy)
            except RuntimeError:  # the connector is closed
                failure = Transport(f"{errors.host_of(address.url)}: the proxy is stopping")
            except BaseException as error:
                error.__traceback__ = None
                raise
            else:
                protocol = connection.protocol
                assert protocol is not None
                if protocol.should_close:
                    # The server sent data unasked; it would be read as our response.
                    connection.close()
                    continue
                exchange = NetworkExchange(connection, address, self._open)
                reused = protocol in self._used
                self._used.add(protocol)
                return exchange, reused
            try:
                raise failure
            finally:
                del failure


class UpstreamAddress:
    """A base URL, the proxy on the way to it, and what the heads of its requests begin with."""

    def __init__(self, base: str) -> None:
        self.url = errors.read_url(base)
        self.proxy, proxy_headers = _environment_proxy(self.url)
        self.destination = Destination(self.url, self.proxy, proxy_headers)
        self._root = self.url.raw_path.rstrip("/")
        self._proxy_lines = RequestHead(b"", b"")
        if self.proxy is not None and self.url.scheme == "http":
            # Without a tunnel, an HTTP proxy needs the whole address.
            self._root = f"http://{self.url.raw_authority}{self._root}"
            lines = "".join(f"{name}: {proxy_headers[name]}\r\n" for name in proxy_headers)
            self._proxy_lines = RequestHead(lines.encode("latin-1"), b"")

    def head(self, request: UpstreamRequest) -> RequestHead:
        """Request line and headers: those of the request in their order, and nothing else but what
        says where a body ends."""
        query = f"?{request.query}" if request.query else ""
        target = self._root + request.path
        if not target.startswith(("/", "http")):
            target = f"/{target}"
        lines = [f"{request.method} {target}{query} HTTP/1.1", *map(": ".join, request.headers), ""]
        framing = ""
        if not isinstance(request.body, bytes):
            if not _has_length(request):
                framing = "transfer-encoding: chunked\r\n"
        elif request.body and not _has_length(request):
            framing = f"content-length: {len(request.body)}\r\n"
        end = bytes(self._proxy_lines.with_body()) + framing.encode() + b"\r\n"
        return RequestHead("\r\n".join(lines).encode("latin-1"), end)


class NetworkExchange:
    """One request and its response on one connection. Ends with `release` or `abort`; both may be
    called more than once."""

    def __init__(
        self, connection: Connection, address: UpstreamAddress, active: set[NetworkExchange]
    ) -> None:
        assert connection.protocol is not None
        self.address = address
        self.written = False
        self._connection: Connection | None = connection
        self._protocol = connection.protocol
        self._content: aiohttp.StreamReader | None = None
        self._writing: asyncio.Task[None] | None = None
        self._active = active
        active.add(self)

    async def send(
        self, request: UpstreamRequest
    ) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Sends the request; returns the response's head, and its body as it arrives."""
        protocol = self._protocol
        protocol.set_response_params(
            skip_payload=request.method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
            max_headers=_HEAD_FIELDS,
        )
        self._write(self.address.head(request), request)
        while True:
            message, content = await protocol.read()
            if message.code >= _FINAL:
                break
            if message.code == _SWITCHING:
                raise HttpProcessingError(message="switching protocols was not asked for")
        self._content = content
        return message, content

    def release(self) -> None:
        """Returns the connection to the pool after the response was received to its end. Closes it
        if the response came before the request was written: the rest is not sent."""
        connection = self._connection
        if connection is not None and self.written:
            self._connection = None
            self._active.discard(self)
            connection.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the connection at once."""
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        self._active.discard(self)
        if self._writing is not None:
            self._writing.cancel()
        if connection.transport is not None:
            connection.transport.abort()
        connection.close()
        content = self._content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError(), EOFError())

    def _write(self, head: RequestHead, request: UpstreamRequest) -> None:
        protocol, body = self._protocol, request.body
        if protocol.transport is None:
            return  # closed already; reading raises
        if isinstance(body, bytes) and len(body) <= _PIECE:
            protocol.transport.write(head.with_body(body))
            self.written = True
            return
        protocol.transport.write(head.with_body())
        if isinstance(body, bytes):
            pieces, chunked = _cut(body), False
        else:
            pieces = body
            chunked = not _has_length(request)
        self._writing = asyncio.create_task(self._write_rest(pieces, chunked))

    async def _write_rest(self, pieces: AsyncIterator[bytes], chunked: bool) -> None:
        """Writes as the body arrives and the peer reads. The response is awaited meanwhile: a
        server may refuse a long request before it has read all of it."""
        protocol = self._protocol
        try:
            async for data in pieces:
                if not data:
                    continue
                if protocol.transport is None:
                    return
                protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                await protocol._drain_helper()
            if protocol.transport is not None:
                if chunked:
                    protocol.transport.write(b"0\r\n\r\n")
                self.written = True
        except OSError:
            pass  # the connection is closed; reading raises
        except Exception:
            # The body could not be read to its end: the server must not take it for complete.
            self.abort()


class NetworkResponse:
    """A response; its body is read once, by iteration."""

    def __init__(
        self, exchange: NetworkExchange, message: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status: int = message.code
        self.headers: Headers = tuple(
            [
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in message.raw_headers
            ]
        )
        self._exchange = exchange
        self._content = content
        self._arrived = b"" if content.exception() else content.read_nowait()

    @property
    def has_begun(self) -> bool:
        """Whether a part of the body came with the head."""
        return bool(self._arrived)

    def __aiter__(self) -> NetworkResponse:
        return self

    async def __anext__(self) -> bytes:
        content, exchange = self._content, self._exchange
        try:
            if self._arrived:
                data, self._arrived = self._arrived, b""
            elif content.is_eof():
                data = content.read_nowait()
            else:
                data = await content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            exchange.abort()
            failure = errors.body_error(error, _TIMEOUTS, exchange.address.url)
        except BaseException as error:
            exchange.abort()
            error.__traceback__ = None
            raise
        else:
            if content.at_eof():
                exchange.release()
            if data:
                return data
            raise StopAsyncIteration
        try:
            raise failure
        finally:
            del failure

    async def close(self) -> None:
        content = self._content
        if content.is_eof() and content.exception() is None:
            self._exchange.release()
        else:
            self._exchange.abort()


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        yield view[start : start + _PIECE]  # type: ignore[misc]


def _has_length(request: UpstreamRequest) -> bool:
    return any(name == "content-length" for name, _ in request.headers)


def _may_repeat(request: UpstreamRequest) -> bool:
    return request.method in _IDEMPOTENT and isinstance(request.body, bytes)


def _environment_proxy(url: URL) -> tuple[URL | None, SecretHeaders]:
    """The proxy that the environment names for a URL, without credentials, and its headers."""
    if proxy_bypass(f"{url.raw_host}:{url.port}"):
        return None, SecretHeaders()
    proxies = {name: Secret(address) for name, address in getproxies().items()}
    found = proxies.get(url.scheme) or proxies.get("all")
    if found is None:
        return None, SecretHeaders()
    try:
        return errors.read_proxy(found)
    except InvalidConfig as error:
        failure = Transport(f"{errors.host_of(url)}: the environment's {error}")
    raise failure


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices when the other side is gone while nothing is sent."""
    family, kind, proto, _, _ = address
    sock = socket.socket(family=family, type=kind, proto=proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE)
    return sock
