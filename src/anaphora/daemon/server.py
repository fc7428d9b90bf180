"""A running daemon: everything that a home holds, opened in order and closed in reverse.

with running(ServeOptions(home=Path("/srv/anaphora"))) as daemon:
    print(daemon.url)

home, lock, settings ─▶ log ─▶ store, ledger ─▶ tokens ─▶ audit log ─▶ calls ─▶ RPC, endpoints
─▶ a port, with TLS or without, and the Unix socket
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from anaphora.client.failures import log
from anaphora.errors import AnaphoraError
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.asyncio_server import tcp_server, unix_server
from anaphora.serving.connection_limits import ConnectionLimits
from anaphora.serving.exchange import BodyLimits
from anaphora.serving.server import (
    ServerAddress,
    in_thread,
    received_signals,
    tuned_interpreter,
)

from .access.checks import UnreadBytes
from .access.identity import Directory
from .calls.steps.authenticate import READY, AuthenticateApp, Peers, Readiness
from .checking import check_required, price_warnings
from .handler import DaemonHandler
from .home import Home, HomeLock
from .home.config import DaemonConfig
from .home.extensions import Grants
from .home.secrets import disable_core_dumps
from .home.settings import ServeOptions, Settings, SettingsFiles, effective_config
from .home.tls import ServerCertificate
from .monitoring import DaemonMetrics, JsonLog, logging_to
from .services import Services, open_services, service_gauges
from .tracing import call_traces

if TYPE_CHECKING:
    from .ui.service import UiService

_HINT = "add it to allowed_hosts in the daemon section of llm.yaml"
#: Seconds between two looks at files, certificates and expired tokens.
_LOOK_SECONDS = 1.0
#: Files that the process may open, where the system allows it.
_OPEN_FILES = 16_384
#: Seconds between two looks at open calls while draining.
_DRAIN_SECONDS = 0.02

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
        self.socket = home.socket
        self.services = services
        self.readiness = Readiness(
            problems=self._problems,
            can_write=lambda: services.store.problem is None,
            read_on=lambda: services.calls.read_on.count,
        )
        if (node := services.node) is not None:
            self.readiness.is_drained = lambda: node.is_draining
            self.readiness.refuses_calls = lambda: node.refuses_calls
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
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def listens_at(self) -> str:
        """For people: where it is reached."""
        wildcard = " (every address of this machine)" if self.address.is_wildcard else ""
        return f"{self.url}{wildcard} and {self.socket}"

    @property
    def settings(self) -> Settings:
        """What is in force."""
        return self._files.current

    def handler(
        self, config: DaemonConfig, *, tls: bool, ui: UiService | None = None
    ) -> DaemonHandler:
        pipeline = self.services.calls.pipeline
        pipeline.use(
            AuthenticateApp(
                self.services.directory,
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
        """Reads llm.yaml, extensions.yaml and secrets again. What is broken stays as it was."""
        before, settings = self.settings, self._files.reload()
        for problem in self._files.problems:
            _log.error("not reloaded: %s", problem)
        self.services.calls.tools.texts.allow(settings.daemon.ui.shows_text)
        if _needs_restart(before.daemon, settings.daemon):
            _log.warning("the daemon section of llm.yaml has changed: restart to use it")
        self.services.directory.set_grants(settings.grants)
        self.services.calls.reload(settings.config, settings.providers)
        self.services.calls.use_grants(settings.grants.apps.values())
        self._set_socket_mode()
        if not self._files.problems:
            _log.info("reloaded")
        log_warnings(settings, self.services.directory)

    def _set_socket_mode(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.chmod(socket_mode(self.settings.grants))

    def hang_up(self) -> None:
        """SIGHUP, from any thread."""
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        try:
            self.log.reopen()
        except AnaphoraError as problem:
            _log.error("%s", problem)
        self.reload()
        self._woken.set()

    async def look_after(
        self, handler: DaemonHandler, certificate: ServerCertificate | None
    ) -> None:
        """Every second, and after SIGHUP: changed files, a renewed certificate, tokens that have
        expired, the number of refused calls, cached prefixes that are about to expire."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
            self._woken.clear()
            try:
                self.reload_if_changed()
                handler.end_expired()
                self.services.calls.tools.denials.write_minute()
                self.services.calls.prefixes.remove_old(self.services.ledger.clock())
                if self.readiness.status == READY:
                    self.services.calls.refresh_prefixes(self.services.directory.is_valid)
                if certificate is not None and certificate.reload():
                    _log.info("the certificate was read again")
            except AnaphoraError as problem:
                _log.error("%s", problem)
            except Exception as problem:
                log(logging.ERROR, type(problem).__name__, problem)

    def _problems(self) -> list[str]:
        unmet = self.settings.grants.unmet.items()
        required = [f"{app} requires {', '.join(sorted(names))}" for app, names in unmet]
        warnings = price_warnings(self.services.ledger.clock())
        store = self.services.store.problem
        unavailable = [] if store is None else [f"the store cannot be written: {store}"]
        return [*unavailable, *required, *self.not_in_force(), *warnings]

    def not_in_force(self) -> list[str]:
        """Where this node does not serve what its files say, or not what the other nodes do."""
        # The log names the folder too, which is nothing for apps.
        folder = f"{self.home.path}/"
        kept = [f"not in force: {each.replace(folder, '')}" for each in self._files.problems]
        node, shared = self.services.node, self.services.shared.problem
        return [
            *kept,
            *([] if node is None else node.problems),
            *([f"limits are counted on each node alone: {shared}"] if shared else []),
        ]

    def _report(self) -> dict[str, object]:
        """For the other nodes, and for `anaphora nodes`."""
        node, slots = self.services.node, self.services.slots
        assert node is not None
        return node.described(
            address=self.url,
            calls=slots.count,
            total=slots.begun,
            waiting=self.services.store.waiting,
            problems=self._problems(),
        )


def _needs_restart(before: DaemonConfig, after: DaemonConfig) -> bool:
    """Whether the daemon section changed in more than what is used at once."""
    ui = msgspec.structs.replace(after.ui, show_text=before.ui.show_text)
    return msgspec.structs.replace(after, ui=ui) != before


def socket_mode(grants: Grants) -> int:
    """Other users may connect where an app lists `uids`; they need its token as well."""
    return 0o666 if any(grant.uids for grant in grants.apps.values()) else 0o600


def log_warnings(settings: Settings, directory: Directory) -> None:
    for warning in settings.grants.warnings(directory.token_apps()):
        _log.warning("%s", warning)
    for shared in settings.shared_caches():
        _log.warning("%s", shared)


@contextlib.asynccontextmanager
async def open_daemon(options: ServeOptions, log: JsonLog | None = None) -> AsyncIterator[Daemon]:
    """A daemon on the running event loop. When the block ends, it drains: running calls may end,
    new ones are refused."""
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
        services = await open_services(
            stack, home, files, clock=options.clock, watchers=(metrics.calls(), *call_traces())
        )
        settings = files.current
        check_required(settings.grants, strict=options.strict)
        metrics.gauges(*service_gauges(services, options.clock))
        daemon = Daemon(home, files, services, metrics, log)
        await _listen(stack, daemon, config)
        log_warnings(settings, services.directory)
        for warning in price_warnings(options.clock()):
            _log.warning("%s", warning)
        _log.info("serving at %s", daemon.listens_at)
        yield daemon


async def _listen(stack: contextlib.AsyncExitStack, daemon: Daemon, config: DaemonConfig) -> None:
    """Opens the listeners; when the stack closes, the daemon drains first."""
    home, metrics = daemon.home, daemon.metrics
    certificate = None
    if config.tls is not None:
        certificate = ServerCertificate(home.path / config.tls.cert, home.path / config.tls.key)
        metrics.gauge(
            "anaphora_daemon_certificate_expires_seconds",
            "When the TLS certificate expires, since 1970",
            lambda: certificate.expires,
        )
    ui: UiService | None = None
    pages: tuple[str, ...] = ()
    if config.ui.enabled:
        from .ui.access import LINKED_PAGES
        from .ui.mount import open_ui

        ui, pages = open_ui(stack, daemon, config, tls=certificate is not None), LINKED_PAGES
    handler = daemon.handler(config, tls=certificate is not None, ui=ui)
    app = ServedApp(
        handler,
        HostGuard(config.host, config.allowed_hosts, pages=pages, hint=_HINT),
        BodyLimits(
            size=config.max_body_bytes,
            seconds=config.body_timeout,
            write_seconds=config.write_timeout,
        ),
        ended=handler.ended,
    )
    limits = ConnectionLimits(
        connections=config.max_connections,
        trusted=config.trusted_proxies,
        header_bytes=config.max_header_bytes,
    )
    tls = None if certificate is None else certificate.context
    server = tcp_server(app, host=config.host, port=config.port, tls=tls, limits=limits)
    daemon.address = await stack.enter_async_context(server)
    daemon.socket = home.path / config.socket
    await stack.enter_async_context(
        unix_server(app, daemon.socket, mode=socket_mode(daemon.settings.grants), limits=limits)
    )
    looking = asyncio.create_task(daemon.look_after(handler, certificate))
    stack.callback(looking.cancel)
    stack.push_async_callback(drain, daemon, app, config.drain_timeout)
    stack.callback(handler.end_pages)


async def drain(daemon: Daemon, app: ServedApp, seconds: float) -> None:
    """Refuses new calls, and waits for those that run, and for those that are read on without their
    apps; after `seconds` they are ended."""
    daemon.readiness.draining = True
    read_on = daemon.services.calls.read_on
    text = "stopping when running calls have ended"
    if read_on.count:
        text += f"; {read_on.count} of them are read on to their usage, their apps have gone"
    _log.info("%s", text)
    deadline = time.monotonic() + seconds
    while (app.is_busy or read_on.count) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_DRAIN_SECONDS)
    read_on.stop()
    await app.close()


@contextlib.contextmanager
def running(options: ServeOptions, log: JsonLog | None = None) -> Iterator[Daemon]:
    """A daemon in a thread of its own, until the block ends and it has drained."""
    with in_thread(lambda: open_daemon(options, log), "daemon", stop_seconds=None) as daemon:
        yield daemon


def _raise_file_limit() -> None:
    """Connections need more files than many systems allow at first."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def serve(options: ServeOptions, ready: Callable[[Daemon], None] = lambda _: None) -> None:
    """A daemon in the foreground. SIGTERM and SIGINT drain and stop it, SIGHUP reloads its files
    and opens its log again."""
    disable_core_dumps()
    _raise_file_limit()
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with (
        received_signals(*numbers) as signals,
        running(options) as daemon,
        tuned_interpreter(),
    ):
        ready(daemon)
        while next(signals) == signal.SIGHUP:
            daemon.hang_up()
