"""Incremental BLAKE3 over growing logs: no byte is hashed twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3

if TYPE_CHECKING:
    from .log import ChunkLog

#: Consecutive stretches of logs: the glue before each, the log, and the number of chunks.
Stretches: TypeAlias = "tuple[tuple[bytes, ChunkLog, int], ...]"


def digest(stretches: Stretches) -> bytes:
    """BLAKE3 over the stretches. Bytes that an earlier call hashed after the same beginning are not
    hashed again."""
    if not stretches:
        return blake3().digest()
    *before, (lead, log, count) = stretches
    return log.hashing.digest(tuple(before), lead, log, count)


class RunningHash:
    """The hash of a growing log after a given beginning.

    One state follows the newest view; an older view is hashed separately. Digests are kept. Another
    beginning resets everything.
    """

    __slots__ = ("_before", "_digests", "_lead", "_lock", "_reached", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: Stretches | None = None
        self._lead = b""
        self._state = blake3()
        self._reached = 0
        self._digests: dict[int, bytes] = {}

    def digest(self, before: Stretches, lead: bytes, log: ChunkLog, count: int) -> bytes:
        with self._lock:
            self._advance(before, lead, log, count)
            if count not in self._digests:
                self._digests[count] = self._state_at(before, lead, log, count).digest()
            return self._digests[count]

    def state(self, before: Stretches, lead: bytes, log: ChunkLog, count: int) -> blake3:
        """A copy of the state, to continue from."""
        with self._lock:
            self._advance(before, lead, log, count)
            return self._state_at(before, lead, log, count).copy()

    def _state_at(self, before: Stretches, lead: bytes, log: ChunkLog, count: int) -> blake3:
        return self._state if self._reached == count else self._separate(before, lead, log, count)

    def _advance(self, before: Stretches, lead: bytes, log: ChunkLog, count: int) -> None:
        # Logs compare by identity, so only the glue is compared by bytes.
        if self._before != before or self._lead != lead:
            self._state = self._separate(before, lead, log, 0)
            self._before, self._lead, self._reached, self._digests = before, lead, 0, {}
        if self._reached < count:
            log.update(self._state, self._reached, count)
            self._reached = count

    def _separate(self, before: Stretches, lead: bytes, log: ChunkLog, count: int) -> blake3:
        state = _state_after(before)
        state.update(lead)
        log.update(state, 0, count)
        return state


def _state_after(stretches: Stretches) -> blake3:
    if not stretches:
        return blake3()
    *before, (lead, log, count) = stretches
    return log.hashing.state(tuple(before), lead, log, count)
