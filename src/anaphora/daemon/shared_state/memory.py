"""Shared state in the memory of one process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from time import monotonic

from msgspec.structs import replace

from . import DIGEST_BYTES, ID_BYTES, Listener, SavedRecord, SharedState
from .windows import MinuteLimit, MinuteWindows, Taken


class MemoryState(SharedState):
    """For a daemon of one node; of several `nodes`, each counts its share of a limit.
    `alone=False`: for several `CallMemory` of one process."""

    def __init__(
        self,
        *,
        nodes: Callable[[], int] = lambda: 1,
        alone: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.alone = alone
        self._nodes = nodes
        self._clock = clock
        self._windows = MinuteWindows()
        self._ids: dict[bytes, bytes] = {}
        self._records: dict[bytes, SavedRecord] = {}
        self._digests: dict[bytes, bytearray] = {}
        self._values: dict[str, bytes] = {}
        self._listeners: list[Listener] = []

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def take(
        self,
        name: str,
        limit: MinuteLimit,
        tokens: int,
        *,
        seconds: float = 0.0,  # noqa: ARG002
    ) -> Taken:
        return self._windows.take(name, limit.share(self._nodes()), tokens, self._clock())

    def correct(self, taken: Taken, tokens: int) -> None:
        self._windows.correct(taken, tokens)

    def release(self, taken: Taken) -> None:
        self._windows.release(taken)

    def count(self, name: str, at: float) -> None:
        if not self.alone:
            self._windows.take(name, MinuteLimit(), 0, at)

    async def find(
        self, keys: Sequence[bytes], counted: str = "", at: float = 0.0
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        found: dict[bytes, tuple[int, SavedRecord]] = {}
        for index, key in enumerate(keys):
            record = self._records.get(self._ids.get(key, b""))
            if record is not None:
                found.setdefault(record.id, (index, replace(record)))
        calls = self._windows.requests(counted, at) if counted else 0
        return list(found.values()), calls

    def save(
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        if self.alone:
            return
        known = self._records.get(record.id)
        if (b"" if known is None else known.version) != before:
            record.id, first = secrets.token_bytes(ID_BYTES), 0
        self._records[record.id] = replace(record)
        self._ids.update(dict.fromkeys(keys, record.id))
        kept = self._digests.setdefault(record.id, bytearray())
        kept[first * DIGEST_BYTES :] = digests(first)

    async def digests(self, record: SavedRecord) -> bytes:
        return bytes(self._digests.get(record.id, b""))

    async def get(self, name: str) -> bytes | None:
        return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        if not self.alone:
            self._values[name] = value

    def tell(self, news: bytes) -> None:
        for listener in self._listeners:
            listener(news, 0.0)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
