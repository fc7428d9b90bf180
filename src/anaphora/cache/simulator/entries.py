"""Prefixes that a provider keeps: found by key, gone when their time is over, never too many."""

from __future__ import annotations

import heapq
from collections.abc import Hashable

import msgspec

from anaphora.values import TTL_SECONDS, Ttl

#: More than any account keeps at a time; the bound is for those who simulate for ever.
MOST = 200_000


class Entry(msgspec.Struct):
    """One prefix: how long it lives, from when it can be read."""

    ttl: Ttl
    expires: float
    readable: float
    written: float


class Entries:
    """All prefixes of one account. Every operation costs the same however many there were."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: dict[Hashable, Entry] = {}
        self._queue: list[tuple[float, int, Hashable]] = []
        self._count = 0
        self._most = most

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Entry | None:
        """The entry of that key, alive or not: what died is remembered for a while."""
        return self._entries.get(key)

    def write(self, key: Hashable, ttl: Ttl, at: float, readable: float) -> None:
        """Makes an entry that lives for its TTL. One that would live longer stays."""
        old = self._entries.get(key)
        expires = at + TTL_SECONDS[ttl]
        if old is not None and old.expires > at:
            if expires > old.expires:
                old.expires, old.ttl = expires, ttl
            return
        entry = self._entries[key] = Entry(ttl, expires, readable, at)
        if old is None:
            self._wait(key, entry)

    @staticmethod
    def refresh(entry: Entry | None, at: float) -> None:
        """A read gives an entry its whole life again."""
        if entry is not None and (expires := at + TTL_SECONDS[entry.ttl]) > entry.expires:
            entry.expires = expires

    def purge(self, at: float) -> None:
        """Forgets what has been dead for as long as it had to live, and what is too much."""
        queue, entries = self._queue, self._entries
        while queue and (queue[0][0] < at or len(entries) > self._most):
            noted, _, key = heapq.heappop(queue)
            entry = entries[key]
            if _forgotten(entry) > noted:
                self._wait(key, entry)  # it was used since: others go first
            else:
                del entries[key]

    def _wait(self, key: Hashable, entry: Entry) -> None:
        self._count += 1
        heapq.heappush(self._queue, (_forgotten(entry), self._count, key))


def _forgotten(entry: Entry) -> float:
    return entry.expires + TTL_SECONDS[entry.ttl]
