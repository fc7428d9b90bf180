"""A worker: a process that answers calls at the port and the socket of a daemon. Its store, its
shared state and its audit log are in the process that started it; when that ends, it ends. With
PostgreSQL it is a node, and has its own.

    python -m anaphora.daemon.workers CHANNEL SOCKET COUNTS WORKERS NUMBER

The first three are inherited descriptors. Everything else it reads in the home, or is told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from anaphora.audit.log import AuditLog
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.audit import audit_place
from anaphora.daemon.calls.steps.authenticate import RPC_PATH, take_token
from anaphora.daemon.handler import STATUS_PAGES, DaemonHandler
from anaphora.daemon.home import Home
from anaphora.daemon.home.secrets import disable_core_dumps
from anaphora.daemon.home.settings import SettingsFiles
from anaphora.daemon.listeners import listen_as_worker
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.money.sent_marks import SentMarks
from anaphora.daemon.monitoring import SUMMED_GAUGES, DaemonMetrics, JsonLog, logging_to
from anaphora.daemon.rpc.protocol import RequestKey
from anaphora.daemon.server import Daemon
from anaphora.daemon.services import RemoteParts, Services, open_services, service_gauges
from anaphora.daemon.shared_state.shared_counts import SharedCounts
from anaphora.daemon.shared_state.shared_windows import SharedWindows
from anaphora.daemon.store import TokenRow
from anaphora.daemon.tracing import call_traces
from anaphora.serving.connection_limits import PEER
from anaphora.serving.exchange import ConnectionEnded, HttpExchange
from anaphora.serving.server import raise_file_limit, tuned_interpreter

from .channel import Channel
from .messages import RelayedRequest, StoreState, ToHost, ToWorker, Welcome
from .remote import RemoteState, RemoteStore, RemoteWriter

#: Paths that the process of the store answers: pages, and uploads, whose parts may arrive at
#: different workers.
_RELAYED = ("/ui", "/upload/")


class Relay:
    """Passes requests to the process of the store, and its responses to their clients."""

    def __init__(self, host: ToHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[HttpExchange, asyncio.Future[None]]] = {}

    async def __call__(self, exchange: HttpExchange) -> None:
        number, ended = next(self._numbers), asyncio.get_running_loop().create_future()
        self._open[number] = exchange, ended
        scope = exchange.scope
        credentials = scope.get(PEER)
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in exchange.header_pairs
        ]
        request = RelayedRequest(
            method=exchange.method,
            path=exchange.path,
            raw_path=scope["raw_path"],
            query=exchange.query_string,
            headers=headers,
            scheme=scope["scheme"],
            client=scope["client"],
            server=scope["server"],
            peer=None
            if credentials is None
            else (credentials.pid, credentials.uid, credentials.gid),
        )
        self._host.begin_relay(number, request)
        try:
            await exchange.run(self._relayed(number, exchange, ended))
        finally:
            del self._open[number]
            self._host.end_relay(number)

    async def _relayed(
        self, number: int, exchange: HttpExchange, ended: asyncio.Future[None]
    ) -> None:
        more = exchange.has_body
        while more and not ended.done():
            piece, more = await exchange.read_piece()
            await self._host.relay_body(number, piece, more)
        exchange.watch()
        await ended

    async def relay_start(
        self, number: int, status: int, headers: list[tuple[bytes, bytes]]
    ) -> None:
        if number in self._open:
            exchange, _ = self._open[number]
            exchange.status = status
            message = {"type": "http.response.start", "status": status, "headers": headers}
            await exchange.send(message)

    async def relay_piece(self, number: int, piece: bytes, more: bool) -> None:
        if number in self._open:
            exchange, ended = self._open[number]
            await exchange.write(piece, more=more)
            if not more and not ended.done():
                ended.set_result(None)

    def relay_failed(self, number: int) -> None:
        if number in self._open and not self._open[number][1].done():
            self._open[number][1].set_exception(ConnectionEnded())


class WorkerHandler(DaemonHandler):
    """The handler of a worker."""

    def __init__(self, relay: Relay, directory: Directory, *args: Any, **options: Any) -> None:
        super().__init__(directory, *args, **options)
        self._relay = relay

    async def handle(self, exchange: HttpExchange) -> None:
        path = exchange.path
        if path in STATUS_PAGES or path.startswith(_RELAYED) or self._is_of_admin(exchange):
            await self._relay(exchange)
        else:
            await super().handle(exchange)

    def _is_of_admin(self, exchange: HttpExchange) -> bool:
        """Whether this is a call of an administrator's method."""
        if exchange.path != RPC_PATH:
            return False
        token = take_token(exchange)
        if token is not None:  # put back, for the one who answers
            name, value = "authorization", f"Bearer {token.reveal()}"
            exchange.headers[name] = value
            exchange.header_pairs.append((name, value))
        return self._directory.is_admin(token, self._peers.peer_of(exchange))


class Worker:
    """Answers the process of the store."""

    def __init__(
        self, channel: Channel, local: socket.socket, counts: SharedCounts, workers: int
    ) -> None:
        self.host = ToHost(channel)
        self._workers = workers
        self._channel = channel
        self._local = local
        self._counts = counts
        self._store = RemoteStore(self.host)
        self._state = RemoteState(self.host, SharedWindows(counts))
        self._relay = Relay(self.host)
        self._writer: RemoteWriter | None = None
        self._started: asyncio.Future[Daemon] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()
        channel.answer(ToWorker.free, self._store.free)
        channel.answer_all(ToWorker, self._state, "hear", "find_value", "not_saved")
        channel.answer_all(ToWorker, self._relay, "relay_start", "relay_piece", "relay_failed")
        names = ("note", "hang_up", "stop", "hurry", "change_token", "cancel", "metrics")
        channel.answer_all(ToWorker, self, *names)

    async def run(self, number: int) -> None:
        """Until it is told to stop, and has drained."""
        welcome = await self.host.welcome()
        home = replace(Home.open(Path(welcome.home)), worker=number if welcome.is_node else 0)
        files = SettingsFiles(home, allow_env=welcome.allow_env_keys)
        config = replace(files.load().daemon, host=welcome.host, port=welcome.port)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._channel.flush)
            file = None if config.log_file is None else home.path / config.log_file
            log = JsonLog(file, self._counts.log_lock)
            stack.callback(log.close)
            stack.enter_context(logging_to(log))
            metrics = DaemonMetrics()
            services = await self._open(stack, home, files, welcome, metrics, number)
            daemon = Daemon(home, files, services, metrics, log)
            daemon.handler_kind, daemon.has_pages = partial(WorkerHandler, self._relay), False
            await listen_as_worker(stack, daemon, config, self._local, self._counts)
            services.calls.tools.texts.allow(config.ui.shows_text)
            self._started.set_result(daemon)
            self.host.listening()
            stack.callback(asyncio.create_task(self._beat()).cancel)
            await self._stopped.wait()

    async def _beat(self) -> None:
        while True:
            self._counts.beat()
            await asyncio.sleep(1.0)

    async def _open(
        self,
        stack: contextlib.AsyncExitStack,
        home: Home,
        files: SettingsFiles,
        welcome: Welcome,
        metrics: DaemonMetrics,
        number: int,
    ) -> Services:
        if welcome.is_node:
            shared = None if files.current.daemon.shared else self._state
            remote = RemoteParts(self._workers, shared)
        else:
            remote = self._remote_parts(stack, home, files, welcome, number)
        watchers = metrics.calls(), *call_traces()
        services = await open_services(
            stack,
            home,
            files,
            clock=time.time,
            watchers=watchers,
            counts=self._counts,
            remote=remote,
        )
        if (node := services.node) is not None:
            self._state.nodes = lambda: node.count
        services.calls.tools.texts.publish = self.host.add_text
        services.rpc.running.cancel_elsewhere = self.host.cancel
        own = (
            gauge
            for gauge in service_gauges(services, time.time)
            if gauge.only_grows or gauge.name in SUMMED_GAUGES
        )
        metrics.gauges(*own)
        return services

    def _remote_parts(
        self,
        stack: contextlib.AsyncExitStack,
        home: Home,
        files: SettingsFiles,
        welcome: Welcome,
        number: int,
    ) -> RemoteParts:
        ledger = Ledger(self._store)
        marks = SentMarks.attach(home.sent_marks, welcome.ledger, range(*welcome.slots))
        ledger.share(marks, number << 24)
        audit = None
        if welcome.audit_epoch is not None:
            place = audit_place(home, files.current.daemon)
            self._writer = RemoteWriter(self.host, welcome.audit_epoch)
            self._writer.use(self._store.state)
            audit = AuditLog.over(place, self._writer)
            stack.push_async_callback(asyncio.to_thread, audit.close)
        return RemoteParts(self._workers, self._state, ledger, audit)

    # ── Messages ─────────────────────────────────────────────────────────────────────────────────

    def note(self, state: StoreState) -> None:
        self._store.state = state
        if self._writer is not None:
            self._writer.use(state)

    def hang_up(self) -> None:
        if self._started.done():
            self._started.result().hang_up()

    def stop(self, delay: float) -> None:
        if self._started.done():
            self._started.result().drain_delay = delay
        self._stopped.set()

    def hurry(self) -> None:
        if self._started.done():
            self._started.result().hurry(signal.SIGTERM)

    async def change_token(self, row: TokenRow) -> None:
        (await self._started).services.directory.use(row)

    async def cancel(self, app: str, connection: str, key: RequestKey) -> bool:
        running = (await self._started).services.rpc.running
        return running.cancel_here(app, connection, key)

    async def metrics(self) -> bytes:
        _, page = await (await self._started).metrics.own_page()
        return page


async def _run(channel: int, local: int, counts: int, workers: int, number: int) -> None:
    loop, connection = asyncio.get_running_loop(), socket.socket(fileno=channel)
    _, own = await loop.create_connection(Channel, sock=connection)
    shared = SharedCounts(counts, workers + 1, number)
    await Worker(own, socket.socket(fileno=local), shared, workers).run(number)


def run(channel: int, local: int, counts: int, workers: int, number: int) -> None:
    """Descriptors, the number of workers, and which one this is."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the process that started it tells what to do
    disable_core_dumps()
    raise_file_limit()
    with tuned_interpreter("asyncio"):
        asyncio.run(_run(channel, local, counts, workers, number))
