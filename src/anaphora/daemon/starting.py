"""Starts a node whose database is unreachable: waits and reports that.

`/healthz` answers 200 meanwhile, so that nothing restarts the process, and all other paths 503.
These answers come from the status port, and the port for apps refuses connections until the node
has started; without a status port they come from the port for apps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from anaphora.errors import StoreUnavailable, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.serving.listening import tcp_server, unix_server

from .calls.steps.authenticate import STORE_UNAVAILABLE
from .health import utc
from .values import public_text

if TYPE_CHECKING:
    import ssl

    from .home import Home
    from .home.config import DaemonConfig

T = TypeVar("T")

_log = logging.getLogger("anaphora.daemon")

#: Seconds between attempts: first and maximum.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 2.0
#: Seconds between progress lines with the same reason.
_SAY_EVERY = 10.0
_JSON = {"content-type": "application/json"}


class WaitingStart:
    """Opens the parts that need the database, retrying until it can be reached."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        """`progress` gets messages for people."""
        self._progress = progress
        self._since = time.time()
        self._began = self._said = time.monotonic()
        self._reason = ""

    async def opened(
        self,
        stack: contextlib.AsyncExitStack,
        open_parts: Callable[[contextlib.AsyncExitStack], Awaitable[T]],
        pages: Callable[[WaitingStart], contextlib.AbstractAsyncContextManager[None]],
    ) -> T:
        """The result of `open_parts`, closed with `stack`. `pages` answers while this waits.
        Retries only after `StoreUnavailable`."""
        seconds = _FIRST_WAIT
        async with contextlib.AsyncExitStack() as serving:
            while True:
                async with contextlib.AsyncExitStack() as opening:
                    try:
                        found = await open_parts(opening)
                    except StoreUnavailable as problem:
                        reason = str(problem)
                    else:
                        stack.push_async_callback(opening.pop_all().aclose)
                        break
                if not self._reason:
                    await serving.enter_async_context(pages(self))
                self._say(reason)
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, _LONGEST_WAIT)
        if self._reason:
            waited = f"the database answers after {time.monotonic() - self._began:.0f} s"
            _log.info("%s", waited)
            self._progress(waited)
        return found

    def _say(self, reason: str) -> None:
        now = time.monotonic()
        is_new, self._reason = reason != self._reason, reason
        if is_new or now - self._said >= _SAY_EVERY:
            self._said = now
            self._progress(f"waiting for the database ({now - self._began:.0f} s): {reason}")
        if is_new:
            _log.warning("waiting for the database: %s", reason)

    # ── Pages ────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, exchange: HttpExchange) -> None:
        if exchange.path == "/healthz":
            response = _json(200, {"status": "ok"})
        elif exchange.path == "/readyz":
            since = utc(self._since)
            response = _json(503, {"status": STORE_UNAVAILABLE, "since": since, "starting": True})
        else:
            raise StoreUnavailable("the daemon is starting: waiting for its database")
        await exchange.respond(response)

    def error(self, _: HttpExchange, problem: Upstream) -> CompleteResponse:
        kind = problem.code or type(problem).__name__
        body = {"error": {"kind": kind, "message": public_text(problem)}}
        return _json(problem.status or 500, body)


def _json(status: int, value: object) -> CompleteResponse:
    return CompleteResponse(status, {**_JSON, "connection": "close"}, msgspec.json.encode(value))


@contextlib.asynccontextmanager
async def waiting_pages(
    waiting: WaitingStart, home: Home, config: DaemonConfig, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Serves the pages until the block ends."""
    guard = HostGuard(config.host, config.allowed_hosts)
    port = config.port if config.status_port is None else config.status_port
    async with (
        tcp_server(ServedApp(waiting, guard), host=config.host, port=port, tls=tls),
        unix_server(ServedApp(waiting, guard), home.path / config.socket),
    ):
        yield
