"""The listeners of a daemon: a port for apps, the Unix socket, and a port for `/healthz`, `/readyz`
and `/metrics` that stays open while the node is drained.

`Drain` takes a daemon out of service without failing calls, and puts it back:

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
import ssl
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import msgspec

from anaphora.errors import Io
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.connection_limits import ConnectionLimits
from anaphora.serving.exchange import BodyLimits
from anaphora.serving.listening import SocketServer, tcp_server, unix_server
from anaphora.serving.server import ServerAddress

from .calls.steps.authenticate import Readiness
from .handler import DaemonHandler, StatusHandler
from .home.extensions import Grants
from .home.tls import ServerCertificate

if TYPE_CHECKING:
    from .home import Home
    from .home.config import DaemonConfig
    from .server import Daemon
    from .ui.service import UiService

#: Seconds between checks of the operator's drain, and of open calls while stopping.
_LOOK_SECONDS, _STOP_SECONDS = 0.1, 0.02
_HINT = "add it to allowed_hosts in the daemon section of llm.yaml"

_log = logging.getLogger("anaphora.daemon")


def socket_mode(grants: Grants) -> int:
    """The socket's mode. Other users may connect if an app lists `uids`; they also need its
    token."""
    return 0o666 if any(grant.uids for grant in grants.apps.values()) else 0o600


def certificate_of(home: Home, config: DaemonConfig) -> ServerCertificate | None:
    if config.tls is None:
        return None
    return ServerCertificate(home.path / config.tls.cert, home.path / config.tls.key)


class OpenedApp(msgspec.Struct, frozen=True, eq=False):
    """The application of a daemon, before anything listens."""

    app: ServedApp
    handler: DaemonHandler
    guard: HostGuard
    bodies: BodyLimits
    certificate: ServerCertificate | None

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.certificate is None else self.certificate.context

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"


def open_app(stack: contextlib.AsyncExitStack, daemon: Daemon, config: DaemonConfig) -> OpenedApp:
    certificate = certificate_of(daemon.home, config)
    ui: UiService | None = None
    pages: tuple[str, ...] = ()
    if config.ui.enabled:
        from .ui.access import LINKED_PAGES as pages
        from .ui.mount import open_ui

        ui = open_ui(stack, daemon, config, tls=certificate is not None)
    handler = daemon.handler(config, tls=certificate is not None, ui=ui)
    guard = HostGuard(config.host, config.allowed_hosts, pages=pages, hint=_HINT)
    bodies = BodyLimits(
        size=config.max_body_bytes,
        seconds=config.body_timeout,
        write_seconds=config.write_timeout,
    )
    app = ServedApp(handler, guard, bodies, ended=handler.ended)
    return OpenedApp(app, handler, guard, bodies, certificate)


def connection_limits(config: DaemonConfig) -> ConnectionLimits:
    return ConnectionLimits(
        connections=config.max_connections,
        trusted=config.trusted_proxies,
        header_bytes=config.max_header_bytes,
    )


async def listen(
    stack: contextlib.AsyncExitStack,
    daemon: Daemon,
    config: DaemonConfig,
    *,
    shares_port: bool = False,
) -> None:
    """Opens the listeners; when the stack closes, the daemon drains first. With `shares_port`,
    other daemons of the same user may listen at the same port."""
    opened, limits = open_app(stack, daemon, config), connection_limits(config)
    app = opened.app
    port = SocketServer.at_port(
        app,
        host=config.host,
        port=config.port,
        tls=opened.tls,
        limits=limits,
        is_shared=shares_port,
    )
    stack.push_async_callback(port.close)
    daemon.address = ServerAddress(config.host, port.port, scheme=opened.scheme)
    daemon.socket = daemon.home.path / config.socket
    local = await stack.enter_async_context(
        unix_server(app, daemon.socket, mode=socket_mode(daemon.settings.grants), limits=limits)
    )
    await open_status(stack, daemon, config, opened)
    drain = daemon.drain = Drain(app, port, local, daemon.readiness)
    await _begin(stack, daemon, drain, config)
    run_until_closed(stack, daemon, config, opened)


async def open_status(
    stack: contextlib.AsyncExitStack, daemon: Daemon, config: DaemonConfig, opened: OpenedApp
) -> None:
    if config.status_port is not None:
        handler = opened.handler
        app = ServedApp(StatusHandler(handler), opened.guard, opened.bodies, ended=handler.ended)
        status = tcp_server(app, host=config.host, port=config.status_port, tls=opened.tls)
        daemon.status_address = await stack.enter_async_context(status)


def run_until_closed(
    stack: contextlib.AsyncExitStack, daemon: Daemon, config: DaemonConfig, opened: OpenedApp
) -> None:
    """Runs what a daemon does besides, and drains it when the stack closes."""
    handler = opened.handler
    for work in (daemon.run_maintenance(handler, opened.certificate), daemon.health.run()):
        stack.callback(asyncio.create_task(work).cancel)
    stack.push_async_callback(_close_alerts, daemon)
    stack.push_async_callback(_stop, daemon, opened.app, handler, config.drain_timeout)


async def _close_alerts(daemon: Daemon) -> None:
    if daemon.alerts is not None:
        await daemon.alerts.close()


async def _begin(
    stack: contextlib.AsyncExitStack, daemon: Daemon, drain: Drain, config: DaemonConfig
) -> None:
    """Accepts connections, unless an operator has drained this node."""
    if daemon.alerts is not None:
        await daemon.alerts.look_once()
    node = daemon.services.node
    drained = None if node is None else node.drained_for()
    if drained is None or drained < config.drain_delay:
        await drain.open()
        if drain.problem is not None:
            raise Io(drain.problem)
    if node is not None:
        following = asyncio.create_task(drain.follow(node.drained_for, config.drain_delay))
        stack.callback(following.cancel)


async def _stop(daemon: Daemon, app: ServedApp, handler: DaemonHandler, timeout: float) -> None:
    """Waits for running calls and calls that are read on; after `timeout` seconds they are
    cancelled."""
    read_on, drain = daemon.services.calls.read_on, daemon.drain
    assert drain is not None
    text = "stopping when running calls have ended"
    if read_on.count:
        text += f"; {read_on.count} of them are read on to their usage: their apps have left"
    if daemon.drain_delay:
        text += f"; new calls are accepted for {daemon.drain_delay:g} s (drain_delay)"
    _log.info("%s", text)

    def is_busy() -> bool:
        handler.end_pages()  # none is waited for
        return bool(read_on.count)

    await drain.stop(daemon.drain_delay, timeout, is_busy)
    read_on.stop()
    await app.close()


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
        port.connections.ends_each = readiness.leaves
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
