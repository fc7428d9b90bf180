"""The messages that a worker and the process of its store exchange, besides those of the store and
the shared state themselves."""

from __future__ import annotations

import msgspec

from anaphora.audit.envelope import EncodedRow
from anaphora.daemon.calls.steps.audit import BreakText
from anaphora.daemon.rpc.protocol import RequestKey
from anaphora.daemon.shared_state import SavedRecord
from anaphora.daemon.store import HandleRow, Settlement, TokenRow

from .channel import Channel, remote, sent, sent_later


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to begin. No secrets: it reads those in the home."""

    home: str
    host: str
    port: int
    allow_env_keys: bool
    ledger: str
    """The name of the ledger, and the slots of this worker in its file of marks."""
    slots: tuple[int, int]
    audit_epoch: int | None
    """None without an audit log."""
    is_node: bool
    """It opens a store and an audit log of its own, in PostgreSQL."""


class RelayedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that the process of the store answers."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    scheme: str
    client: tuple[str, int] | None
    server: tuple[str, int] | None
    peer: tuple[int, int, int] | None
    """Process, user and group at the other end of the Unix socket."""


class StoreState(msgspec.Struct, frozen=True, array_like=True):
    """What all workers must know."""

    problem: str | None = None
    """Why the store cannot be written."""
    audit_problem: str | None = None
    audit_is_full: bool = False
    """No more rows can wait for the audit log."""


class ToHost:
    """Messages of a worker, besides those of the store and the shared state."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @remote
    async def welcome(self) -> Welcome:
        raise NotImplementedError

    @sent
    def listening(self) -> None:
        """It accepts connections."""

    @sent_later
    def settle_later(self, settlement: Settlement) -> None: ...

    @sent_later
    def add_handles_later(self, handles: list[HandleRow]) -> None: ...

    @sent_later
    def add_rows(self, rows: list[EncodedRow]) -> None: ...

    @sent_later
    def save(
        self, record: SavedRecord, before: bytes, keys: list[bytes], digests: bytes, first: int
    ) -> None:
        """Answered by `not_saved` if it was not."""

    @remote
    async def find_value(self, name: str) -> bytes | None:
        """A value that another worker has."""
        raise NotImplementedError

    @sent
    def abandon(self, hold: str) -> None:
        """The caller of a hold was cancelled: nothing is sent for it."""

    @remote
    async def cancel(self, app: str, connection: str, key: RequestKey) -> bool:
        """`llm.cancel`, for the requests of the other workers."""
        raise NotImplementedError

    @sent
    def add_text(self, request_id: str, text: BreakText) -> None: ...

    @sent
    def begin_relay(self, number: int, request: RelayedRequest) -> None: ...

    @remote
    async def relay_body(self, number: int, piece: bytes, more: bool) -> None: ...

    @sent
    def end_relay(self, number: int) -> None:
        """The client has gone."""


class ToWorker:
    """Messages to a worker."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @sent
    def note(self, state: StoreState) -> None: ...

    @sent
    def hang_up(self) -> None: ...

    @sent
    def stop(self, delay: float) -> None: ...

    @sent
    def hurry(self) -> None: ...

    @remote
    async def change_token(self, row: TokenRow) -> None:
        """Returns when it is in force."""

    @sent
    def hear(self, news: bytes, age: float) -> None: ...

    @sent
    def not_saved(self, record: bytes) -> None:
        """Another worker has continued the conversation."""

    @sent
    def free(self, holds: list[str]) -> None:
        """Their settlements are durable."""

    @remote
    async def cancel(self, app: str, connection: str, key: RequestKey) -> bool:
        raise NotImplementedError

    @remote
    async def metrics(self) -> bytes:
        raise NotImplementedError

    @remote
    async def find_value(self, name: str) -> bytes | None:
        raise NotImplementedError

    @remote
    async def relay_start(
        self, number: int, status: int, headers: list[tuple[bytes, bytes]]
    ) -> None: ...

    @remote
    async def relay_piece(self, number: int, piece: bytes, more: bool) -> None: ...

    @sent
    def relay_failed(self, number: int) -> None:
        """The response ends before it is complete."""
