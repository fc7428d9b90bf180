"""A running daemon: the parts of a home, opened in order and closed in reverse.

with running(ServeOptions(home=Path("/srv/anaphora"))) as daemon:
    print(daemon.url)

home, lock, settings ─▶ log ─▶ store, ledger ─▶ tokens ─▶ audit log ─▶ calls ─▶ RPC, endpoints
─▶ a port, with TLS or without, and the Unix socket
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from anaphora.client.failures import log
from anaphora.errors import AnaphoraError, Io
from anaphora.serving.server import (
    ServerAddress,
    in_thread,
    raise_file_limit,
    received_signals,
    tuned_interpreter,
)

from .access.checks import UnreadBytes
from .calls.steps.authenticate import AuthenticateApp, Peers, Readiness
from .checking import check_required, price_warnings, without_grant
from .handler import DaemonHandler
from .health import HealthChecks
from .home import Home, HomeLock
from .home.config import DaemonConfig
from .home.secrets import disable_core_dumps
from .home.settings import ServeOptions, Settings, SettingsFiles, effective_config
from .home.tls import ServerCertificate
from .listeners import Drain, certificate_of, listen, socket_mode
from .monitoring import DaemonMetrics, JsonLog, logging_to
from .services import Services, open_services, parts_of, service_gauges
from .starting import WaitingStart, waiting_pages
from .tracing import call_traces

if TYPE_CHECKING:
    from .alerts import Alerts
    from .ui.service import UiService

#: Seconds between checks of files, certificates and expired tokens.
_LOOK_SECONDS = 1.0

_log = logging.getLogger("anaphora.daemon")


class Daemon:
    """A daemon that accepts calls."""

    def __init__(
        self,
        home: Home,
        files: SettingsFiles,
        services: Services,
        metrics: DaemonMetrics,
        log: JsonLog,
    ) -> None:
        self.home = home
        self.address = ServerAddress("", 0)
        self.status_address: ServerAddress | None = None
        self.socket = home.socket
        self.services = services
        self.health = HealthChecks(parts_of(services))
        self.drain: Drain | None = None
        self.drain_delay = 0.0
        """Seconds from the stop signal until new connections are refused."""
        self.readiness = Readiness(
            problems=self._problems,
            can_write=lambda: "store" not in self.health.down(),
            down=self.health.down,
            read_on=lambda: services.calls.read_on.count,
        )
        if (node := services.node) is not None:
            self.readiness.is_drained = lambda: node.is_draining or self.refuses_connections
            node.describe = self._report
        self.metrics = metrics
        self._files = files
        self.unread = UnreadBytes(files.current.daemon.max_unread_bytes)
        metrics.gauge(
            "anaphora_daemon_unread_bytes",
            "Bytes of request bodies that are not read yet",
            lambda: float(self.unread.total),
        )
        self.log = log
        self.alerts: Alerts | None = None
        self._use_alerts()
        self._warned: tuple[str, ...] = ()
        """The warnings of the last check."""
        self.failure: str | None = None
        """Why the daemon cannot go on,"""
        self.on_failure: Callable[[], None] = lambda: None
        """and what is called then."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def refuses_connections(self) -> bool:
        """Whether the port for apps refuses connections because it is drained."""
        return self.drain is not None and self.drain.is_closed

    @property
    def listens_at(self) -> str:
        """Its addresses, for people."""
        wildcard = " (every address of this machine)" if self.address.is_wildcard else ""
        return f"{self.url}{wildcard} and {self.socket}"

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._files.current

    def handler(
        self, config: DaemonConfig, *, tls: bool, ui: UiService | None = None
    ) -> DaemonHandler:
        services = self.services
        pipeline = services.calls.pipeline
        pipeline.use(
            AuthenticateApp(
                services.directory,
                self.readiness,
                self.unread,
                changed=self._files.changed,
                reload=self.reload,
            )
        )
        return DaemonHandler(
            self.services.directory,
            pipeline,
            self.services.rpc,
            self.services.endpoints,
            peers=Peers(config.trusted_proxies, behind_proxy=config.behind_proxy, tls=tls),
            readiness=self.readiness,
            log=self.log,
            metrics=self.metrics,
            slots=self.services.slots,
            ui=ui,
        )

    # ── Changes of files ─────────────────────────────────────────────────────────────────────────

    def reload_if_changed(self) -> None:
        """Uses changed files from the next call on."""
        if self._files.changed():
            self.reload()

    def reload(self) -> None:
        """Reads llm.yaml, extensions.yaml and secrets again. Invalid ones keep their earlier
        content."""
        before, settings = self.settings, self._files.reload()
        for problem in self._files.problems:
            _log.error("not reloaded: %s", problem)
        self.services.calls.tools.texts.allow(settings.daemon.ui.shows_text)
        if _needs_restart(before.daemon, settings.daemon):
            _log.warning("the daemon section of llm.yaml has changed: restart to use it")
        self.services.directory.set_grants(settings.grants)
        self.services.calls.reload(settings.config, settings.providers)
        self.services.calls.use_grants(settings.grants.apps.values())
        self._use_alerts()
        self._set_socket_mode()
        if not self._files.problems:
            _log.info("reloaded")
        self.log_warnings()

    def log_warnings(self) -> None:
        """Logs those that were not there at the last time."""
        settings, apps = self.settings, self.services.directory.token_apps()
        found = (
            *settings.grants.warnings(apps),
            *without_grant(settings.grants, apps),
            *map(str, settings.shared_caches()),
        )
        for warning in found:
            if warning not in self._warned:
                _log.warning("%s", warning)
        self._warned = found

    def _use_alerts(self) -> None:
        if self.settings.grants.alerts is not None:
            from .alerts import Alerts

            if self.alerts is None:
                services = self.services
                self.alerts = Alerts(
                    self.home,
                    services.store,
                    services.ledger,
                    services.calls.tools.denials,
                    lambda: self.settings.grants,
                    node=self.settings.daemon.node_name,
                )
                self.metrics.gauges(self.alerts.gauge())

    def _set_socket_mode(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.chmod(socket_mode(self.settings.grants))

    def hang_up(self) -> None:
        """Handles SIGHUP. Thread-safe."""
        self._loop.call_soon_threadsafe(self._hang_up)

    def hurry(self, number: int) -> None:
        """Handles another signal while stopping. Thread-safe."""
        if number != signal.SIGHUP and self.drain is not None:
            self._loop.call_soon_threadsafe(self.drain.hurry)

    def _hang_up(self) -> None:
        try:
            self.log.reopen()
        except AnaphoraError as problem:
            _log.error("%s", problem)
        self.reload()
        self._woken.set()

    async def run_maintenance(
        self, handler: DaemonHandler, certificate: ServerCertificate | None
    ) -> None:
        """Runs every second and after SIGHUP: checks changed files, a renewed certificate, expired
        tokens, refused calls to write, and cached prefixes about to expire."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
            self._woken.clear()
            self._stop_if_replaced()
            try:
                self.reload_if_changed()
                handler.end_expired()
                self.services.calls.tools.denials.write_minute()
                if self.alerts:
                    self.alerts.look()
                if certificate is not None and certificate.reload():
                    _log.info("the certificate was read again")
            except AnaphoraError as problem:
                _log.error("%s", problem)
            except Exception as problem:
                log(logging.ERROR, type(problem).__name__, problem)

    def _stop_if_replaced(self) -> None:
        replaced = self.services.store.replaced
        if replaced is not None and self.failure is None:
            self.failure = (
                f"{replaced}: put the file back or restore a backup, and start the daemon again"
            )
            _log.critical("stopping: %s", self.failure)
            self.on_failure()

    def _problems(self) -> list[str]:
        unmet = self.settings.grants.unmet.items()
        required = [f"{app} requires {', '.join(sorted(names))}" for app, names in unmet]
        warnings = price_warnings(self.services.ledger.clock())
        store = self.services.store.problem
        unavailable = [] if store is None else [f"the store cannot be written: {store}"]
        return [*unavailable, *required, *self.not_in_force(), *warnings]

    def not_in_force(self) -> list[str]:
        """Differences between the settings that this node serves and its files or the other
        nodes."""
        # The log also names the folder, which apps must not see.
        folder = f"{self.home.path}/"
        kept = [f"not in force: {each.replace(folder, '')}" for each in self._files.problems]
        node = self.services.node
        return [
            *kept,
            *([] if node is None else node.problems),
            *([self.drain.problem] if self.drain is not None and self.drain.problem else []),
        ]

    def _report(self) -> dict[str, object]:
        """The report for other nodes and `anaphora nodes`."""
        node, slots = self.services.node, self.services.slots
        assert node is not None
        return node.described(
            address=self.url,
            status="" if self.status_address is None else self.status_address.url,
            calls=slots.count,
            total=slots.begun,
            waiting=self.services.store.waiting,
            refuses_calls=self.refuses_connections,
            problems=self._problems(),
        )


def _needs_restart(before: DaemonConfig, after: DaemonConfig) -> bool:
    """Whether the daemon section changed in fields that need a restart."""
    ui = msgspec.structs.replace(after.ui, show_text=before.ui.show_text)
    return msgspec.structs.replace(after, ui=ui) != before


@contextlib.asynccontextmanager
async def open_daemon(options: ServeOptions, log: JsonLog | None = None) -> AsyncIterator[Daemon]:
    """A daemon on the running event loop. When the block ends, it drains: see `draining`. Waits if
    its PostgreSQL store is unreachable."""
    async with contextlib.AsyncExitStack() as stack:
        home = Home.open(options.home)
        lock = HomeLock.acquire(home.lock)
        stack.callback(lock.release)
        files = SettingsFiles(home, allow_env=options.allow_env_keys, resolve=options.resolve)
        settings = files.load()
        config = effective_config(settings.daemon, options)
        if log is None:
            log = JsonLog(None if config.log_file is None else home.path / config.log_file)
            stack.callback(log.close)
        stack.enter_context(logging_to(log))
        if lock.stale is not None:
            _log.warning("process %d ended without releasing the lock of the home", lock.stale)
        metrics = DaemonMetrics()
        services = await _open_services(stack, home, files, options, metrics)
        settings = files.current
        check_required(settings.grants, strict=options.strict)
        metrics.gauges(*service_gauges(services, options.clock))
        metrics.before_page.append(services.calls.finish_answered)
        daemon = Daemon(home, files, services, metrics, log)
        await listen(stack, daemon, config, shares_port=options.share_port)
        daemon.log_warnings()
        for warning in price_warnings(options.clock()):
            _log.warning("%s", warning)
        _log.info("serving at %s", daemon.listens_at)
        yield daemon


async def _open_services(
    stack: contextlib.AsyncExitStack,
    home: Home,
    files: SettingsFiles,
    options: ServeOptions,
    metrics: DaemonMetrics,
) -> Services:
    watchers = metrics.calls(), *call_traces()
    config = effective_config(files.current.daemon, options)

    async def open_parts(opening: contextlib.AsyncExitStack) -> Services:
        return await open_services(opening, home, files, clock=options.clock, watchers=watchers)

    if config.store is None:
        return await open_parts(stack)
    certificate = certificate_of(home, config)
    tls = None if certificate is None else certificate.context
    return await WaitingStart(options.progress).opened(
        stack, open_parts, lambda waiting: waiting_pages(waiting, home, config, tls)
    )


@contextlib.contextmanager
def running(
    options: ServeOptions,
    log: JsonLog | None = None,
    *,
    gives_up: Callable[[], bool] = lambda: False,
) -> Iterator[Daemon]:
    """A daemon in its own thread, until the block ends and it has drained. If `gives_up` becomes
    true while it starts, raises `asyncio.CancelledError`."""
    with in_thread(
        lambda: open_daemon(options, log), "daemon", stop_seconds=None, gives_up=gives_up
    ) as daemon:
        yield daemon


def serve(options: ServeOptions, ready: Callable[[Daemon], None] = lambda _: None) -> None:
    """A daemon in the foreground. SIGTERM and SIGINT drain and stop it, SIGHUP reloads its files
    and opens its log again. SIGTERM first gives balancers `drain_delay` seconds to notice; a second
    signal ends it at once. Raises `Io` if its store was replaced."""
    disable_core_dumps()
    raise_file_limit()
    failure: str | None = None
    ends = {signal.SIGINT, signal.SIGTERM}
    with (
        received_signals(*ends, signal.SIGHUP) as signals,
        contextlib.suppress(asyncio.CancelledError),
        running(options, gives_up=lambda: not ends.isdisjoint(signals.seen)) as daemon,
        tuned_interpreter("asyncio"),
    ):
        ready(daemon)
        daemon.on_failure = lambda: signals.add(signal.SIGINT)
        while (number := next(signals)) == signal.SIGHUP:
            daemon.hang_up()
        if number == signal.SIGTERM:
            daemon.drain_delay = daemon.settings.daemon.drain_delay
        signals.on_next = daemon.hurry
        failure = daemon.failure
    if failure is not None:
        raise Io(failure)
