"""The client's transport: pooled HTTP/1.1 connections, created in the first request's loop.

No cookies, no redirects (a 3xx is a response like any other), no proxies from the environment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import cast
from weakref import WeakSet

from yarl import URL

from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.credentials.sending import send_authenticated
from anaphora.errors import InvalidRequest

from . import HttpRequest, errors
from .connections import Address, Connections
from .decoding import ACCEPT_ENCODING, Decompressor, InvalidCompression
from .exchange import NetworkExchange, OutgoingRequest, RequestHead, send_request
from .timer import SharedTimer

#: The number of URLs whose routes are kept.
MAX_ROUTES = 1024

#: Safe to send again when a kept-alive connection was closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
#: Methods that need no Content-Length without a body.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
#: Only the transport sets these: a second value could make the server end the message elsewhere.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


class UrlRoute(Address):
    """A URL, the key of its connections, and the last head that was sent there."""

    __slots__ = ("_defaults", "_target", "last")

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        super().__init__(url, proxy, proxy_headers)
        self.last: tuple[str, SecretHeaders, RequestHead] | None = None
        """The last request with a body: method, headers and head."""
        self._target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            bare = url.with_user(None) if url.raw_user or url.raw_password else url
            self._target = str(bare.with_fragment(None))
        else:
            proxy_headers = SecretHeaders()
        # aiohttp's own defaults, credentials of the URL included.
        defaults = {**self.destination.headers, **proxy_headers}
        self._defaults = SecretHeaders({**defaults, "Accept-Encoding": ACCEPT_ENCODING})

    def head(self, method: str, headers: SecretHeaders, size: int) -> tuple[bytes, bytes]:
        """Request line and headers of a request with a body of `size` bytes, and the line with
        its length: what a `RequestHead` is made of."""
        if not _TOKEN.fullmatch(method):
            raise InvalidRequest("not an HTTP method", path="method")
        if not _are_valid(headers):
            # Not quoted: it may be a key.
            raise InvalidRequest("invalid HTTP header", path="headers")
        names = {name.lower() for name in headers}
        if "authorization" in names and "Authorization" in self._defaults:
            raise InvalidRequest("the URL also has credentials", path="headers")
        return self._encode(method.upper(), headers, names, size)

    def _encode(
        self, method: str, headers: SecretHeaders, names: set[str], size: int
    ) -> tuple[bytes, bytes]:
        length = b"\r\n"
        if size or method not in _BODILESS:
            length = b"Content-Length: %d\r\n\r\n" % size
        lines = [f"{method} {self._target} HTTP/1.1\r\n"]
        lines += [
            f"{name}: {self._defaults[name]}\r\n"
            for name in self._defaults
            if name.lower() not in names
        ]
        lines += [f"{name}: {headers[name]}\r\n" for name in headers]
        if size and "content-type" not in names:
            lines.append("Content-Type: application/octet-stream\r\n")
        return "".join(lines).encode(), length


def _are_valid(headers: SecretHeaders) -> bool:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _FRAMING:
            return False
        if not (value.isascii() and value.isprintable()) and _FORBIDDEN.search(value):
            return False
    return True


class AiohttpTransport:
    """`proxy` is a URL, with credentials if needed; `ca` a file of certificates to trust instead
    of the system's. A request waits for one of `connections` within its connect timeout."""

    tells_writing = True

    def __init__(
        self, proxy: str | Secret | None = None, ca: str | None = None, connections: int = 256
    ) -> None:
        secret = Secret(proxy) if isinstance(proxy, str) else proxy
        self._proxy: tuple[URL | None, SecretHeaders] = None, SecretHeaders()
        if secret is not None:
            self._proxy = errors.read_proxy(secret)
        self._connections = Connections(ca, connections)
        self._routes: dict[str, UrlRoute] = {}
        self._timer: SharedTimer
        self._open: WeakSet[AiohttpResponse] = WeakSet()

    @property
    def is_open(self) -> bool:
        return self._connections.connector is not None

    async def send(self, request: HttpRequest) -> AiohttpResponse:
        if request.credentials is not None:
            answer = await send_authenticated(self, request, request.credentials)
            return cast(AiohttpResponse, answer)
        if self._connections.connector is None:
            if self._connections.closed:
                raise errors.permanent("the client is closed", "connect")
            self._connections.start()
            self._timer = SharedTimer(asyncio.get_running_loop())
        route = self._routes.get(request.url) or self._route(request.url)
        method, size = request.method.upper(), len(request.body)
        last = route.last
        if size and last is not None and last[:2] == (request.method, request.headers):
            # The requests of a conversation differ in length only.
            head = last[2].with_length(size)
        else:
            head = RequestHead(*route.head(request.method, request.headers, size))
            if size:
                route.last = request.method, request.headers, head
        outgoing = OutgoingRequest(
            method,
            head,
            request.body,
            request.timeouts,
            repeatable=method in _IDEMPOTENT,
            on_write=request.on_write,
        )
        exchange = await send_request(self._connections, route, outgoing, self._timer)
        response = AiohttpResponse(exchange, request.max_response_bytes)
        if not exchange.content.is_eof():
            self._open.add(response)
        return response

    async def close(self) -> None:
        """Return when every socket is closed. Requests in flight fail with `Transport`."""
        self._connections.closed = True
        if self._connections.connector is not None:
            self._timer.close()
            for response in list(self._open):
                await response.close()
        await self._connections.close()

    def _route(self, url: str) -> UrlRoute:
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        route = self._routes[url] = UrlRoute(errors.read_url(url), *self._proxy)
        return route


class AiohttpResponse:
    """A response; its body is read once, by `read` or by iteration."""

    def __init__(self, exchange: NetworkExchange, most: int) -> None:
        """`most`: the maximum bytes of the decompressed body."""
        self.status: int = exchange.message.code
        self._exchange = exchange
        self._most = most
        self._headers: dict[str, str] | None = None
        encoding = exchange.message.compression
        self._decompressor = None if encoding is None else Decompressor.of(encoding)
        self._received = 0

    @property
    def ended(self) -> bool:
        """Whether the whole body was read, and its connection released."""
        exchange = self._exchange
        return exchange.connection is None and exchange.content.at_eof()

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; repeated headers are joined with commas."""
        if self._headers is None:
            given = self._exchange.message.headers
            headers = {name.lower(): value for name, value in given.items()}
            if len(headers) < len(given):
                headers = {name: ", ".join(given.getall(name)) for name in headers}
            self._headers = headers
        return self._headers

    async def read(self) -> bytes:
        data = await self._next()
        if self._exchange.content.at_eof() and self._decompressor is None:
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
        if self._exchange.connection is not None:  # it was not read to its end
            self._exchange.end()

    def __del__(self) -> None:
        if self._exchange.connection is not None:
            try:
                self._exchange.abort()
            except RuntimeError:
                pass  # the event loop is closed

    async def _next(self) -> bytes:
        """More of the body; empty at its end."""
        exchange, decompressor, most = self._exchange, self._decompressor, self._most
        try:
            while True:
                data = await exchange.receive()
                if decompressor is None:
                    break
                if not data:
                    decompressor.finish()
                    return data
                if data := decompressor.feed(data, most - self._received):
                    break  # otherwise zlib needs more
        except InvalidCompression as error:
            failure = exchange.body_error(error)
        else:
            self._received += len(data)
            if self._received <= most:
                if exchange.content.at_eof() and (decompressor is None or decompressor.is_complete):
                    exchange.release()
                return data
            failure = exchange.too_long(most)
        exchange.abort()
        try:
            raise failure
        finally:
            del failure
