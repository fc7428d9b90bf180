"""The store, the shared state and the audit log of a worker: each asks the process that keeps them
(`hosting`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from anaphora.audit.chain import ChainHead
from anaphora.audit.envelope import AuditEnvelope, EncodedRow, encode
from anaphora.audit.group_commit import GroupCommit
from anaphora.audit.writer import AuditError, PendingRow
from anaphora.client.failures import log
from anaphora.daemon.shared_state import ID_BYTES, Listener, SavedRecord, SharedState
from anaphora.daemon.shared_state.windows import SLOT, MinuteLimit, Taken
from anaphora.daemon.store import (
    HandleRow,
    IsUnsent,
    RecoveredHolds,
    Settlement,
    Store,
    all_sent,
)

from .channel import remote, sent
from .messages import StoreState, ToHost

#: Seconds for which audit rows are collected.
_COLLECT = 0.05


#: Methods of the store that a worker calls as they are.
STORE_METHODS = (
    "hold", "settle", "spent", "spent_by_app", "spend", "spend_by_hour", "held", "entries",
    "correct", "tokens", "add_token", "change_token", "add_handle", "handle", "own_handles",
    "handles", "grow_handle", "remove_handle", "remove_old_handles",
)  # fmt: skip


class RemoteStore(Store):
    """The store, for a worker."""

    def __init__(self, host: ToHost) -> None:
        self._host = host
        self.channel = host.channel
        self.state = StoreState()
        self._over: Callable[[str], None] = lambda _: None

    @property
    def problem(self) -> str | None:
        return self.state.problem

    async def probe(self) -> None:
        """The process of the store probes it."""

    @property
    def waiting(self) -> int:
        return 0

    hold = remote(Store.hold)
    settle = remote(Store.settle)
    spent = remote(Store.spent)
    spent_by_app = remote(Store.spent_by_app)
    spend = remote(Store.spend)
    spend_by_hour = remote(Store.spend_by_hour)
    held = remote(Store.held)
    entries = remote(Store.entries)
    correct = remote(Store.correct)
    tokens = remote(Store.tokens)
    add_token = remote(Store.add_token)
    change_token = remote(Store.change_token)
    add_handle = remote(Store.add_handle)
    handle = remote(Store.handle)
    handles = remote(Store.handles)
    grow_handle = remote(Store.grow_handle)
    remove_handle = remote(Store.remove_handle)
    remove_old_handles = remote(Store.remove_old_handles)
    own_handles = remote(Store.own_handles)

    def settle_later(self, settlement: Settlement) -> None:
        self._host.settle_later(settlement)

    def add_handles_later(self, handles: Iterable[HandleRow]) -> None:
        self._host.add_handles_later(list(handles))

    def follow_holds(self, over: Callable[[str], None]) -> None:
        self._over = over

    def free(self, holds: list[str]) -> None:
        for hold in holds:
            self._over(hold)

    # The process of the store does these itself.

    async def recover(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:  # noqa: ARG002
        return RecoveredHolds()

    async def begin_audit(self, epoch: int) -> None: ...

    def audited(self, request_ids: Sequence[str]) -> None: ...

    async def unaudited(self) -> list[Any]:
        return []

    def note_groups(self, groups: Mapping[str, str], at: float) -> None: ...

    async def close(self) -> None: ...


class RemoteState(SharedState):
    """The shared state, for a worker."""

    def __init__(self, host: ToHost) -> None:
        self._host = host
        self.channel = host.channel
        self._listeners: list[Listener] = []
        self._values: list[Callable[[str], bytes | None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(
        self,
        name: str,
        limit: MinuteLimit,
        tokens: int,
        *,
        seconds: float = 0.0,  # noqa: ARG002
    ) -> Taken:
        if limit == _NO_LIMIT:  # nothing to count, and nothing to ask for
            return Taken(name, int(monotonic() // SLOT), tokens)
        taken, number = await self._host.take(name, limit, tokens)
        if not taken.wait:
            taken.lease = b"%d" % number
        return taken

    def correct(self, taken: Taken, tokens: int) -> None:
        before, taken.tokens = taken.tokens, tokens
        if taken.lease and before != tokens:
            self._host.correct(taken.name, taken.slot, before, tokens)

    def release(self, taken: Taken) -> None:
        if taken.runs:
            taken.runs = False
            self._host.release(int(taken.lease))

    count = sent(SharedState.count)
    find = remote(SharedState.find)
    digests = remote(SharedState.digests)
    tell = sent(SharedState.tell)

    def save(
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._save(record, before, list(keys), digests, first)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save(
        self,
        record: SavedRecord,
        before: bytes,
        keys: list[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        if not await self._host.save(record, before, keys, digests(first), first):
            record.id = secrets.token_bytes(ID_BYTES)  # another worker continued it
            await self._host.save(record, b"", keys, digests(0), 0)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def hear(self, news: bytes, age: float) -> None:
        for listener in self._listeners:
            listener(news, age)

    # Values stay in the worker that has them, and are asked for: most never are.

    async def get(self, name: str) -> bytes | None:
        return await self._host.find_value(name)

    def provide(self, find: Callable[[str], bytes | None]) -> bool:
        self._values.append(find)
        return True

    async def find_value(self, name: str) -> bytes | None:
        found = (find(name) for find in self._values)
        return next((value for value in found if value is not None), None)


_NO_LIMIT = MinuteLimit()


class RemoteWriter:
    """Makes the rows of a worker in a thread, for the audit log in the other process."""

    def __init__(self, host: ToHost, store: RemoteStore, epoch: int) -> None:
        self._host = host
        self._store = store
        self._loop = asyncio.get_running_loop()
        self.epoch = epoch
        self.head, self.first_row = ChainHead(0, ""), 0
        self.errors: deque[AuditError] = deque()
        self.on_durable: Callable[[Sequence[str]], None] | None = None
        self.left_out: frozenset[str] = frozenset()
        self._rows = GroupCommit[PendingRow](
            "anaphora rows", self._send, lambda *_: None, collect=_COLLECT
        )

    def start(self) -> None:
        self._rows.start()

    @property
    def failing(self) -> str | None:
        return self._store.state.audit_problem

    problem = failing

    @property
    def is_full(self) -> bool:
        return self._store.state.audit_is_full

    def put(self, *rows: PendingRow) -> None:
        for row in rows:
            self._rows.put(row)

    def _send(self, rows: list[PendingRow]) -> None:
        made = []
        for make in rows:
            try:
                row = make()
                assert isinstance(row, AuditEnvelope)
                made.append(
                    EncodedRow(
                        at=row.at, call_id=row.call_id, attempts=row.attempts, body=encode(row)
                    )
                )
            except Exception as problem:
                log(logging.ERROR, f"an audit row was not made: {type(problem).__name__}", problem)
        self._loop.call_soon_threadsafe(self._host.add_rows, made)

    def flush(self, timeout: float | None = None) -> None: ...

    def close(self) -> None:
        """Sends what is queued."""
        self._rows.close()
