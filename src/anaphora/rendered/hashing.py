"""A BLAKE3 that runs along with a log: what was hashed once is not hashed again."""

from __future__ import annotations

import threading

from blake3 import blake3


class Hashed:
    """A BLAKE3 state and its digest so far. The state is read (copied), never advanced."""

    __slots__ = ("digest", "state")

    def __init__(self, state: blake3, digest: bytes) -> None:
        self.state = state
        self.digest = digest

    @classmethod
    def nothing(cls) -> Hashed:
        state = blake3()
        return cls(state, state.digest())


class RunningHash:
    """The hash of a growing buffer behind a given beginning (what stands before it, and the glue).

    One state runs ahead with the newest view. A view older than that is hashed apart, and every
    digest that was ever asked for is kept. Another beginning starts all over.
    """

    __slots__ = ("_beginning", "_digests", "_last", "_lock", "_reached", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beginning = b""
        self._state: blake3 | None = None
        self._reached = 0
        self._digests: dict[int, bytes] = {}
        self._last: Hashed | None = None

    def through(self, before: Hashed, lead: bytes, buffer: memoryview, end: int) -> Hashed:
        """The hash up to byte `end`, ready to be continued by whoever comes next."""
        with self._lock:
            digest = self._digest(before, lead, buffer, end)
            if self._last is None or self._last.digest != digest:
                if self._state is not None and self._reached == end:
                    state = self._state.copy()
                else:
                    state = _apart(before, lead, buffer, end)
                self._last = Hashed(state, digest)
            return self._last

    def digest(self, before: Hashed, lead: bytes, buffer: memoryview, end: int) -> bytes:
        with self._lock:
            return self._digest(before, lead, buffer, end)

    def _digest(self, before: Hashed, lead: bytes, buffer: memoryview, end: int) -> bytes:
        beginning = before.digest + lead
        if self._state is None or self._beginning != beginning:
            self._beginning, self._reached, self._digests = beginning, 0, {}
            self._state = _apart(before, lead, buffer, 0)
        known = self._digests.get(end)
        if known is not None:
            return known
        if end < self._reached:
            digest = _apart(before, lead, buffer, end).digest()
        else:
            self._state.update(buffer[self._reached : end])
            self._reached = end
            digest = self._state.digest()
        self._digests[end] = digest
        return digest


def _apart(before: Hashed, lead: bytes, buffer: memoryview, end: int) -> blake3:
    state = before.state.copy()
    state.update(lead)
    state.update(buffer[:end])
    return state
