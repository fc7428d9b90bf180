"""The relay: forwards a request to its upstream and the response back, as they arrive.

Only the changes that HTTP requires of a proxy are made: hop-by-hop headers are dropped, and `Host`
is that of the upstream. Up to 32 MB each way are kept for observers.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from anaphora.cache.cold import COLD_HEADER
from anaphora.client.failures import log
from anaphora.errors import (
    AnaphoraError,
    Denied,
    NotFound,
    Overloaded,
    QuotaExhausted,
    RequestRejected,
    Transport,
    Upstream,
)
from anaphora.serving.exchange import (
    CompleteResponse,
    ConnectionCut,
    ConnectionEnded,
    HttpExchange,
    UploadAborted,
)
from anaphora.serving.websocket import ServedWebSocket
from anaphora.traffic.accounts import is_signed
from anaphora.traffic.calls import (
    KEPT_BYTES,
    Headers,
    ProxyRoute,
    RelayedCall,
    ResponsePiece,
    UpstreamRequest,
)

from .observing import ObserverThread
from .routes import NetworkResponse, NetworkUpstream, ResponseSource, RouteTable, UpstreamResponse
from .websockets import SeenMessages, WebSocketUpstream, is_known, refusal, relay

Place: TypeAlias = Callable[[UpstreamRequest], bytes | None]
"""A body with markers, or None to leave it as it is."""

#: Hop-by-hop headers, which a proxy does not forward. The server answers `expect`.
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    " transfer-encoding upgrade expect".split()
)
#: Headers of requests for the proxy itself, which no provider gets.
_OWN = frozenset((COLD_HEADER,))
#: Values of Connection that are not the name of a header,
_OPTIONS = frozenset({"", "close", "keep-alive"})
#: or of one that a request needs.
_KEPT = _OPTIONS | {"host"}
_NO_BODY = frozenset({204, 304})
#: Seconds after which a client that disconnects is noticed: sooner, most calls are not worth it.
_WATCH_SECONDS = 0.05
#: Characters not allowed in headers; the parser of responses accepts some of them.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search


class Pages(Protocol):
    """The proxy's own pages."""

    def serves(self, path: str) -> bool: ...
    async def answer(self, exchange: HttpExchange) -> None: ...


class RelayHandler:
    """The proxy's `serving.app.Handler`."""

    def __init__(
        self,
        routes: RouteTable,
        upstream: ResponseSource,
        observers: ObserverThread,
        place: Place | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._routes = routes
        self._upstream = upstream
        self._observers = observers
        self._place = place
        self._placing = ThreadPoolExecutor(1, "anaphora-proxy-place") if place else None
        self._pages = pages
        checks = self._checks = observers.checks
        self._streams = False
        self._websockets: WebSocketUpstream | None = None
        if place is None and not checks and isinstance(upstream, NetworkUpstream):
            self._streams, self._websockets = True, WebSocketUpstream(upstream.ca)
        self._numbers = itertools.count(1)
        self._open = 0
        self._host_of = functools.lru_cache(_host_of)

    @property
    def is_busy(self) -> bool:
        """Whether a call is being relayed; open pages do not count."""
        return self._open > 0

    async def handle(self, exchange: HttpExchange) -> None:
        if self._pages is not None and self._pages.serves(exchange.path):
            await exchange.run(self._pages.answer(exchange))
            return
        await self.handle_call(exchange, self._routes)

    async def handle_call(self, exchange: HttpExchange, routes: RouteTable) -> None:
        """A request of the program, by the proxy's routes or those of one host."""
        self._open += 1
        try:
            await self._relay(exchange, *await self._route(exchange, routes))
        finally:
            self._open -= 1

    async def _route(self, exchange: HttpExchange, routes: RouteTable) -> tuple[ProxyRoute, str]:
        path = exchange.scope["raw_path"].decode("latin-1")
        if exchange.headers.get("upgrade", "").lower() == "websocket":
            reason = "the proxy relays HTTP only: WebSockets are not supported, use HTTP"
            raise RequestRejected(reason, status=426)
        found = routes.find(path, exchange.headers)
        if found is None:
            raise NotFound(self._unknown(path), status=404)
        await self._observers.wait_for_room()
        return found

    def error(
        self, exchange: HttpExchange, problem: Upstream, routes: RouteTable | None = None
    ) -> CompleteResponse:
        path, table = exchange.scope["raw_path"].decode("latin-1"), routes or self._routes
        refused = isinstance(problem, Denied)
        if refused:  # in the form of a spend limit, which no SDK retries
            problem = QuotaExhausted(str(problem), status=problem.status, code=problem.code)
        status, headers, body = table.codec(path, exchange.headers).write_error(problem)
        status = problem.status or status
        if status == 426:
            headers = {**headers, "upgrade": "HTTP/1.1"}
        if refused:
            headers = {**headers, "x-should-retry": "false"}
        return CompleteResponse(status, headers, body)

    @property
    def takes_websockets(self) -> bool:
        """False while recording, replaying, placing or checking: programs use HTTP after a 426."""
        return self._websockets is not None

    async def handle_websocket(self, socket: ServedWebSocket) -> None:
        assert self._websockets is not None
        path, headers = socket.raw_path, _websocket_headers(socket.header_pairs)
        try:
            found = self._routes.find(path, socket.headers)
            if found is None:
                raise NotFound(self._unknown(path), status=404)
            route, below = found
            provider = await self._websockets.connect(
                route.upstream, below, socket.query, headers, socket.protocols
            )
        except (Upstream, Transport) as problem:
            status, fields, body = self._routes.codec(path, socket.headers).write_error(
                refused := refusal(problem)
            )
            await socket.deny(CompleteResponse(refused.status or status, fields, body))
            return
        await socket.accept(provider.protocol)
        seen = None
        if self._observers.is_needed and is_known(below):
            seen = SeenMessages(
                route, below, socket.query, headers, begin=self._began, ended=self._ended
            )
        await relay(socket, provider, seen)

    def _began(self) -> int:
        self._open += 1
        self._observers.call_began()
        return next(self._numbers)

    def _ended(self, call: RelayedCall) -> None:
        self._observers.add(call)
        self._open -= 1

    async def close(self) -> None:
        await self._upstream.close()
        if self._websockets is not None:
            await self._websockets.close()
        if self._placing is not None:
            self._placing.shutdown(wait=False, cancel_futures=True)

    def _unknown(self, path: str) -> str:
        known = ", ".join(route.prefix for route in self._routes.routes if route.prefix)
        return f"no route for {path[:100]}; paths begin with one of {known}"

    async def _relay(self, exchange: HttpExchange, route: ProxyRoute, path: str) -> None:
        host = self._host_of(route.upstream)
        headers = tuple(
            [
                ("host", host) if pair[0] == "host" else pair
                for pair in _without_hops(exchange.header_pairs)
                if pair[0] not in _OWN
            ]
        )
        call = RelayedCall(
            number=next(self._numbers),
            started=time.time(),
            method=exchange.method,
            route=route,
            path=path,
            query=exchange.query_string.decode("latin-1"),
            request_headers=headers,
            request_body=None,
        )
        relaying = _Relaying(exchange, call, self._observers)
        self._observers.call_began()
        try:
            request = await self._request(relaying, headers)
            await exchange.run(relaying.pass_on(self._upstream, request))
        except Denied as problem:
            call.outcome, call.error, call.status = "refused", str(problem), problem.status or 0
            raise
        except Transport as problem:
            call.outcome, call.error = "failed", str(problem)
            if exchange.started:
                raise ConnectionCut from None
            raise Overloaded(f"the proxy got no response: {problem}", status=502) from None
        except (ConnectionEnded, asyncio.CancelledError):
            call.outcome = "cancelled"
            raise
        except Exception as problem:
            known = isinstance(problem, AnaphoraError)
            reason = str(problem) if known else f"internal error: {type(problem).__name__}"
            call.outcome, call.error = "failed", reason
            raise
        finally:
            call.ended = relaying.seconds()
            self._observers.add(call)

    async def _request(self, relaying: _Relaying, headers: Headers) -> UpstreamRequest:
        call = relaying.call
        # A signature covers the whole body.
        body = await relaying.body(streams=self._streams and not is_signed(headers))
        request = UpstreamRequest(
            method=call.method,
            route=call.route,
            path=call.path,
            query=call.query,
            number=call.number,
            started=call.started,
            headers=headers,
            body=body,
        )
        if self._checks and body != b"":
            checked = msgspec.structs.replace(request, headers=relaying.headers)
            await relaying.run(self._check(checked))
        if self._place is None or not isinstance(body, bytes) or not body:
            return request
        placed = await self._placed(self._place, request)
        if placed is None or placed == body:
            return request
        call.sent_body = placed
        sized = tuple(
            (name, str(len(placed)) if name == "content-length" else value)
            for name, value in headers
        )
        return msgspec.structs.replace(request, body=placed, headers=sized)

    async def _check(self, request: UpstreamRequest) -> None:
        """Raises the first refusal. A check that fails refuses nothing."""
        for check in self._checks:
            try:
                refused = await check(request)
            except Exception as problem:
                name = type(problem).__name__
                log(logging.ERROR, f"checking a request failed: {name}", problem)
                continue
            if refused is not None:
                raise refused

    async def _placed(self, place: Place, request: UpstreamRequest) -> bytes | None:
        """In a thread, since a large body takes time; a failure does not lose the request."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._placing, place, request)
        except Exception as problem:
            log(logging.ERROR, f"placing markers failed: {type(problem).__name__}", problem)
            return None


class _Relaying:
    """One call while it is relayed."""

    def __init__(
        self, exchange: HttpExchange, call: RelayedCall, observers: ObserverThread
    ) -> None:
        self._exchange = exchange
        self.call = call
        self._observers = observers
        self._keeps = observers.is_needed
        self._began = time.monotonic()
        self.headers: Headers = tuple(exchange.header_pairs)
        """Those of the program."""
        self.run = exchange.run

    def seconds(self) -> float:
        """Seconds since the request arrived; called when a piece is relayed."""
        now = time.monotonic()
        self._observers.piece_passed(now)
        return now - self._began

    # ── The request ──────────────────────────────────────────────────────────────────────────────

    async def body(self, *, streams: bool) -> bytes | AsyncIterator[bytes]:
        """The whole body; or its pieces, if they are forwarded at once or too large to keep."""
        data, more = await self._next(0)
        pieces, size = [data], len(data)
        while more and not streams and size <= KEPT_BYTES:
            data, more = await self._next(size)
            pieces.append(data)
            size += len(data)
        if more:
            return self._rest(pieces, size)
        body = b"".join(pieces) if len(pieces) > 1 else data
        if self._keeps and size <= KEPT_BYTES:
            self.call.request_body = body
        self._exchange.watch_later(_WATCH_SECONDS)
        return body

    async def _rest(self, pieces: list[bytes], size: int) -> AsyncIterator[bytes]:
        """The pieces read so far, and those that follow."""
        exchange, more, data = self._exchange, True, b"".join(pieces)
        try:
            while more:
                yield data
                data, more = await self._next(size)
                size += len(data)
                if not self._keeps or size > KEPT_BYTES:
                    pieces.clear()
                else:
                    pieces.append(data)
        except UploadAborted:
            exchange.end_upload()
            raise
        if pieces:
            self.call.request_body = b"".join(pieces)
        exchange.watch_later(_WATCH_SECONDS)
        yield data

    async def _next(self, size: int) -> tuple[bytes, bool]:
        """The next piece, and whether more follow. `size`: that of the pieces before. Granian
        signals the end only by an empty piece; a declared length tells it earlier."""
        data, more = await self._exchange.read_piece()
        if more and str(size + len(data)) == self._exchange.headers.get("content-length"):
            more = False
        return data, more

    # ── The response ─────────────────────────────────────────────────────────────────────────────

    async def pass_on(self, upstream: ResponseSource, request: UpstreamRequest) -> None:
        response = await upstream.send(request)
        try:
            await self._pass_back(response)
        finally:
            await response.close()

    async def _pass_back(self, response: UpstreamResponse) -> None:
        call, exchange = self.call, self._exchange
        headers = response.headers
        length, passed = _length(headers), _encoded(_without_hops(headers))
        call.status, call.began, call.response_headers = response.status, self.seconds(), headers
        start = {"type": "http.response.start", "status": response.status, "headers": passed}
        await exchange.send(start)
        bodiless = call.method == "HEAD" or response.status in _NO_BODY
        begun = isinstance(response, NetworkResponse) and response.has_begun
        if not (begun or bodiless or length == 0):
            # Granian sends the head with the first piece, which may take long to come.
            await exchange.write(b"", more=True)
        pieces: list[ResponsePiece] = []
        call.pieces = pieces if self._keeps else None
        size = 0
        async for data in response:
            size += len(data)
            if call.pieces is not None:
                if size <= KEPT_BYTES:
                    pieces.append(ResponsePiece(self.seconds(), data))
                else:
                    call.pieces = None
                    pieces = []
            if not bodiless:
                await exchange.write(data, more=size != length)
        if bodiless or length is None or size != length or not size:
            await exchange.write(b"")


def _without_hops(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers to forward, with order and duplicates."""
    dropped = _HOP_BY_HOP
    for name, value in pairs:
        if name == "connection" and value.lower() not in _OPTIONS:
            dropped = dropped | {option.strip().lower() for option in value.split(",")} - _KEPT
    return [pair for pair in pairs if pair[0] not in dropped]


def _websocket_headers(pairs: Sequence[tuple[str, str]]) -> Headers:
    """Headers of a handshake to forward: the connection to the provider has its own."""
    return tuple(
        pair
        for pair in _without_hops(pairs)
        if pair[0] != "host" and pair[0] not in _OWN and not pair[0].startswith("sec-websocket-")
    )


def _encoded(pairs: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    for name, value in pairs:
        if _CONTROL(value):
            raise Transport(f"the response has an invalid character in the header {name}")
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


def _host_of(upstream: str) -> str:
    """The Host header for an upstream: with its port unless it is the scheme's default."""
    parts = urlsplit(upstream)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    default = {"http": 80, "https": 443}[parts.scheme]
    return host if parts.port in (None, default) else f"{host}:{parts.port}"


def _length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == "content-length" and value.isascii() and value.isdecimal():
            return int(value)
    return None
