"""A forward proxy for programs without a base URL setting: they reach it by `HTTPS_PROXY`.

A tunnel (`CONNECT`) to a host of the catalog's providers is opened: the proxy answers in the host's
name, with a certificate of this run's authority, and the relay forwards the requests. Every other
tunnel is passed through unread. The listener is on loopback and requires a password, which is made
for each run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from anaphora.client.config.environment import default_rows
from anaphora.client.transport.errors import read_url
from anaphora.errors import AnaphoraError, Upstream
from anaphora.serving.app import ANY, HostGuard, ServedApp
from anaphora.serving.connection_limits import ConnectionLimits
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.serving.listening import connected_server
from anaphora.traffic.calls import ProxyRoute

from .command_line import TABLES
from .routes import RouteTable, environment_proxy

if TYPE_CHECKING:
    from .certificates import Authority
    from .relay import RelayHandler

_HOST, _USER = "127.0.0.1", "anaphora"
_HTTPS = 443
#: Limits of the head of a request to the proxy: bytes, and seconds.
_HEAD_BYTES, _HEAD_SECONDS = 16 * 1024, 30.0
_CONNECT_SECONDS, _HANDSHAKE_SECONDS = 30.0, 30.0
_PIECE = 64 * 1024
#: All tunnels belong to one program.
_LIMITS = ConnectionLimits(connections=4096, strangers_of_peer=4096)
Serve: TypeAlias = Callable[[socket.socket], Awaitable[None]]
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Forwarding(NamedTuple):
    """What a forward proxy needs in addition to the relay's routes."""

    authority: Authority
    base_urls: Mapping[str, str] = {}
    """Base URLs in the program's own settings, by provider: their hosts are opened as well."""
    report: Callable[[str], None] = logging.getLogger("anaphora").warning
    """Gets a sentence for each host whose certificate a program rejected."""

    def opened(self, routes: Iterable[ProxyRoute]) -> dict[str, ProxyRoute]:
        """The routes of hosts whose tunnels are opened."""
        rows = default_rows()  # not those of clouds that serve the provider's models
        found = {}
        for route in routes:
            row = rows.get(route.provider)
            parts = urlsplit("" if row is None else row.base_url)
            own = route.prefix and not route.name
            if own and parts.scheme == "https" and "{" not in parts.netloc:
                found[_target(parts)] = msgspec.structs.replace(route, prefix="")
        for provider, url in self.base_urls.items():
            parts = urlsplit(url)
            if parts.scheme == "https":
                origin = f"https://{parts.netloc.rpartition('@')[2]}"
                cloud = TABLES.route(provider)
                provider = provider if cloud is None else cloud.provider
                signs = cloud is not None and "{region}" in cloud.upstream
                route = ProxyRoute(prefix="", provider=provider, upstream=origin, signs=signs)
                found.setdefault(_target(parts), route)
        return found


class ForwardProxy:
    """For one event loop, the relay's."""

    def __init__(
        self, relay: RelayHandler, routes: Iterable[ProxyRoute], forwarding: Forwarding
    ) -> None:
        self._relay = relay
        self._opened = forwarding.opened(routes)
        self._authority = forwarding.authority
        self._report = forwarding.report
        self._password = secrets.token_urlsafe(24)
        self.port = 0
        self._reported: set[str] = set()
        self._servers = contextlib.AsyncExitStack()
        self._relays: dict[ProxyRoute, asyncio.Task[Serve]] = {}
        self._tunnels: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        server = await asyncio.start_server(self._accepted, _HOST, 0, limit=_HEAD_BYTES)
        self._servers.callback(server.close)
        self.port = server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for tunnel in tuple(self._tunnels):
            tunnel.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)
        await self._servers.aclose()

    @property
    def url(self) -> str:
        """The value of HTTPS_PROXY; it contains the password."""
        return f"http://{_USER}:{self._password}@{_HOST}:{self.port}"

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tunnels.add(task)
        try:
            await self._tunnel(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the program or its host is gone
        except asyncio.CancelledError:
            pass  # the proxy ends; asyncio would report it as an error of its own
        finally:
            self._tunnels.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _refuse(writer, "431 Request Header Fields Too Large", "the head is too large")
            return
        line, headers = _read_head(head)
        method, _, rest = line.partition(" ")
        if not self._is_allowed(headers.get("proxy-authorization", "")):
            await _refuse(
                writer,
                "407 Proxy Authentication Required",
                "the password of this run is in HTTPS_PROXY",
                'Proxy-Authenticate: Basic realm="anaphora"\r\n',
            )
            return
        target = _read_target(rest.partition(" ")[0]) if method == "CONNECT" else None
        if target is None:
            reason = "this proxy takes CONNECT HOST:PORT; it is meant for HTTPS_PROXY alone"
            await _refuse(writer, "405 Method Not Allowed", reason, "Allow: CONNECT\r\n")
        elif (route := self._opened.get(f"{target[0]}:{target[1]}")) is None:
            await self._pass(target, reader, writer)
        else:
            await self._open(target[0], route, reader, writer)

    def _is_allowed(self, given: str) -> bool:
        scheme, _, token = given.partition(" ")
        expected = base64.b64encode(f"{_USER}:{self._password}".encode())
        return scheme.lower() == "basic" and hmac.compare_digest(token.strip().encode(), expected)

    # ── Tunnels to providers ─────────────────────────────────────────────────────────────────────

    async def _open(
        self,
        host: str,
        route: ProxyRoute,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        serve = await self._relay_of(route)
        context = self._authority.context(host)
        writer.write(_ESTABLISHED)
        try:
            await writer.start_tls(context, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
        except (OSError, TimeoutError) as problem:
            if isinstance(problem, ssl.SSLError | ConnectionError):
                self._report_once(host)
            return
        here, there = socket.socketpair()
        await serve(there)
        await _join((reader, writer), await asyncio.open_connection(sock=here, limit=_PIECE))

    def _report_once(self, host: str) -> None:
        if host not in self._reported:
            self._reported.add(host)
            self._report(
                f"a program rejected the proxy's certificate for {host}, so its calls"
                " there fail: it pins certificates, or reads none of"
                f" {', '.join(self._authority.environment)}"
            )

    async def _relay_of(self, route: ProxyRoute) -> Serve:
        """Accepts connections whose requests are relayed in the name of the route's provider."""
        starting = self._relays.get(route)
        if starting is None:
            starting = self._relays[route] = asyncio.create_task(self._start(route))
        return await asyncio.shield(starting)

    async def _start(self, route: ProxyRoute) -> Serve:
        # The client has sent the password, so Host and Origin are not checked.
        app = ServedApp(_HostHandler(self._relay, route), HostGuard(_HOST, [ANY], origins=False))
        return await self._servers.enter_async_context(connected_server(app, _LIMITS))

    # ── Other tunnels ────────────────────────────────────────────────────────────────────────────

    async def _pass(
        self,
        target: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                onward = await _connected(*target)
        except (OSError, TimeoutError, AnaphoraError, asyncio.IncompleteReadError) as problem:
            await _refuse(writer, "502 Bad Gateway", f"{target[0]}:{target[1]}: {_reason(problem)}")
            return
        writer.write(_ESTABLISHED)
        await _join((reader, writer), onward)


class _HostHandler:
    """The relay for the requests to one host."""

    def __init__(self, relay: RelayHandler, route: ProxyRoute) -> None:
        self._relay = relay
        self._routes = RouteTable([route])

    async def handle(self, exchange: HttpExchange) -> None:
        await self._relay.handle_call(exchange, self._routes)

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        return self._relay.error(exchange, problem, self._routes)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(host: str, port: int) -> Streams:
    """A connection to a host, through the user's own proxy if the environment names one."""
    name = f"[{host}]" if ":" in host else host
    proxy, headers = environment_proxy(read_url(f"https://{name}:{port}"))
    if proxy is None:
        return await asyncio.open_connection(host, port, limit=_PIECE)
    assert proxy.raw_host is not None
    reader, writer = await asyncio.open_connection(
        proxy.raw_host,
        proxy.port,
        ssl=ssl.create_default_context() if proxy.scheme == "https" else None,
        limit=_PIECE,
    )
    try:
        lines = "".join(f"{name}: {headers[name]}\r\n" for name in headers)
        authority = f"{name}:{port}"
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{lines}\r\n".encode())
        answer, _ = _read_head(await reader.readuntil(b"\r\n\r\n"))
        status = answer.split(" ")[1:2]
        if status != ["200"]:
            raise ConnectionError(f"your proxy answered with status {''.join(status) or 'none'}")
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _join(one: Streams, other: Streams) -> None:
    """Copies bytes both ways until one side has ended and its data has arrived."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one[0], other[1]))
            group.create_task(_copy(other[0], one[1]))
    except* OSError:
        pass
    finally:
        other[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


async def _refuse(writer: asyncio.StreamWriter, status: str, reason: str, header: str = "") -> None:
    text = f"anaphora: {reason}\n".encode()
    head = f"HTTP/1.1 {status}\r\n{header}Content-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    await writer.drain()


def _read_head(head: bytes) -> tuple[str, Mapping[str, str]]:
    """The first line, and headers by lower-case name."""
    line, *rest = head.decode("latin-1").split("\r\n")
    pairs = (one.partition(":") for one in rest if one)
    return line, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _read_target(text: str) -> tuple[str, int] | None:
    """Host and port of `HOST:PORT`, or of `[IPV6]:PORT`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        return None
    return host.lower().rstrip("."), int(port)


def _target(parts: SplitResult) -> str:
    return f"{parts.hostname}:{parts.port or _HTTPS}"


def _reason(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return f"no connection within {_CONNECT_SECONDS:g} s"
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
