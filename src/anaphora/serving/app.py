"""The ASGI application of a server: checks, errors in the caller's format, a graceful stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from anaphora.client.failures import line_of, log
from anaphora.client.transport.timer import SharedTimer
from anaphora.errors import Overloaded, RequestRejected, Upstream

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
from .guard import HostGuard

#: How often `close` checks for open responses, every hundredth of a second.
_CLOSE_CHECKS = 100


class Handler(Protocol):
    """What a server does with its requests."""

    async def handle(self, exchange: HttpExchange) -> None:
        """Reads a request and answers it. An `Upstream` that it raises becomes the response."""

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        """An error in the format that the caller expects."""


class ServedApp:
    """A handler behind the checks. It is ASGI without a router, which would cost more than most
    responses."""

    def __init__(
        self,
        handler: Handler,
        guard: HostGuard,
        limits: BodyLimits | None = None,
        *,
        ended: Callable[[HttpExchange], None] | None = None,
    ) -> None:
        """`ended` is called when a request has been answered, or its connection has ended."""
        self._handler = handler
        self._guard = guard
        self._limits = limits or BodyLimits()
        self._ended = ended
        self._open: set[HttpExchange] = set()
        self._timer: SharedTimer | None = None
        self._looking = False

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._open)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
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

    def _look_for_slow_readers(self, seconds: float) -> None:
        """Again and again while a request is open: a timer for each write would take longer than
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
            # A client that is still there sent an invalid body.
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
        """Answers with an error; where the response has begun, ends the connection."""
        if exchange.started:
            raise ConnectionEnded
        await exchange.respond(self._handler.error(exchange, problem))

    async def close(self) -> None:
        """Ends waiting responses, and waits until all are sent."""
        for exchange in tuple(self._open):
            exchange.stop()
        for _ in range(_CLOSE_CHECKS):
            if not self._open:
                break
            await asyncio.sleep(0.01)


def _ambiguous(exchange: HttpExchange) -> Upstream | None:
    """Two of a header that decides who is asked, or who asks."""
    pairs = exchange.scope["headers"]
    if len(pairs) == len(exchange.headers):
        return None
    for name in (b"host", b"origin", b"sec-fetch-site"):
        if sum(one == name for one, _ in pairs) > 1:
            return RequestRejected(f"the header {name.decode()} is sent twice", status=400)
    return None
