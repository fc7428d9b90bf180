"""Takes a daemon out of service without failing calls, and puts it back.

    open ─▶ leaving ─▶ closed            nodes drain, SIGTERM
      ▲        │          │
      └────────┴──────────┘              nodes drain --undo

While it is leaving, `/readyz` answers 503, and each response ends its connection, so that balancers
and clients go elsewhere. After `delay` seconds new connections are refused: a balancer then sends
the call to another node, while it would pass a 503 on to the app. Calls on open connections are
still answered. After that, a connection idle for `delay` seconds is closed: most clients have
closed it already, and none is about to use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from math import inf

from anaphora.errors import Io
from anaphora.serving.app import ServedApp
from anaphora.serving.listening import SocketServer

from .calls.steps.authenticate import Readiness

#: Seconds between checks of the operator's drain, and of open calls while stopping.
_LOOK_SECONDS, _STOP_SECONDS = 0.1, 0.02

_log = logging.getLogger("anaphora.daemon")


class Drain:
    """Drains the port for apps, and the Unix socket when the daemon stops."""

    def __init__(
        self, app: ServedApp, port: SocketServer, local: SocketServer, readiness: Readiness
    ) -> None:
        self._app = app
        self._port = port
        self._local = local
        self._readiness = readiness
        self._hurried = asyncio.Event()
        self.problem: str | None = None
        """Why the port is closed although the node is in service."""
        port.connections.ends_each = lambda: readiness.draining or readiness.is_drained()
        local.connections.ends_each = lambda: readiness.draining

    @property
    def is_closed(self) -> bool:
        """New connections are refused at the port for apps."""
        return not self._port.is_listening

    async def follow(self, drained_for: Callable[[], float | None], delay: float) -> None:
        """Drains the port while `drained_for` returns seconds, until the daemon stops."""
        closed_at = time.monotonic()
        while not self._readiness.draining:
            seconds = drained_for()
            if seconds is None:
                await self.open()
            elif not self.is_closed and seconds >= delay:
                await self._port.stop_listening()
                closed_at = time.monotonic()
                _log.info("drained: the port for apps refuses new connections")
            if self.is_closed and time.monotonic() - closed_at >= delay:
                self._port.close_idle(delay)
            await asyncio.sleep(_LOOK_SECONDS)

    async def open(self) -> None:
        """Accepts connections, if the port is closed."""
        if not self.is_closed:
            return
        try:
            await self._port.listen()
        except Io as problem:  # another program has taken the port; tried again later
            if self.problem is None:
                _log.error("%s", problem)
            self.problem = str(problem)
        else:
            self.problem = None

    async def stop(self, delay: float, timeout: float, busy: Callable[[], bool]) -> None:
        """Returns when no call is running, no connection is open and `busy` is false; `timeout`
        seconds after new connections are refused; or after `hurry`."""
        self._readiness.draining = True
        if not self.is_closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), delay)
        for server in (self._port, self._local):
            await server.stop_listening()
        closed_at = time.monotonic()
        while (now := time.monotonic()) < closed_at + timeout and not self._hurried.is_set():
            # A client may be about to use an idle connection.
            seconds = delay if now >= closed_at + delay else inf
            open_connections = sum(one.close_idle(seconds) for one in (self._port, self._local))
            still_busy = busy()  # asked each time: it ends what is not waited for
            if not (open_connections or self._app.is_busy or still_busy):
                break
            await asyncio.sleep(_STOP_SECONDS)
        self._readiness.closed = True

    def hurry(self) -> None:
        """Ends the waiting in `stop`."""
        self._hurried.set()
