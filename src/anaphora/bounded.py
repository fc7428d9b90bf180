"""A map with a limit, which drops the least recently used entries.

seen = BoundedMap[str, bytes](1000, most_size=1 << 20, size_of=len)
seen["a"] = b"…"        the newest entry; the oldest ones are dropped beyond a limit
seen.use("a")           the value, which becomes the newest entry; None if it is missing
seen.get("a")           the value alone
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(MutableMapping[K, V]):
    """Holds at most `most` entries, of at most `most_size` together; the newest stays in any
    case. Not for several threads at once."""

    __slots__ = ("_entries", "_most", "_most_size", "_on_drop", "_size_of", "size")

    def __init__(
        self,
        most: int | None = None,
        *,
        most_size: int | None = None,
        size_of: Callable[[V], int] | None = None,
        on_drop: Callable[[K, V], Any] | None = None,
    ) -> None:
        """`on_drop` gets each entry that is dropped for a limit, once it is out of the map."""
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._most = most
        self._most_size = most_size
        self._size_of = size_of
        self._on_drop = on_drop
        self.size = 0
        """The size of all entries, by `size_of`."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """From the oldest to the newest."""
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def use(self, key: K) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        if self._size_of is not None:
            self.size += self._size_of(value)
            if key in entries:
                self.size -= self._size_of(entries[key])
        entries[key] = value
        entries.move_to_end(key)
        while self._is_full():
            self._drop(*entries.popitem(last=False))

    def _is_full(self) -> bool:
        if self._most is not None and len(self._entries) > self._most:
            return True
        if self._most_size is None or len(self._entries) < 2:
            return False
        return self.size > self._most_size

    def _drop(self, key: K, value: V) -> None:
        if self._size_of is not None:
            self.size -= self._size_of(value)
        if self._on_drop is not None:
            self._on_drop(key, value)

    def __delitem__(self, key: K) -> None:
        value = self._entries.pop(key)
        if self._size_of is not None:
            self.size -= self._size_of(value)

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0
