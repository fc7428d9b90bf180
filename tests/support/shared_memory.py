"""What several nodes share, in the memory of one process: without Redis."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from anaphora.daemon.shared_state import (
    DIGEST_BYTES,
    ID_BYTES,
    Listener,
    LocalState,
    MinuteLimit,
    SavedRecord,
)


class MemoryState(LocalState):
    """For several `CallMemory` of one process."""

    alone = False

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[bytes, bytes] = {}
        self._records: dict[bytes, SavedRecord] = {}
        self._digests: dict[bytes, bytearray] = {}
        self._values: dict[str, bytes] = {}
        self._listeners: list[Listener] = []

    def count(self, name: str, at: float) -> None:
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
        self._values[name] = value

    def tell(self, news: bytes) -> None:
        for listener in self._listeners:
            listener(news, 0.0)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
