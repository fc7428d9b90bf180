"""Connections for the transport: routes, request heads, sockets, and closing all of them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from anaphora import __version__
from anaphora.errors import InvalidRequest, Transport

from . import errors

if TYPE_CHECKING:
    from .over_aiohttp import HttpExchange

#: Idle connections are kept this long: below the minute after which load balancers drop theirs.
KEEPALIVE_SECONDS = 45.0

#: The number of URLs whose routes are kept.
MAX_ROUTES = 1024

_AGENT = {"User-Agent": f"anaphora/{__version__}"}

#: Methods that need no Content-Length without a body.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

#: Set by the transport alone: a second value would let the server end the message elsewhere.
_FRAMING = frozenset({"content-length", "transfer-encoding"})

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Connections:
    """The connections of one transport, created in the first request's event loop."""

    def __init__(self, proxy: str | None, ca: str | None, most: int) -> None:
        self.proxy = None if proxy is None else errors.read_proxy(proxy)
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
        route = self.routes[url] = UrlRoute(errors.read_url(url), self.proxy)
        return route

    def track(self, protocol: ResponseHandler) -> None:
        """Tell the connection's exchange when it is closed. aiohttp does so itself, except for a
        response with broken content encoding, whose reader would wait until its time limit."""
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


class Destination(aiohttp.ClientRequest):
    """The request that aiohttp's connector takes an address from. Never sent; shared by all
    requests to one URL."""

    connection_key: ConnectionKey = None  # type: ignore[assignment]

    def __init__(self, url: URL, proxy: URL | None) -> None:
        super().__init__("GET", url, headers=_AGENT, proxy=proxy, proxy_headers=_AGENT)
        # Computed once: the connector adds to the proxy headers, which are part of the key.
        self.connection_key = super().connection_key


class UrlRoute:
    """A URL, the key of its connections, and the last head that was sent there."""

    __slots__ = ("_defaults", "_target", "destination", "last", "url")

    def __init__(self, url: URL, proxy: URL | None) -> None:
        self.url = url
        self.destination = Destination(url, proxy)
        self.last: tuple[str, dict[str, str], bytes] | None = None
        """The last request with a body: method, headers, and the head without the length."""
        # aiohttp's own defaults, credentials of the URL included.
        defaults = dict(self.destination.headers)
        self._target = url.raw_path_qs
        if proxy is not None and url.scheme == "http":
            bare = url.with_user(None) if url.raw_user or url.raw_password else url
            self._target = str(bare.with_fragment(None))
            if password := aiohttp.ClientRequest("GET", proxy).headers.get("Authorization"):
                defaults["Proxy-Authorization"] = password
        self._defaults = {name.lower(): f"{name}: {value}\r\n" for name, value in defaults.items()}

    def head(self, method: str, headers: Mapping[str, str], size: int) -> bytes:
        """Request line and headers of a request with a body of `size` bytes."""
        head = self._encode(method, headers, size)
        if size:
            self.last = method, dict(headers), head[: head.rindex(b"Content-Length: ")]
        return head

    def _encode(self, method: str, headers: Mapping[str, str], size: int) -> bytes:
        if not _TOKEN.fullmatch(method):
            raise InvalidRequest("not an HTTP method", path="method")
        method = method.upper()
        names = set()
        lines = []
        for name, value in headers.items():
            names.add(_lowered(name))
            if not (value.isascii() and value.isprintable()) and _FORBIDDEN.search(value):
                raise _invalid_header()
            lines.append(f"{name}: {value}\r\n")
        if "authorization" in names and "authorization" in self._defaults:
            raise InvalidRequest("the URL also has credentials", path="headers")
        defaults = "".join([line for name, line in self._defaults.items() if name not in names])
        if size and "content-type" not in names:
            lines.append("Content-Type: application/octet-stream\r\n")
        if size or method not in _BODILESS:
            lines.append(f"Content-Length: {size}\r\n")
        text = f"{method} {self._target} HTTP/1.1\r\n{defaults}{''.join(lines)}\r\n"
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise _invalid_header() from None


def _lowered(name: str) -> str:
    lowered = name.lower()
    if not _TOKEN.fullmatch(name) or lowered in _FRAMING:
        raise _invalid_header()
    return lowered


def _invalid_header() -> InvalidRequest:
    # Not quoted: it may be a key.
    return InvalidRequest("invalid HTTP header", path="headers")
