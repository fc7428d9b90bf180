"""The connections of the client and of the proxy: addresses, the pool, closing all of them.

Connections (`TCPConnector`: DNS, TLS, proxies, the pool) and the response parser are aiohttp's;
its `ClientSession` is left out, because it costs more than both (docs/decisions/0014), and adds
headers. Redirects are not followed.

`exchange.py` sends requests over them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from anaphora.client.config.secrets import SecretHeaders
from anaphora.errors import Transport
from anaphora.version import __version__

from . import errors

#: Idle connections are kept this long: below the minute after which load balancers drop theirs.
KEEPALIVE_SECONDS = 45.0
#: Bytes of one read. asyncio allocates them each time; its default of 256 KB is mapped anew.
READ_BYTES = 64 * 1024

_AGENT = {"User-Agent": f"anaphora/{__version__}"}


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


class Address:
    """The destination of requests: a URL, and the proxy for it."""

    __slots__ = ("destination", "proxy", "url")

    def __init__(self, url: URL, proxy: URL | None, proxy_headers: SecretHeaders) -> None:
        self.url = url
        self.proxy = proxy
        """Without credentials: those are headers."""
        self.destination = Destination(url, proxy, proxy_headers)


def _connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


class Connections:
    """The connections of one transport, created in the first request's event loop."""

    def __init__(
        self,
        ca: str | None,
        most: int,
        *,
        closed: str = "the client was closed",
        head_limits: Mapping[str, Any] = {},
        silence: int | None = None,
    ) -> None:
        """`ca` is a file of certificates to trust instead of the system's, `most` the number of
        connections, 0 for any. `closed` is the error of requests after `close`. `silence`: seconds
        without data after which TCP keep-alive probes are sent."""
        self._ssl = True if ca is None else errors.tls_context(ca)
        self._most = most
        self._closed_reason = closed
        self.head_limits = head_limits
        self._silence = silence
        self.connect_limit = lru_cache(maxsize=64)(_connect_limit)
        self.connector: aiohttp.TCPConnector | None = None
        self.closed = False
        self.active: dict[ResponseHandler, Any] = {}
        """Every connection that was used, with the `NetworkExchange` it is used by now."""
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def start(self) -> aiohttp.TCPConnector:
        self.connector = aiohttp.TCPConnector(
            limit=self._most,
            keepalive_timeout=KEEPALIVE_SECONDS,
            ssl=self._ssl,
            socket_factory=self._socket,
        )
        return self.connector

    async def close(self) -> None:
        """Return when every socket is closed."""
        self.closed = True
        connector, self.connector = self.connector, None
        if connector is None:
            return
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
        return errors.permanent(f"{errors.host_of(url)}: {self._closed_reason}", "connect")

    def _connection_closed(self, protocol: ResponseHandler, closed: asyncio.Future[None]) -> None:
        cause = closed.exception()
        exchange = self.active.pop(protocol)
        if exchange is not None:
            exchange.fail(cause or EOFError())

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, proto, _, _ = address
        sock = socket.socket(family=family, type=kind, proto=proto)
        self._sockets.add(sock)
        if self._silence is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self._silence)
        return sock
