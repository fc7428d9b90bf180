"""The store, the shared state and the audit log of a worker: each asks the process that keeps them
(`hosting`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anaphora.audit.chain import ChainHead
from anaphora.audit.envelope import AuditEnvelope, EncodedRow, encode
from anaphora.audit.group_commit import GroupCommit
from anaphora.audit.writer import LogWriter, PendingRow
from anaphora.bounded import BoundedMap
from anaphora.client.failures import log
from anaphora.daemon.shared_state import (
    ID_BYTES,
    Listener,
    LocalState,
    MinuteWindows,
    SavedRecord,
    SharedState,
)
from anaphora.daemon.shared_state.windows import NO_LIMIT, MinuteLimit, Taken
from anaphora.daemon.store import (
    HandleRow,
    Hold,
    IsUnsent,
    RecoveredHolds,
    Settlement,
    SpendLimits,
    all_sent,
)
from anaphora.daemon.store.interface import Store

from .channel import remote, sent
from .messages import StoreState, ToHost

#: Seconds for which audit rows are collected.
_COLLECT = 0.05
#: Records whose answer, if there is one, has not arrived for sure.
_MOST_SAVED = 32


#: Methods of the store that a worker calls as they are.
STORE_METHODS = (
    "hold", "settle", "spent", "spent_by_app", "spent_by_group", "budgets", "spend",
    "spend_by_hour", "held", "entries", "correct", "tokens", "narrowed",
    "count_narrowed", "remove_unused_budgets", "add_token", "reserve", "change_token",
    "add_handle", "handle", "own_handles", "handles", "grow_handle", "remove_handle",
    "remove_old_handles",
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

    async def hold(self, hold: Hold, limits: SpendLimits) -> float:
        try:
            return await self._hold(hold, limits)
        except asyncio.CancelledError:  # it is accepted or refused later
            self._host.abandon(hold.id)
            raise

    _hold = remote(Store.hold)
    settle = remote(Store.settle)
    spent = remote(Store.spent)
    spent_by_app = remote(Store.spent_by_app)
    spent_by_group = remote(Store.spent_by_group)
    budgets = remote(Store.budgets)
    spend = remote(Store.spend)
    spend_by_hour = remote(Store.spend_by_hour)
    held = remote(Store.held)
    entries = remote(Store.entries)
    correct = remote(Store.correct)
    tokens = remote(Store.tokens)
    narrowed = remote(Store.narrowed)
    count_narrowed = remote(Store.count_narrowed)
    remove_unused_budgets = remote(Store.remove_unused_budgets)
    add_token = remote(Store.add_token)
    reserve = remote(Store.reserve)
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


class RemoteState(LocalState):
    """The shared state, for a worker: its limits are in the memory of all workers."""

    alone = False

    def __init__(self, host: ToHost, windows: MinuteWindows) -> None:
        super().__init__(windows=windows)
        self._host = host
        self.channel = host.channel
        self._listeners: list[Listener] = []
        self._values: list[Callable[[str], bytes | None]] = []
        self._saved = BoundedMap[bytes, Callable[[], None]](_MOST_SAVED)
        """How to save the last records again, by their ids."""

    async def take(
        self,
        name: str,
        limit: MinuteLimit,
        tokens: int,
        *,
        seconds: float = 0.0,  # noqa: ARG002
    ) -> Taken:
        if limit == NO_LIMIT:  # nothing to count
            return Taken(name, 0, tokens)
        return await super().take(name, limit, tokens)

    def count(self, name: str, at: float) -> None:  # noqa: ARG002
        self._windows.take(name, NO_LIMIT, 0, self._clock())

    async def find(
        self,
        keys: Sequence[bytes],
        counted: str = "",
        at: float = 0.0,  # noqa: ARG002
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        found, _ = await self._find(keys)
        return found, self._windows.requests(counted, self._clock()) if counted else 0

    _find = remote(SharedState.find)
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
        names = list(keys)
        self._saved[record.id] = lambda: self._save_again(record, names, digests)
        self._host.save(record, before, names, digests(first), first)

    def not_saved(self, id: bytes) -> None:
        if (again := self._saved.pop(id, None)) is not None:
            again()

    def _save_again(
        self, record: SavedRecord, keys: list[bytes], digests: Callable[[int], bytes]
    ) -> None:
        """As a record of its own: another worker has continued the conversation."""
        record.id = secrets.token_bytes(ID_BYTES)
        self._host.save(record, b"", keys, digests(0), 0)

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


class RemoteWriter(LogWriter):
    """Makes the rows of a worker in a thread, for the audit log in the other process."""

    def __init__(self, host: ToHost, epoch: int) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.epoch = epoch
        self.head, self.first_row = ChainHead(0, ""), 0
        self.errors, self.failing, self._closing = deque(), None, False
        self.state = StoreState()
        self._rows = GroupCommit[PendingRow](
            "anaphora rows", self._send, lambda *_: None, collect=_COLLECT
        )

    def start(self) -> None:
        self._rows.start()

    @property
    def is_full(self) -> bool:
        return self.state.audit_is_full

    def use(self, state: StoreState) -> None:
        self.state, self.failing = state, state.audit_problem

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
