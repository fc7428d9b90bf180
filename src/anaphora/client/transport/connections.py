"""Connections for the transport: routes, sockets, and closing all of them."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.errors import Transport

from . import errors
from .request_head import UrlRoute

if TYPE_CHECKING:
    from .over_aiohttp import HttpExchange

#: Idle connections are kept this long: below the minute after which load balancers drop theirs.
KEEPALIVE_SECONDS = 45.0

#: The number of URLs whose routes are kept.
MAX_ROUTES = 1024


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
