"""Sending a request, and the pool of connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from weakref import WeakSet

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora.client.config.values import Timeouts
from anaphora.client.transport import Outgoing
from anaphora.client.transport.patience import Patience
from anaphora.errors import Transport

from .addresses import place, read_proxy, read_url, trusting
from .answer import AiohttpAnswer
from .exchange import Exchange, Watches, watch
from .problems import final, unanswered, unconnected
from .route import REPEATABLE, Route, read_method

#: How long an unused connection is kept; below the minute after which load balancers drop theirs.
KEPT = 45.0

#: For how many addresses what is known of the way there is kept.
ROUTES = 1024


class AiohttpTransport:
    """Pooled HTTP/1.1. `proxy` is an address, with credentials where needed; `ca` a file of
    certificates to trust instead of the system's.

    There are at most so many `connections` at once; a request that finds none free waits for one as
    long as it may take to connect.
    """

    def __init__(
        self, proxy: str | None = None, ca: str | None = None, connections: int = 256
    ) -> None:
        self._proxy = None if proxy is None else read_proxy(proxy)
        self._ssl = True if ca is None else trusting(ca)
        self._connections = connections
        self._connector: aiohttp.TCPConnector | None = None
        self._patience: Patience
        self._closed = False
        self._routes: dict[str, Route] = {}
        self._watches: Watches = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._open: WeakSet[AiohttpAnswer] = WeakSet()

    async def send(self, outgoing: Outgoing) -> AiohttpAnswer:
        connector = self._connector or self._start()
        route = self._routes.get(outgoing.url) or self._route(outgoing.url)
        method = read_method(outgoing.method)
        head = route.head(method, outgoing.headers, len(outgoing.body))
        while True:
            exchange, kept = await self._connect(connector, route, outgoing.timeouts)
            try:
                message, content = await exchange.answer(method, head, outgoing.body)
                break
            except (aiohttp.ClientError, OSError, HttpProcessingError) as problem:
                exchange.abort()
                if self._closed:
                    raise self._gone(route.url) from None
                phase, what = unanswered(
                    problem, outgoing.timeouts, written=exchange.written, kept=kept
                )
                if phase == "send" and kept and exchange.written and method in REPEATABLE:
                    continue  # on the next one that is kept, or on one that is new
                way = self._way(problem, route.url)
                raise Transport(f"{way}: {what}", phase=phase) from None
            except BaseException:
                exchange.abort()
                raise
        answer = AiohttpAnswer(exchange, message, content, route.url, outgoing, self._patience)
        if not content.is_eof():
            self._open.add(answer)
        return answer

    async def close(self) -> None:
        """Returns when every socket is closed. What is under way fails with `Transport`."""
        self._closed = True
        connector, self._connector = self._connector, None
        if connector is None:
            return
        self._patience.close()
        for answer in list(self._open):
            await answer.close()
        for sock in list(self._sockets):
            try:
                # A peer that does not read must not keep us waiting for the last write.
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                if sock.fileno() != -1:
                    self._sockets.discard(sock)  # not connected yet: its sender closes it
        await connector.close()
        while any(sock.fileno() != -1 for sock in self._sockets):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _start(self) -> aiohttp.TCPConnector:
        if self._closed:
            raise final("the client is closed", "connect")
        self._patience = Patience(asyncio.get_running_loop())
        self._connector = aiohttp.TCPConnector(
            limit=self._connections,
            keepalive_timeout=KEPT,
            ssl=self._ssl,
            socket_factory=self._socket,
        )
        return self._connector

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, proto, _, _ = address
        sock = socket.socket(family=family, type=kind, proto=proto)
        self._sockets.add(sock)
        return sock

    def _route(self, url: str) -> Route:
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        route = self._routes[url] = Route(read_url(url), self._proxy)
        return route

    async def _connect(
        self, connector: aiohttp.TCPConnector, route: Route, timeouts: Timeouts
    ) -> tuple[Exchange, bool]:
        """A connection, and whether it served before."""
        while True:
            try:
                connection = await connector.connect(
                    route.destination, [], _client_timeout(timeouts)
                )
            except (aiohttp.ClientError, OSError) as problem:
                if self._closed:
                    raise self._gone(route.url) from None
                message = f"{self._way(problem, route.url)}: {unconnected(problem, timeouts)}"
                if isinstance(problem, ssl.SSLCertVerificationError):
                    raise final(message, "connect") from None
                raise Transport(message, phase="connect") from None
            except (asyncio.CancelledError, RuntimeError):
                if self._closed and not _is_cancelled():
                    raise self._gone(route.url) from None
                raise
            protocol = connection.protocol
            assert protocol is not None
            watched = self._watches.get(protocol)
            if watched is None:
                watched = watch(protocol, self._watches)
                return Exchange(connection, watched, timeouts, self._patience), False
            if not protocol.should_close:
                return Exchange(connection, watched, timeouts, self._patience), True
            # Something came that nobody had asked for: it would be taken for our answer.
            connection.close()

    def _gone(self, url: URL) -> Transport:
        return final(f"{place(url)}: the client was closed meanwhile", "connect")

    def _way(self, problem: Exception, url: URL) -> str:
        if self._proxy is None:
            return place(url)
        if isinstance(problem, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
            return f"proxy {place(self._proxy)} to {place(url)}"
        return f"{place(url)} through proxy {place(self._proxy)}"


@lru_cache(maxsize=128)
def _client_timeout(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=timeouts.connect)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
