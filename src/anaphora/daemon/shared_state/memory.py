"""The state that the workers of one daemon share, in the memory of the process that keeps their
store. As in Redis, each record is found by the digests of prompts, and has no text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from anaphora.bounded import BoundedMap

from . import DIGEST_BYTES, Listener, LocalState, SavedRecord
from .windows import NO_LIMIT, MinuteWindows

#: Maximum bytes of records; the least recently used are dropped first.
_MOST_BYTES = 64 * 1024 * 1024
#: Bytes of a record and of a pointer to it in memory, besides their content.
_RECORD_BYTES, _POINTER_BYTES = 500, 150
#: Records that are found at a time.
_MOST_FOUND = 4


class _Record(msgspec.Struct, frozen=True):
    version: bytes
    data: bytes
    digests: bytes
    keys: tuple[bytes, ...]
    """Those of the last call."""
    earlier: tuple[bytes, ...]
    """Those of the call before."""

    @property
    def size(self) -> int:
        pointers = len(self.keys) + len(self.earlier)
        return _RECORD_BYTES + len(self.data) + len(self.digests) + pointers * _POINTER_BYTES


class HostedState(LocalState):
    """Used from one event loop."""

    alone = False

    def __init__(self, windows: MinuteWindows, *, nodes: Callable[[], int] = lambda: 1) -> None:
        super().__init__(nodes=nodes, windows=windows)
        self._ids: dict[bytes, bytes] = {}
        """Ids of records, by the keys that they are found by."""
        self._records = BoundedMap[bytes, _Record](
            most_size=_MOST_BYTES, size_of=lambda one: one.size, on_drop=self._dropped
        )
        self._listeners: list[Listener] = []

    def count(self, name: str, at: float) -> None:  # noqa: ARG002
        self._windows.take(name, NO_LIMIT, 0, self._clock())

    async def find(
        self,
        keys: Sequence[bytes],
        counted: str = "",
        at: float = 0.0,  # noqa: ARG002
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        found: dict[bytes, tuple[int, SavedRecord]] = {}
        for index, key in enumerate(keys):
            id = self._ids.get(key)
            if id is None or id in found:
                continue
            record = self._records.use(id)
            if record is not None:
                found[id] = index, SavedRecord(id, record.version, record.data)
                if len(found) == _MOST_FOUND:
                    break
        calls = self._windows.requests(counted, self._clock()) if counted else 0
        return list(found.values()), calls

    def replace(
        self, record: SavedRecord, before: bytes, keys: Sequence[bytes], digests: bytes, first: int
    ) -> bool:
        """Saves a record. False if its version is not `before`, or fewer than `first` chunks are
        known."""
        known = self._records.get(record.id)
        version, saved = (b"", b"") if known is None else (known.version, known.digests)
        if version != before or len(saved) < first * DIGEST_BYTES:
            return False
        end = first * DIGEST_BYTES
        saved = saved[:end] + digests + saved[end + len(digests) :]
        earlier = () if known is None else known.keys
        for key in keys:
            self._ids[key] = record.id
        if known is not None:
            self._forget({*known.earlier} - {*earlier, *keys}, record.id)
        self._records[record.id] = _Record(record.version, record.data, saved, tuple(keys), earlier)
        return True

    async def digests(self, record: SavedRecord) -> bytes:
        known = self._records.get(record.id)
        return b"" if known is None else known.digests

    def _dropped(self, id: bytes, record: _Record) -> None:
        self._forget({*record.keys, *record.earlier}, id)

    def _forget(self, keys: set[bytes], id: bytes) -> None:
        for key in keys:
            if self._ids.get(key) == id:
                del self._ids[key]

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def tell(self, news: bytes, source: Listener | None = None) -> None:
        """Calls all listeners but `source`."""
        for listener in tuple(self._listeners):
            if listener is not source:
                listener(news, 0.0)
