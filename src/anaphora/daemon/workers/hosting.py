"""The process that keeps the store, the audit log, the state of conversations and the pages of a
daemon, for the workers that it starts.

    apps ──▶ port, socket ──▶ worker 1 ─┐
                          ──▶ worker 2 ─┴─ socket pairs ─▶ this process ─▶ store, audit log

It is a whole daemon that listens nowhere: it answers what workers relay to it. A worker that ends
is started again; its holds are settled, and missing audit rows written, as after a kill of a
daemon. With PostgreSQL each worker is a node, with a store and an audit log of its own, which
recovers by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anaphora.client.failures import log
from anaphora.daemon.listeners import (
    OpenedApp,
    open_app,
    open_status,
    run_until_closed,
    socket_mode,
)
from anaphora.daemon.money.sent_marks import SLOTS, slot_of
from anaphora.daemon.shared_state.memory import HostedState
from anaphora.daemon.shared_state.shared_windows import SharedWindows
from anaphora.daemon.store import (
    TokenRow,
)
from anaphora.errors import Io
from anaphora.serving.listening import bound_path
from anaphora.serving.server import ServerAddress, bound_socket
from anaphora.wording import counted

from .hosted import HostedWorker
from .messages import StoreState, ToWorker

if TYPE_CHECKING:
    from anaphora.daemon.home import HomeLock
    from anaphora.daemon.home.config import DaemonConfig
    from anaphora.daemon.home.settings import ServeOptions
    from anaphora.daemon.rpc.protocol import RequestKey
    from anaphora.daemon.server import Daemon
    from anaphora.daemon.shared_state.shared_counts import SharedCounts

_log = logging.getLogger("anaphora.daemon")

#: Seconds before a worker that ended is started again: at first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
#: Seconds beyond `drain_timeout` that a worker may take to stop.
_STOP_SECONDS = 10.0
#: Seconds between looks at the state of the store, and at workers that stop.
_LOOK_SECONDS = 0.05
#: Seconds after which a worker that does nothing is killed, and between looks at that.
_SILENT_SECONDS, _BEAT_SECONDS = 20, 1.0


async def host(
    stack: contextlib.AsyncExitStack,
    daemon: Daemon,
    config: DaemonConfig,
    options: ServeOptions,
    counts: SharedCounts,
    lock: HomeLock,
) -> None:
    """Starts the workers of a daemon; when the stack closes, they drain first."""
    opened = open_app(stack, daemon, config)
    bound_socket(config.host, config.port).close()  # another daemon must not share the port
    port = bound_socket(config.host, config.port, is_shared=True)
    stack.callback(port.close)
    daemon.socket = daemon.home.path / config.socket
    local = bound_path(daemon.socket, socket_mode(daemon.settings.grants))
    stack.callback(daemon.socket.unlink, missing_ok=True)
    stack.callback(local.close)
    local.listen()
    daemon.address = ServerAddress(config.host, port.getsockname()[1], scheme=opened.scheme)
    await open_status(stack, daemon, config, opened)
    workers = Workers(daemon, opened, options, counts, local, lock.descriptor)
    stack.push_async_callback(workers.close)
    await workers.start()
    daemon.drain = workers  # type: ignore[assignment]
    run_until_closed(stack, daemon, config, opened)
    stack.callback(asyncio.create_task(workers.watch()).cancel)
    threading.Thread(target=workers.end_silent, daemon=True).start()


class Workers:
    """All workers of a daemon. Drains them as `Drain` does with the port of one process."""

    problem: str | None = None

    def __init__(
        self,
        daemon: Daemon,
        opened: OpenedApp,
        options: ServeOptions,
        counts: SharedCounts,
        local: socket.socket,
        lock: int,
    ) -> None:
        self.daemon = daemon
        self.services = daemon.services
        self.app = opened.app
        self.counts = counts
        self.options = options
        self._inherited = (local.fileno(), counts.descriptor, lock)
        self._local = local
        self._workers: dict[int, HostedWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = StoreState()
        self._stops = asyncio.Event()
        self._has_started = False
        self._waits: dict[int, float] = {}
        """Seconds before the next start of a worker that did not start."""
        state = self.services.shared
        self.state = state if isinstance(state, HostedState) else HostedState(SharedWindows(counts))
        """Not used if workers share theirs in Redis."""
        self.are_nodes = self.services.node is not None
        assert self.services.ledger.marks is not None
        self.marks = self.services.ledger.marks
        self._slots = SLOTS // (options.workers + 1)
        if not self.are_nodes:
            self.marks.keep(range(1, self._slots))
            self.services.store.follow_holds(self._over)
        self.services.directory.publish = self._publish
        daemon.metrics.of_workers = self._metrics
        daemon.on_hang_up = lambda: self._tell(ToWorker.hang_up)

    @property
    def count(self) -> int:
        return self.options.workers

    async def start(self) -> None:
        """Raises `Io` if a worker does not start."""
        workers = [self._start(number + 1) for number in range(self.count)]
        if not all(await asyncio.gather(*(worker.listens for worker in workers))):
            raise Io("a worker ended before it answered: its own error is above")
        self._has_started = True
        _log.info("%s answer calls", counted(self.count, "worker"))

    def _start(self, number: int) -> HostedWorker:
        worker = self._workers[number] = HostedWorker(self, number)
        worker.start(self._inherited)
        return worker

    def listening(self, number: int) -> None:
        self._waits.pop(number, None)

    def ended(self, worker: HostedWorker) -> None:
        task = asyncio.create_task(self._restart(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restart(self, worker: HostedWorker) -> None:
        """Recovers what a worker left, and starts another one in its place."""
        number, code = worker.number, await worker.exited()
        if not code and self._is_stopping:
            return
        _log.error("worker %d ended (code %d)", number, code)
        try:
            await worker.recover()
        except Exception as problem:
            log(logging.ERROR, f"the calls of worker {number} were not recovered", problem)
        if self._has_started:
            wait = self._waits.get(number, _FIRST_WAIT)
            self._waits[number] = min(2 * wait, _LONGEST_WAIT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stops.wait(), wait)
            if not self._is_stopping:
                self._start(number)

    @property
    def _is_stopping(self) -> bool:
        return self._stops.is_set()

    async def close(self) -> None:
        """Ends those that are left, and recovers what they leave."""
        self._stops.set()
        for worker in self._workers.values():
            worker.kill()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def end_silent(self) -> None:
        """Kills workers whose event loop does nothing, since connections still arrive at them. In a
        thread: one that was stopped may hold a lock that all others wait for. Seconds in which
        this process was stopped itself do not count."""
        silent: dict[int, tuple[int, int]] = {}
        while True:
            time.sleep(_BEAT_SECONDS)
            if self._is_stopping:
                return
            for number, worker in tuple(self._workers.items()):
                before, seconds = silent.get(number, (-1, 0))
                beats = self.counts.beats(number)
                seconds = seconds + 1 if beats == before and worker.is_listening else 0
                silent[number] = beats, seconds
                if seconds >= _SILENT_SECONDS:
                    _log.error("worker %d has done nothing for %d s: killed", number, seconds)
                    worker.kill()
                    silent.clear()  # others may have waited for it
                    break

    # ── All workers ──────────────────────────────────────────────────────────────────────────────

    def _tell(self, message: Callable[..., None], *values: Any) -> None:
        for worker in self._workers.values():
            message(worker.client, *values)

    async def _ask(
        self, message: Callable[..., Any], *values: Any, but: HostedWorker | None = None
    ) -> list[Any]:
        """The results of those that answer."""
        workers = [worker for worker in self._workers.values() if worker is not but]
        asked = (message(worker.client, *values) for worker in workers)
        results = await asyncio.gather(*asked, return_exceptions=True)
        return [found for found in results if not isinstance(found, BaseException)]

    async def _publish(self, row: TokenRow) -> None:
        await self._ask(ToWorker.change_token, row)

    async def _metrics(self) -> list[bytes]:
        return await self._ask(ToWorker.metrics)

    async def cancel(self, asking: HostedWorker, *request: RequestKey) -> bool:
        return any(await self._ask(ToWorker.cancel, *request, but=asking))

    async def find_value(self, name: str) -> bytes | None:
        found = await self._ask(ToWorker.find_value, name)
        return next((value for value in found if value is not None), None)

    def _over(self, hold: str) -> None:
        """In the thread of the store."""
        number = slot_of(hold) // self._slots
        if number in self._workers:
            self._workers[number].freed.append(hold)
        else:
            self.marks.free(hold)

    def slots_of(self, number: int) -> tuple[int, int]:
        return number * self._slots, (number + 1) * self._slots

    async def watch(self) -> None:
        """Tells workers when the store or the audit log can no longer be written, or can again."""
        store, audit = self.services.store, self.services.audit
        while True:
            failing = "it cannot be written" if audit is not None and audit.failing else None
            state = StoreState(store.problem, failing, audit is not None and audit.is_full)
            if state != self._state:
                self._state = state
                self._tell(ToWorker.note, state)
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def store_state(self) -> StoreState:
        return self._state

    # ── Draining ─────────────────────────────────────────────────────────────────────────────────

    @property
    def is_closed(self) -> bool:
        """Whether an operator has drained it: each worker reports for its own port."""
        return (node := self.services.node) is not None and node.is_draining

    def hurry(self) -> None:
        self._tell(ToWorker.hurry)

    async def stop(self, delay: float, timeout: float, busy: Callable[[], bool]) -> None:
        """Returns when all workers have drained and ended."""
        self.daemon.readiness.draining = True
        self._stops.set()
        self._tell(ToWorker.stop, delay)
        # No worker accepts connections then: new ones are refused instead of waiting.
        asyncio.get_running_loop().call_later(delay, self._local.close)
        end = time.monotonic() + delay + timeout + _STOP_SECONDS
        while any(one.is_running for one in self._workers.values()) and time.monotonic() < end:
            busy()
            await asyncio.sleep(_LOOK_SECONDS)
        self.daemon.readiness.closed = True
