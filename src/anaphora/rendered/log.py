"""The chunk log: rendered bytes that only grow, and where each chunk ends.

Rendering a turn appends to the log; everything rendered before stays where it is, is not copied,
and is not hashed again. Many `Run`s view one log, each with a length of its own, just as many
conversations view one list of messages.
"""

from __future__ import annotations

import enum
import threading
from array import array
from bisect import bisect_right

from blake3 import blake3

from anaphora.values import CachePolicy, Notice, Ttl

from .hashing import RunningHash


class Kind(enum.Enum):
    """What a chunk is, as far as cache rules care."""

    TOOL = "tool"
    SYSTEM = "system"
    TEXT = "text"
    IMAGE = "image"
    DOCUMENT = "document"
    AUDIO = "audio"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    THINKING = "thinking"
    OTHER = "other"


class ChunkLog:
    """Chunks in the order they were rendered. Positions count chunks, offsets count bytes."""

    __slots__ = (
        "_lock",
        "__weakref__",
        "_hashing",
        "buffer",
        "contextual",
        "ends",
        "ids",
        "kinds",
        "labels",
        "message_ends",
        "notices",
        "opens",
        "policies",
        "positions",
        "roles",
        "source",
        "splices",
    )

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ends = array("Q")
        """Byte offset at which each chunk ends."""
        self.splices = array("q")
        """Byte offset at which a marker goes into each chunk; -1 where none may."""
        self.kinds: list[Kind] = []
        self.message_ends = array("Q")
        """For each source message, how many chunks there are up to its end."""
        self.labels: tuple[str, ...] = ()
        """Of tools and system blocks: what each is called,"""
        self.policies: tuple[tuple[int, Ttl | None], ...] = ()
        """the runs that ask the same of the cache (last chunk, TTL),"""
        self.source: object = None
        """and what they were rendered from."""
        self.ids: list[str] = []
        """The id of each source message."""
        self.positions: dict[str, int] = {}
        """Message id -> index of the source message (the last one of that id)."""
        self.opens = array("Q")
        """The chunks that begin a message on the wire (sources of one role are merged)."""
        self.roles: list[str] = []
        """The wire role of each of them."""
        self.notices: list[tuple[int, Notice]] = []
        """What could not be said, with the index of the source message."""
        self.contextual = False
        """Some message would be said otherwise between other neighbours."""
        self._lock = threading.Lock()
        self._hashing: RunningHash | None = None

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        return len(self.buffer)

    @classmethod
    def of(cls, addition: Addition, labels: list[str], policies: list[CachePolicy]) -> ChunkLog:
        """A log of tools or system blocks: complete from the start."""
        log = cls()
        log._extend(addition)
        log.labels = tuple(labels)
        log.policies = tuple(
            (at, policy.ttl)
            for at, policy in enumerate(policies)
            if at + 1 == len(policies) or policies[at + 1] is not policy
        )
        return log

    def continued(self, at: int, messages: int) -> Addition:
        """An empty addition that goes behind the first `at` chunks (`messages` messages)."""
        addition = Addition()
        addition.size = self.start(at)
        addition.first_chunk = at
        addition.first_message = messages
        return addition

    def append(self, addition: Addition) -> ChunkLog:
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

    def wire_message_of(self, chunk: int) -> int:
        """Which message on the wire, counted within this log, a chunk stands in."""
        return bisect_right(self.opens, chunk) - 1

    def slice(self, start: int, end: int) -> bytes:
        """A copy of some bytes; no view is left behind that would pin the buffer."""
        with memoryview(self.buffer) as view, view[start:end] as part:
            return part.tobytes()

    @property
    def hashing(self) -> RunningHash:
        if self._hashing is None:
            self._hashing = RunningHash()
        return self._hashing

    def update(self, state: blake3, first: int, last: int) -> None:
        """Feeds the chunks from `first` up to `last` to a hash."""
        with memoryview(self.buffer) as view:
            state.update(view[self.start(first) : self.start(last)])

    def _extend(self, addition: Addition) -> None:
        data = b"".join(addition.pieces)
        try:
            self.buffer += data
        except BufferError:
            # Somebody still reads a view of it, which pins its size: leave them theirs.
            self.buffer = self.buffer + data
        self.ends.extend(addition.ends)
        self.splices.extend(addition.splices)
        self.kinds += addition.kinds
        for index, message_id in enumerate(addition.ids, len(self.ids)):
            self.positions[message_id] = index
        self.ids += addition.ids
        self.message_ends.extend(addition.message_ends)
        self.opens.extend(addition.opens)
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
        copy.positions = {message_id: at for at, message_id in enumerate(copy.ids)}
        opened = bisect_right(self.opens, chunks - 1) if chunks else 0
        copy.opens = self.opens[:opened]
        copy.roles = self.roles[:opened]
        copy.contextual = self.contextual
        copy.notices = [(at, notice) for at, notice in self.notices if at < messages]
        return copy


class Addition:
    """What a turn adds to a log, built apart and then appended at once."""

    __slots__ = (
        "contextual",
        "ends",
        "first_chunk",
        "first_message",
        "ids",
        "kinds",
        "message_ends",
        "notices",
        "opens",
        "pieces",
        "roles",
        "size",
        "splices",
    )

    def __init__(self) -> None:
        self.first_chunk = 0
        self.first_message = 0
        """Where in the log it goes: offsets and positions count from the log's beginning."""
        self.size = 0
        """Bytes up to its end, the log's before it included."""
        self.pieces: list[bytes] = []
        self.ends: list[int] = []
        self.splices: list[int] = []
        self.kinds: list[Kind] = []
        self.message_ends: list[int] = []
        self.ids: list[str] = []
        self.opens: list[int] = []
        self.roles: list[str] = []
        self.notices: list[tuple[int, Notice]] = []
        self.contextual = False

    def chunk(self, kind: Kind, data: bytes, splice: int | None) -> None:
        """One chunk, glue and all. `splice` counts back from its end: -1 is inside the closing
        brace, 0 behind it, None where no marker may go."""
        self.pieces.append(data)
        self.size += len(data)
        self.ends.append(self.size)
        self.splices.append(-1 if splice is None else self.size + splice)
        self.kinds.append(kind)

    def open(self, role: str) -> None:
        """The next chunk begins a message on the wire."""
        self.opens.append(self.first_chunk + len(self.ends))
        self.roles.append(role)

    def end_message(self, message_id: str) -> None:
        """All chunks of a source message are in."""
        self.ids.append(message_id)
        self.message_ends.append(self.first_chunk + len(self.ends))

    def notice(self, notice: Notice) -> None:
        """A remark on the source message that is being added."""
        self.notices.append((self.first_message + len(self.ids), notice))
