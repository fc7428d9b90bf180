"""The ASGI application of a server: checks, errors in the caller's format, a graceful stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from anaphora.client.failures import line_of, log
from anaphora.client.transport.timer import SharedTimer
from anaphora.errors import Forbidden, InvalidRequest, Overloaded, RequestRejected, Upstream

from .exchange import (
    BodyLimits,
    ClientDisconnected,
    CompleteResponse,
    ConnectionEnded,
    HttpExchange,
    ServerStopping,
    SlowReader,
    UploadAborted,
)
from .websocket import GOING_AWAY, ServedWebSocket

#: Number of checks that `close` makes for open responses, one every hundredth of a second.
_CLOSE_CHECKS = 100


class Handler(Protocol):
    """Answers the requests of a server."""

    async def handle(self, exchange: HttpExchange) -> None:
        """Reads a request and answers it. An `Upstream` that it raises becomes the response."""

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        """An error in the format that the caller expects."""


class ServedApp:
    """A handler with the checks before it. Plain ASGI without a router, which would cost more than
    most responses."""

    def __init__(
        self,
        handler: Handler,
        guard: HostGuard,
        limits: BodyLimits | None = None,
        *,
        ended: Callable[[HttpExchange], None] | None = None,
        closed: Callable[[], Awaitable[None]] | None = None,
        websocket: Callable[[ServedWebSocket], Awaitable[None]] | None = None,
    ) -> None:
        """`ended` is called when a request was answered or its connection has ended; `closed` after
        the last one. `websocket` accepts or denies a WebSocket, for servers that support them."""
        self._handler = handler
        self._guard = guard
        self._limits = limits or BodyLimits()
        self._ended = ended
        self._closed = closed
        self._websocket = websocket
        self._websockets: set[asyncio.Task[Any]] = set()
        self._open: set[HttpExchange] = set()
        self._timer: SharedTimer | None = None
        self._looking = False

    @property
    def takes_websockets(self) -> bool:
        return self._websocket is not None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._open)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket" and self._websocket is not None:
                await self._serve_websocket(ServedWebSocket(scope, receive, send), self._websocket)
            return
        timer = self._timer
        if timer is None or timer.loop is not asyncio.get_running_loop():
            timer = self._timer = SharedTimer(asyncio.get_running_loop())
        exchange = HttpExchange(scope, receive, send, self._limits, timer)
        self._open.add(exchange)
        if not self._looking and self._limits.write_seconds is not None:
            self._look_for_slow_readers(self._limits.write_seconds)
        try:
            await self._answer(exchange)
        finally:
            self._open.discard(exchange)
            exchange.close()
            if self._ended is not None:
                self._ended(exchange)

    async def _serve_websocket(
        self, socket: ServedWebSocket, serve: Callable[[ServedWebSocket], Awaitable[None]]
    ) -> None:
        refusal = self._guard.refusal("GET", socket.path, socket.headers)
        if refusal is not None:
            text = {"content-type": "text/plain; charset=utf-8"}
            body = f"{refusal}\n".encode()
            await socket.deny(CompleteResponse(refusal.status or 403, text, body))
            return
        task = asyncio.current_task()
        assert task is not None
        self._websockets.add(task)
        try:
            await serve(socket)
            await socket.close()
        except asyncio.CancelledError:
            await socket.close(GOING_AWAY, "the server is stopping")
        except Exception as problem:
            name, line = type(problem).__name__, line_of(problem.__traceback__)
            log(logging.ERROR, f"WebSocket {socket.path}: {name} at {line}", problem)
            await socket.close(1011, f"internal error: {name}")
        finally:
            self._websockets.discard(task)

    def _look_for_slow_readers(self, seconds: float) -> None:
        """Runs repeatedly while a request is open: a timer for each write would take longer than
        the write."""
        for exchange in self._open:
            exchange.end_slow_write()
        self._looking = bool(self._open)
        if self._looking:
            wait = min(1.0, seconds / 4)
            asyncio.get_running_loop().call_later(wait, self._look_for_slow_readers, seconds)

    async def _answer(self, exchange: HttpExchange) -> None:
        refusal = _ambiguous(exchange) or self._guard.refusal(
            exchange.method, exchange.path, exchange.headers
        )
        if refusal is not None:
            await exchange.respond(self._handler.error(exchange, refusal))
            return
        try:
            await self._handler.handle(exchange)
        except UploadAborted:
            # The client is still connected, so it sent an invalid body.
            await self._fail(
                exchange, RequestRejected("the request body is incomplete", status=400)
            )
        except SlowReader:
            raise
        except ClientDisconnected:
            return
        except ServerStopping:
            await self._fail(exchange, Overloaded("the server is stopping", status=503))
        except Upstream as problem:
            await self._fail(exchange, problem)
        except ConnectionEnded:
            raise
        except Exception as problem:
            name, line = type(problem).__name__, line_of(problem.__traceback__)
            log(logging.ERROR, f"{exchange.method} {exchange.path}: {name} at {line}", problem)
            reason = f"internal error: {name}; this is a bug of the server, and its log has more"
            await self._fail(exchange, Upstream(reason, status=500))

    async def _fail(self, exchange: HttpExchange, problem: Upstream) -> None:
        """Answers with an error; if the response has begun, ends the connection."""
        if exchange.started:
            raise ConnectionEnded
        await exchange.respond(self._handler.error(exchange, problem))

    async def close(self) -> None:
        """Ends waiting responses, and waits until all are sent."""
        for exchange in tuple(self._open):
            exchange.stop()
        for task in tuple(self._websockets):
            task.cancel()
        for _ in range(_CLOSE_CHECKS):
            if not self._open and not self._websockets:
                break
            await asyncio.sleep(0.01)
        if self._closed is not None:
            await self._closed()


def _ambiguous(exchange: HttpExchange) -> Upstream | None:
    """A duplicated header that identifies the server or the caller."""
    pairs = exchange.scope["headers"]
    if len(pairs) == len(exchange.headers):
        return None
    for name in (b"host", b"origin", b"sec-fetch-site"):
        if sum(one == name for one, _ in pairs) > 1:
            return RequestRejected(f"the header {name.decode()} is sent twice", status=400)
    return None


#: A host and an optional port; IPv6 addresses are in brackets.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{0,5})?")
_NAME = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")
#: Characters of a header that an error repeats.
_SHOWN = 100
#: Maximum number of cached Host headers; a server has few names.
_REMEMBERED = 64
#: Every name is allowed.
ANY = "*"


class HostGuard:
    """Checks the Host and Origin of requests to a server that is bound to `host`.

    A page of another site can send requests to a local server. The Host header must be a name of
    this server: a page whose own name resolves to this machine (DNS rebinding) may read replies,
    but its browser sends that name. `Origin` and `Sec-Fetch-Site`, which only browsers send, must
    be those of a page of this server.

    Allowed are `host` itself, `localhost`, loopback addresses and the names in `allowed`; if the
    server is bound to more than the loopback interface, every IP address: a page cannot have one as
    its own name. `pages` are paths that a link on another site may open.
    """

    def __init__(
        self,
        host: str,
        allowed: Iterable[str] = (),
        *,
        pages: Collection[str] = (),
        origins: bool = True,
        hint: str = "allow it when the server is started",
    ) -> None:
        """`origins=False`: requests from any page are allowed."""
        self._bound = host.lower()
        self._allowed = frozenset(_checked_name(name) for name in allowed)
        self._pages = frozenset(pages)
        self._origins = origins
        self._hint = hint
        bound = _address(self._bound)
        self._any_address = self._bound != "localhost" if bound is None else not _is_loopback(bound)
        self._known: set[str] = set()

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Upstream | None:
        """Why a request is refused; None if it is allowed. Header names are lowercase."""
        host = headers.get("host", "").lower()
        if host not in self._known:
            if (problem := self._host_refusal(host)) is not None:
                return problem
            if len(self._known) < _REMEMBERED:
                self._known.add(host)
        if not self._origins:
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin.lower().partition("://")[2] != host:
            return Forbidden(
                f"requests from pages of other sites are refused (Origin: {origin[:_SHOWN]})",
                status=403,
            )
        if site in (None, "same-origin", "none") or self._opens_page(method, path, headers):
            return None
        return Forbidden(
            f"requests from pages of other sites are refused (Sec-Fetch-Site: {site[:_SHOWN]})",
            status=403,
        )

    def _host_refusal(self, host: str) -> Upstream | None:
        match = _HOST.fullmatch(host)
        if match is None:
            reason = f"Host is not a host name: {host[:_SHOWN]!r}" if host else "no Host header"
            return RequestRejected(reason, status=400)
        name = match[1].strip("[]").rstrip(".")
        if self._allows(name):
            return None
        return Forbidden(f"the host {name[:_SHOWN]!r} is not allowed: {self._hint}", status=403)

    def _allows(self, name: str) -> bool:
        if name in ("localhost", self._bound) or name in self._allowed or ANY in self._allowed:
            return True
        address = _address(name)
        return address is not None and (self._any_address or _is_loopback(address))

    def _opens_page(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether this is a link followed from another page, which does not see the response."""
        return (
            method == "GET"
            and path in self._pages
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )


def _checked_name(name: str) -> str:
    plain = name.strip().lower().strip("[]").rstrip(".")
    if plain != ANY and _NAME.fullmatch(plain) is None:
        reason = f"{name!r} is not a host name; write it without scheme and port: emulator, or *"
        raise InvalidRequest(reason, path="allow_hosts")
    return plain


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(name: str) -> _Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(address: _Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
