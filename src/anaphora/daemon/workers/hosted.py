"""One worker, as the process of its store sees it: its process, its holds, the requests that it
relays."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from anaphora.audit.envelope import EncodedRow
from anaphora.daemon.calls.steps.audit import BreakText
from anaphora.daemon.money.sent_marks import EarlierMarks
from anaphora.daemon.rpc.protocol import RequestKey
from anaphora.daemon.shared_state import SavedRecord, SharedState
from anaphora.daemon.store import HandleRow, Hold, Settlement, SpendLimits, interrupted
from anaphora.daemon.store.interface import Store
from anaphora.serving.connection_limits import PEER, PeerCredentials
from anaphora.wording import counted

from .channel import Channel, Gone
from .messages import RelayedRequest, ToHost, ToWorker, Welcome
from .remote import STORE_METHODS

if TYPE_CHECKING:
    from anaphora.daemon.store.postgres import PostgresStore

    from .hosting import Workers

_log = logging.getLogger("anaphora.daemon")

_MODULE = "anaphora.daemon.workers"
#: Seconds that a worker may take to end once it has closed its channel.
_END_SECONDS = 5.0


class HostedWorker:
    """One worker, as this process sees it."""

    def __init__(self, workers: Workers, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.freed: deque[str] = deque()
        """Holds whose settlement is durable, to be told with the next message."""
        self.listens: asyncio.Future[bool] = loop.create_future()
        self._workers = workers
        self._services = workers.services
        self._store = workers.services.store
        self._ledger = workers.services.ledger
        self._state = workers.state
        self._channel = channel = Channel(self._lost)
        channel.before_write = self._add_freed
        self.client = ToWorker(channel)
        self._process: subprocess.Popen[bytes] | None = None
        self._holds: dict[str, Hold] = {}
        self._abandoned: set[str] = set()
        """Holds under way that nobody waits for any more."""
        self._relayed: dict[int, RelayedExchange] = {}
        own = ("hold", "settle")
        channel.answer_all(Store, self, *own)
        channel.answer_all(Store, self._store, *(name for name in STORE_METHODS if name not in own))
        channel.answer_all(SharedState, self._state, "find", "digests")
        channel.answer(SharedState.tell, lambda news: self._state.tell(news, self._hear))
        channel.answer(ToHost.find_value, workers.find_value)
        channel.answer(ToHost.add_text, self._add_text)
        channel.answer(ToHost.cancel, self._cancel)
        names = (
            "welcome", "listening", "settle_later", "add_handles_later", "add_rows", "save",
            "abandon", "begin_relay", "relay_body", "end_relay",
        )  # fmt: skip
        channel.answer_all(ToHost, self, *names)
        self._state.listen(self._hear)

    # ── Its process ──────────────────────────────────────────────────────────────────────────────

    def start(self, inherited: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        local, counts, _ = inherited
        given = (theirs.fileno(), local, counts, self._workers.count, self.number)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *map(str, given)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *inherited),
            )
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(
            loop.create_connection(lambda: self._channel, sock=ours)
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_listening(self) -> bool:
        return self.is_running and self.listens.done() and self.listens.result()

    def kill(self) -> None:
        if self._process is not None and self.is_running:
            self._process.kill()

    async def exited(self) -> int:
        """Its exit code. One that does not end is killed."""
        assert self._process is not None
        try:
            return await asyncio.to_thread(self._process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def _lost(self) -> None:
        if not self.listens.done():
            self.listens.set_result(False)
        self._state.unlisten(self._hear)
        for relayed in tuple(self._relayed.values()):
            relayed.disconnect()
        self._workers.ended(self)

    async def recover(self) -> None:
        """Settles its open holds at their bound, or free if nothing was sent; then writes the audit
        rows that are missing."""
        if self._channel.tasks:
            await asyncio.wait(self._channel.tasks)
        self._workers.counts.clear(self.number)
        if self._workers.are_nodes:
            await self._recover_node()
            return
        holds, self._holds = list(self._holds.values()), {}
        is_unsent = self._workers.marks.as_earlier().is_unsent
        now = self._ledger.clock()
        settled = [interrupted(hold.id, hold.bound, now, is_unsent) for hold in holds]
        await asyncio.gather(*map(self._store.settle, settled))
        for hold in holds:
            self._ledger.put_settled(hold)
        if holds:
            unsent = sum(one.kind == "free" for one in settled)
            _log.warning(
                "open when worker %d ended: %s; %d not sent and free, the others settled at their"
                " bound",
                self.number, counted(len(holds), "hold"), unsent,
            )  # fmt: skip
        if self._services.recovery is not None:
            calls = frozenset(self._ledger.unaudited_calls(self.number))
            await self._services.recovery.recover_calls(calls)

    async def _recover_node(self) -> None:
        """Settles its holds by its own marks."""
        daemon = self._workers.daemon
        home = replace(daemon.home, worker=self.number)
        assert self._services.node is not None
        name = home.node_name(self._services.node.name)
        is_unsent = EarlierMarks.read(home.sent_marks).is_unsent
        await cast("PostgresStore", self._store).recover_worker(name, is_unsent)

    # ── Messages ─────────────────────────────────────────────────────────────────────────────────

    async def welcome(self) -> Welcome:
        daemon, options, audit = self._workers.daemon, self._workers.options, self._services.audit
        self.client.note(self._workers.store_state)
        return Welcome(
            home=str(daemon.home.path),
            host=daemon.address.host,
            port=daemon.address.port,
            allow_env_keys=options.allow_env_keys,
            ledger=self._workers.marks.ledger,
            slots=self._workers.slots_of(self.number),
            is_node=self._workers.are_nodes,
            audit_epoch=None if audit is None else audit.epoch,
        )

    def listening(self) -> None:
        self._workers.listening(self.number)
        if not self.listens.done():
            self.listens.set_result(True)

    async def hold(self, hold: Hold, limits: SpendLimits) -> float:
        try:
            share = await self._store.hold(hold, limits)
        except BaseException:
            self._abandoned.discard(hold.id)
            raise
        self._holds[hold.id] = hold
        self._ledger.put_held(hold, self.number)
        if hold.id in self._abandoned:
            self._abandoned.discard(hold.id)
            self.abandon(hold.id)
        return share

    def abandon(self, hold: str) -> None:
        if hold in self._holds:
            at = self._ledger.clock()
            self.settle_later(Settlement(hold=hold, billed=0, kind="free", at=at))
        else:
            self._abandoned.add(hold)

    async def _cancel(self, app: str, connection: str, key: RequestKey) -> bool:
        return await self._workers.cancel(self, app, connection, key)

    async def settle(self, settlement: Settlement) -> None:
        try:
            await self._store.settle(settlement)
        finally:
            self._settled(settlement)

    def settle_later(self, settlement: Settlement) -> None:
        self._store.settle_later(settlement)
        self._settled(settlement)

    def _settled(self, settlement: Settlement) -> None:
        hold = self._holds.pop(settlement.hold, None)
        if hold is not None:
            self._ledger.put_settled(hold)

    def add_handles_later(self, handles: list[HandleRow]) -> None:
        self._store.add_handles_later(handles)

    def add_rows(self, rows: list[EncodedRow]) -> None:
        audit = self._services.audit
        assert audit is not None
        for row in rows:
            audit.append_encoded(row)

    def _add_freed(self) -> None:
        if self.freed:
            freed = [self.freed.popleft() for _ in range(len(self.freed))]
            self.client.free(freed)

    def _add_text(self, request_id: str, text: BreakText) -> None:
        self._services.calls.tools.texts.put(request_id, text)

    def save(
        self, record: SavedRecord, before: bytes, keys: list[bytes], digests: bytes, first: int
    ) -> None:
        if not self._state.replace(record, before, keys, digests, first):
            self.client.not_saved(record.id)

    def _hear(self, news: bytes, age: float) -> None:
        self.client.hear(news, age)

    # ── Relayed requests ─────────────────────────────────────────────────────────────────────────

    def begin_relay(self, number: int, request: RelayedRequest) -> None:
        relayed = self._relayed[number] = RelayedExchange(self.client, number, request)
        task = asyncio.create_task(relayed.run(self._workers.app))
        self._channel.tasks.add(task)
        task.add_done_callback(self._channel.tasks.discard)
        task.add_done_callback(lambda _: self._relayed.pop(number, None))

    async def relay_body(self, number: int, piece: bytes, more: bool) -> None:
        if number in self._relayed:
            await self._relayed[number].put(piece, more)

    def end_relay(self, number: int) -> None:
        if number in self._relayed:
            self._relayed[number].disconnect()


class RelayedExchange:
    """A request that a worker relays, as ASGI."""

    def __init__(self, client: ToWorker, number: int, request: RelayedRequest) -> None:
        self._client = client
        self._number = number
        self._request = request
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue(1)
        names = {name for name, _ in request.headers}
        sizes = [value for name, value in request.headers if name == b"content-length"]
        if b"transfer-encoding" not in names and sizes in ([], [b"0"]):
            self._pieces.put_nowait((b"", False))
        self._gone = asyncio.get_running_loop().create_future()

    def disconnect(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    async def put(self, piece: bytes, more: bool) -> None:
        await self._pieces.put((piece, more))

    async def run(self, app: Any) -> None:
        request = self._request
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "root_path": "", "extensions": {},
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": request.method, "path": request.path, "raw_path": request.raw_path,
            "query_string": request.query, "headers": request.headers,
            "scheme": request.scheme, "client": request.client, "server": request.server,
        }  # fmt: skip
        if request.peer is not None:
            scope[PEER] = PeerCredentials(*request.peer)
        try:
            await app(scope, self._receive, self._send)
        except Gone:
            pass
        except Exception:  # the connection ends before the response is complete
            self._client.relay_failed(self._number)

    async def _receive(self) -> Any:
        taking = asyncio.ensure_future(self._pieces.get())
        await asyncio.wait((taking, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            return {"type": "http.disconnect"}
        piece, more = taking.result()
        return {"type": "http.request", "body": piece, "more_body": more}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
            await self._client.relay_start(self._number, status, headers)
        else:
            more = message.get("more_body", False)
            await self._client.relay_piece(self._number, message.get("body", b""), more)
