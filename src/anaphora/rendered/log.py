"""The chunk log: rendered bytes that only grow, and where each chunk ends.

Rendering a turn appends to the log; everything rendered before stays where it is, is not copied,
and is not hashed again. Many `ChunkRun`s view one log, each with a length of its own, just as many
conversations view one list of messages.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from itertools import count
from typing import Any

from blake3 import blake3

from anaphora.values import CachePolicy, Ttl

from .addition import LogAppend
from .hashing import RunningHash


class ChunkLog:
    """Chunks in the order they were rendered. Positions count chunks, offsets count bytes."""

    __slots__ = (
        "_lock",
        "__weakref__",
        "_hashing",
        "_placed",
        "_positions",
        "buffer",
        "contextual",
        "ends",
        "first_image",
        "ids",
        "keys",
        "kinds",
        "labels",
        "message_ends",
        "notices",
        "odd",
        "opens",
        "policies",
        "roles",
        "source",
        "splices",
    )

    def __init__(self, first: LogAppend | None = None) -> None:
        """A log that begins with an addition: what is in there is the log's from now on."""
        if first is None:
            first = LogAppend()
        ends, splices = first.places(0)
        self.buffer = bytearray().join(first.pieces)  # a long prompt is copied once, not twice
        self.ends = array("Q", ends)
        """Byte offset at which each chunk ends."""
        self.splices = array("q", splices)
        """Byte offset at which a marker goes into each chunk; -1 where none may."""
        self.kinds = first.kinds
        self.keys: tuple[bytes, list[bytes]] | None = None
        """What simulators know the blocks by, as far as one has asked: what stood before the log,
        and a key for the prefix that ends with each block."""
        self.first_image: tuple[int, int | None] = (0, None)
        """How many chunks were searched for images, and the first one with an image."""
        self.odd: Any = None
        """What the token estimator knows of the chunks that are not all text."""
        self.message_ends = array("Q", first.message_ends)
        """For each source message, how many chunks there are up to its end."""
        self.labels: tuple[str, ...] = ()
        """Of tools and system blocks: what each is called,"""
        self.policies: tuple[tuple[int, Ttl | None], ...] = ()
        """the runs with one cache policy (last chunk, TTL), empty where no block has one,"""
        self.source: object = None
        """and what they were rendered from."""
        self.ids = first.ids
        """The id of each source message."""
        self.opens = array("Q", first.opens)
        """The chunks that begin a message on the wire (sources of one role are merged)."""
        self.roles = first.roles
        """The wire role of each of them."""
        self.notices = first.notices
        """What could not be said, with the index of the source message."""
        self.contextual = first.contextual
        """Some message would be said otherwise between other neighbours."""
        self._lock = threading.Lock()
        self._hashing: RunningHash | None = None
        self._positions: dict[str, int] = {}
        """Message id -> index of the source message (the last one of that id),"""
        self._placed = 0
        """for the first so many messages: few turns ask, so it is made when one does."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        return len(self.buffer)

    @classmethod
    def of(cls, addition: LogAppend, labels: list[str], policies: list[CachePolicy]) -> ChunkLog:
        """A log of tools or system blocks: complete from the start."""
        log = cls(addition)
        log.labels = tuple(labels)
        if any(policy.is_cached for policy in policies):
            log.policies = tuple(
                (at, policy.ttl)
                for at, policy in enumerate(policies)
                if at + 1 == len(policies) or policies[at + 1] is not policy
            )
        return log

    def continued(self, at: int, messages: int) -> LogAppend:
        """An empty addition that goes behind the first `at` chunks (`messages` messages)."""
        addition = LogAppend()
        addition.first_chunk = at
        addition.first_message = messages
        return addition

    def append(self, addition: LogAppend) -> ChunkLog:
        """The log with the addition at its place. That is this log when nothing stands there yet,
        and a copy (a fork) when something does."""
        at, messages = addition.first_chunk, addition.first_message
        with self._lock:
            if at == len(self.ends) and messages == len(self.message_ends):
                self._extend(addition)
                return self
        forked = self._copy(at, messages)
        forked._extend(addition)
        return forked

    def start(self, chunk: int) -> int:
        """Byte offset at which a chunk begins."""
        return self.ends[chunk - 1] if chunk else 0

    def chunks_of(self, message: int) -> range:
        """The chunks of a source message."""
        first = self.message_ends[message - 1] if message else 0
        return range(first, self.message_ends[message])

    def message_of(self, chunk: int) -> int:
        """The source message a chunk came from."""
        return bisect_right(self.message_ends, chunk)

    def position_of(self, message_id: str) -> int | None:
        """The index of the source message of that id, the last one where there are several."""
        with self._lock:
            if self._placed < len(self.ids):
                self._positions.update(zip(self.ids[self._placed :], count(self._placed)))
                self._placed = len(self.ids)
            return self._positions.get(message_id)

    def wire_message_of(self, chunk: int) -> int:
        """Which message on the wire, counted within this log, a chunk stands in."""
        opens = self.opens
        if opens and opens[-1] <= chunk:
            return len(opens) - 1  # what a turn asks about is nearly always at the end
        return bisect_right(opens, chunk) - 1

    def slice(self, start: int, end: int) -> bytes:
        """A copy of some bytes; no view is left behind that would pin the buffer."""
        return bytes(memoryview(self.buffer)[start:end])

    @property
    def hashing(self) -> RunningHash:
        if self._hashing is None:
            self._hashing = RunningHash()
        return self._hashing

    def update(self, state: blake3, first: int, last: int) -> None:
        """Feeds the chunks from `first` up to `last` to a hash."""
        with memoryview(self.buffer) as view:
            state.update(view[self.start(first) : self.start(last)])

    def _extend(self, addition: LogAppend) -> None:
        data = b"".join(addition.pieces)
        ends, splices = addition.places(len(self.buffer))
        try:
            self.buffer += data
        except BufferError:
            # Somebody still reads a view of it, which pins its size: leave them theirs.
            self.buffer = self.buffer + data
        self.ends.fromlist(ends)
        self.splices.fromlist(splices)
        self.kinds += addition.kinds
        self.ids += addition.ids
        self.message_ends.fromlist(addition.message_ends)
        self.opens.fromlist(addition.opens)
        self.roles += addition.roles
        self.contextual |= addition.contextual
        self.notices += addition.notices

    def _copy(self, chunks: int, messages: int) -> ChunkLog:
        copy = ChunkLog()
        copy.buffer = self.buffer[: self.start(chunks)]
        copy.ends = self.ends[:chunks]
        copy.splices = self.splices[:chunks]
        copy.kinds = self.kinds[:chunks]
        copy.message_ends = self.message_ends[:messages]
        copy.ids = self.ids[:messages]
        opened = bisect_right(self.opens, chunks - 1) if chunks else 0
        copy.opens = self.opens[:opened]
        copy.roles = self.roles[:opened]
        copy.contextual = self.contextual
        copy.notices = [(at, notice) for at, notice in self.notices if at < messages]
        return copy
