"""Connections for the transport: the URLs that requests go to, with their heads; sockets, and
closing all of them."""

from __future__ import annotations

import asyncio
import re
import socket
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from anaphora import __version__
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.errors import InvalidRequest, Transport

from . import errors
from .decoding import ACCEPT_ENCODING

if TYPE_CHECKING:
    from .over_aiohttp import HttpExchange, RequestHead

#: Idle connections are kept this long: below the minute after which load balancers drop theirs.
KEEPALIVE_SECONDS = 45.0

#: Bytes of one read. asyncio allocates as many each time; its own 256 KB are mapped anew.
READ_BYTES = 64 * 1024

#: The number of URLs whose routes are kept.
MAX_ROUTES = 1024

_AGENT = {"User-Agent": f"anaphora/{__version__}"}
#: Methods that need no Content-Length without a body.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
#: Set by the transport alone: a second value would let the server end the message elsewhere.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


class Destination(aiohttp.ClientRequest):
    """The request that aiohttp's connector takes an address from. Never sent; shared by all
    requests to one URL."""

    connection_key: ConnectionKey = None  # type: ignore[assignment]

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        super().__init__(
            "GET", url, headers=_AGENT, proxy=proxy, proxy_headers={**_AGENT, **proxy_headers}
        )
        # Computed once: the connector adds to the proxy headers, which are part of the key.
        self.connection_key = super().connection_key


class UrlRoute:
    """A URL, the key of its connections, and the last head that was sent there."""

    __slots__ = ("_defaults", "_target", "destination", "last", "url")

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        self.url = url
        self.destination = Destination(url, proxy, proxy_headers)
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


@lru_cache(maxsize=64)
def connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


class Connections:
    """The connections of one transport, created in the first request's event loop."""

    def __init__(self, proxy: Secret | None, ca: str | None, most: int) -> None:
        self.proxy: URL | None = None
        """Without credentials: those are headers."""
        self._proxy_headers = SecretHeaders()
        if proxy is not None:
            self.proxy, self._proxy_headers = errors.read_proxy(proxy)
        self._ssl = True if ca is None else errors.tls_context(ca)
        self._most = most
        self.connector: aiohttp.TCPConnector | None = None
        self.closed = False
        self.routes: dict[str, UrlRoute] = {}
        self.active: dict[ResponseHandler, HttpExchange | None] = {}
        """Every connection that was used, with the exchange it is used by now."""
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def start(self) -> aiohttp.TCPConnector:
        if self.closed:
            raise errors.permanent("the client is closed", "connect")
        self.connector = aiohttp.TCPConnector(
            limit=self._most,
            keepalive_timeout=KEEPALIVE_SECONDS,
            ssl=self._ssl,
            socket_factory=self._socket,
        )
        return self.connector

    async def close(self) -> None:
        """Return when every socket is closed."""
        connector, self.connector = self.connector, None
        assert connector is not None
        for sock in list(self._sockets):
            try:
                # A peer that does not read must not delay the last write.
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                if sock.fileno() != -1:
                    self._sockets.discard(sock)  # still connecting: its sender closes it
        await connector.close()
        while any(sock.fileno() != -1 for sock in self._sockets):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def route(self, url: str) -> UrlRoute:
        if len(self.routes) >= MAX_ROUTES:
            self.routes.clear()
        route = self.routes[url] = UrlRoute(errors.read_url(url), self.proxy, self._proxy_headers)
        return route

    def track(self, protocol: ResponseHandler) -> None:
        """Prepare a connection, and tell its exchange when it is closed. aiohttp does so itself,
        except for a response with broken content encoding, whose reader would wait until its time
        limit."""
        transport: Any = protocol.transport
        if hasattr(transport, "max_size"):  # of asyncio's transport without TLS
            transport.max_size = READ_BYTES
        if protocol.closed is not None:
            self.active[protocol] = None
            protocol.closed.add_done_callback(partial(self._connection_closed, protocol))

    def closed_error(self, url: URL) -> Transport:
        return errors.permanent(f"{errors.host_of(url)}: the client was closed", "connect")

    def _connection_closed(self, protocol: ResponseHandler, closed: asyncio.Future[None]) -> None:
        cause = closed.exception()
        exchange = self.active.pop(protocol)
        if exchange is not None:
            exchange.fail(cause or EOFError())

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, proto, _, _ = address
        sock = socket.socket(family=family, type=kind, proto=proto)
        self._sockets.add(sock)
        return sock
