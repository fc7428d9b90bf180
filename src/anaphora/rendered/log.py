"""The chunk log: an append-only buffer of rendered bytes, and the end of each chunk.

Rendering a turn appends to the log; everything rendered before stays where it is, is not copied,
and is not hashed again. Many `ChunkRun`s view one log, each with its own length, as many
conversations view one list of messages.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

import msgspec
from blake3 import blake3

from anaphora.values import CachePolicy, Notice, Ttl
from anaphora.values.stability import Kind
from anaphora.wording import counted

NewChunk: TypeAlias = tuple[Kind, int | None, bytes]
"""A chunk: its kind, its splice, and its data with the glue that leads it. The splice counts back
from the end: -1 is inside the closing brace, 0 after it, None if no marker is allowed."""

#: Bytes of a key, and the most characters of a label, since labels are remembered over calls.
KEY, MOST_LABEL = 16, 1000


class LogAppend(msgspec.Struct, eq=False):
    """Chunks to append to a log at once, and the messages that they come from."""

    first_chunk: int = 0
    first_message: int = 0
    """With `first_chunk`, its position in the log."""
    chunks: list[NewChunk] = []
    message_ends: list[int] = []
    ids: list[str] = []
    opens: list[int] = []
    roles: list[str] = []
    notices: list[tuple[int, Notice]] = []
    contextual: bool = False

    @property
    def message(self) -> int:
        """The index of the source message that is being added."""
        return self.first_message + len(self.ids)

    def chunk(self, kind: Kind, data: bytes, splice: int | None, opens: str | None = None) -> None:
        """One chunk. `opens` is the role of a message on the wire that begins with it."""
        if opens is not None:
            self.open(opens)
        self.chunks.append((kind, splice, data))

    def open(self, role: str) -> None:
        """The next chunk begins a message on the wire."""
        self.opens.append(self.first_chunk + len(self.chunks))
        self.roles.append(role)

    def end_message(self, message_id: str) -> None:
        """All chunks of a source message were added."""
        self.ids.append(message_id)
        self.message_ends.append(self.first_chunk + len(self.chunks))

    def notice(self, notice: Notice) -> None:
        """A notice on the source message that is being added."""
        self.notices.append((self.message, notice))

    def columns(self, start: int) -> tuple[Sequence[bytes], list[Kind], list[int], list[int]]:
        """The data and kind of each chunk, and the offsets of its end and its marker if the first
        begins at `start`."""
        columns: tuple[list[bytes], list[Kind], list[int], list[int]] = [], [], [], []
        pieces, kinds, ends, splices = columns
        for kind, splice, data in self.chunks:
            start += len(data)
            pieces.append(data)
            kinds.append(kind)
            ends.append(start)
            splices.append(-1 if splice is None else start + splice)
        return columns


class ChunkLog:
    """Chunks in the order they were rendered. Positions count chunks, offsets count bytes."""

    keys: tuple[bytes, bytearray] | None = None
    """Keys of the simulators: the prefix before the log, and those up to each block so far, one
    after the other."""
    hashes: array[int] | None = None
    """Hashes of the blocks so far, in this process (`compared_prompt.run_hashes`)."""
    first_image: tuple[int, int | None] = (0, None)
    """How many chunks were searched for images, and the first one with an image."""
    tool_references: tuple[int, tuple[tuple[int, tuple[str, ...]], ...]] = (0, ())
    """How many chunks were searched; the ends of those that refer to tools, and their names."""
    odd: Any = None
    """The token estimator's totals of chunks that are not all text."""
    leading: Any = None
    """For a log of messages: the simulators' view of the runs before it in the last prompt."""
    labels: tuple[str, ...] = ()
    """The labels of tools and system blocks."""
    policies: tuple[tuple[int, Ttl | None], ...] = ()
    """The runs with one cache policy (last chunk, TTL); empty if no block has one."""
    source: object = None
    """The tools or blocks that were rendered."""
    run: Any = None
    """The run of all of them, shared by calls."""
    bare: Any = None
    """Its view without text, shared by calls."""
    columns: Any = None
    """Its columns, shared by the calls whose text can be dropped."""
    hashing: Any = None
    """The running hash of these chunks after those before them; see chunks.py."""
    _placed = 0
    """The number of messages in `_positions`, which is filled on demand."""

    def __init__(self, first: LogAppend | None = None) -> None:
        """A log that begins with an addition, whose lists it takes over."""
        first = first or LogAppend()
        pieces, self.kinds, ends, splices = first.columns(0)
        self.buffer = bytearray().join(pieces)  # a long prompt is copied once, not twice
        self.ends = array("I", ends)
        """Byte offset at which each chunk ends."""
        self.splices = array("i", splices)
        """Byte offset of each chunk's marker; -1 if none is allowed."""
        self.message_ends = array("I", first.message_ends)
        """For each source message, the number of chunks up to its end."""
        self.ids = first.ids
        """The id of each source message."""
        self.opens = array("I", first.opens)
        """The chunks that begin a message on the wire (sources of one role are merged)."""
        self.roles = first.roles
        """The wire role of each of them."""
        self.notices = first.notices
        """Notices, with the index of the source message."""
        self.contextual = first.contextual
        """Whether a message would be rendered differently between other neighbours."""
        self._lock = threading.Lock()
        self._positions: dict[str, int] = {}
        """Message id -> index of the source message (the last one of that id)."""

    @property
    def base(self) -> ChunkLog:
        """The log that this one is a view of: the same chunks of two views with one base are equal.
        Mostly the log itself."""
        return self

    @property
    def has_text(self) -> bool:
        return True

    def without_text(self) -> ChunkLog:
        """The log without its text, if that can be dropped."""
        return self

    def __len__(self) -> int:
        return len(self.ends)

    @classmethod
    def of(cls, addition: LogAppend, labels: list[str], policies: list[CachePolicy]) -> ChunkLog:
        """A log of tools or system blocks: complete from the start."""
        log = cls(addition)
        log.labels = tuple([label[:MOST_LABEL] for label in labels])
        if any(policy.is_cached for policy in policies):
            log.policies = tuple(
                (index, policy.ttl)
                for index, policy in enumerate(policies)
                if index + 1 == len(policies) or policies[index + 1] is not policy
            )
        return log

    def append(self, addition: LogAppend) -> ChunkLog:
        """The log with the addition at its position: this log if it ends there, else a copy of its
        beginning (a fork)."""
        chunks, messages = addition.first_chunk, addition.first_message
        with self._lock:
            if chunks == len(self.ends) and messages == len(self.message_ends):
                self._extend(addition)
                return self
        forked = self._copy(chunks, messages)
        forked._extend(addition)
        return forked

    def start(self, chunk: int) -> int:
        return self.ends[chunk - 1] if chunk else 0

    def chunks_of(self, message: int) -> range:
        first = self.message_ends[message - 1] if message else 0
        return range(first, self.message_ends[message])

    def message_of(self, chunk: int) -> int:
        return bisect_right(self.message_ends, chunk)

    def position_of(self, message_id: str) -> int | None:
        """The index of the source message of that id, the last one if there are several."""
        with self._lock:
            if self._placed < len(self.ids):
                self._positions.update(zip(self.ids[self._placed :], count(self._placed)))
                self._placed = len(self.ids)
            return self._positions.get(message_id)

    def wire_message_of(self, chunk: int) -> int:
        """The message on the wire, counted within this log, that a chunk is in."""
        opens = self.opens
        if opens and opens[-1] <= chunk:
            return len(opens) - 1  # nearly every lookup is at the end
        return bisect_right(opens, chunk) - 1

    def role_of(self, chunk: int) -> str:
        """The role on the wire of the message that holds a chunk."""
        return self.roles[self.wire_message_of(chunk)]

    def slice(self, start: int, end: int) -> bytes:
        """A copy of some bytes: a view would pin the buffer."""
        return bytes(memoryview(self.buffer)[start:end])

    def view(self, start: int, end: int) -> memoryview:
        """Some bytes without a copy, for a short time: a view pins the buffer."""
        return memoryview(self.buffer)[start:end]

    def begins_with(self, data: memoryview) -> bool:
        return self.buffer.startswith(data)

    def update(self, state: blake3, first: int, last: int) -> None:
        """Feed the chunks from `first` up to `last` to a hash."""
        ends = self.ends
        with self.view(ends[first - 1] if first else 0, ends[last - 1] if last else 0) as view:
            state.update(view)

    def _extend(self, addition: LogAppend) -> None:
        data = b"".join(self._extend_columns(addition))
        try:
            self.buffer += data
        except BufferError:
            # A live view pins the buffer's size: leave it to its readers.
            self.buffer = self.buffer + data

    def _extend_columns(self, addition: LogAppend) -> Sequence[bytes]:
        """Returns the text of the new chunks."""
        start = self.ends[-1] if self.ends else 0
        pieces, kinds, ends, splices = addition.columns(start)
        self.ends.fromlist(ends)
        self.splices.fromlist(splices)
        self.kinds += kinds
        self.ids += addition.ids
        self.message_ends.fromlist(addition.message_ends)
        self.opens.fromlist(addition.opens)
        self.roles += addition.roles
        self.contextual |= addition.contextual
        self.notices += addition.notices
        return pieces

    def _copy(self, chunks: int, messages: int) -> ChunkLog:
        copy = ChunkLog()
        copy.buffer = self.buffer[: self.start(chunks)]
        self._copy_columns(copy, chunks, messages)
        return copy

    def _copy_columns(self, copy: ChunkLog, chunks: int, messages: int) -> None:
        copy.ends = self.ends[:chunks]
        copy.splices = self.splices[:chunks]
        copy.kinds = self.kinds[:chunks]
        if self.keys is not None:
            copy.keys = self.keys[0], self.keys[1][: KEY * chunks]
        if self.base.hashes is not None:
            copy.hashes = self.base.hashes[:chunks]
        copy.message_ends = self.message_ends[:messages]
        copy.ids = self.ids[:messages]
        opened = bisect_right(self.opens, chunks - 1) if chunks else 0
        copy.opens = self.opens[:opened]
        copy.roles = self.roles[:opened]
        copy.contextual = self.contextual
        copy.notices = [(index, notice) for index, notice in self.notices if index < messages]


Piece = bytes | tuple[ChunkLog, int, int]


class Body:
    """The body of a request. `len()` is known without joining; `join()` gives the bytes.

    Iterating yields the slices without copying. A slice that is kept pins its buffer, and the next
    turn then has to copy that buffer; so do not keep slices.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return sum(
            len(piece) if isinstance(piece, bytes) else piece[2] - piece[1]
            for piece in self._pieces
        )

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._slices())

    def join(self) -> bytes:
        return b"".join(self._slices())

    def _slices(self) -> list[bytes | memoryview]:
        return [
            piece if isinstance(piece, bytes) else piece[0].view(piece[1], piece[2])
            for piece in self._pieces
        ]

    __bytes__ = join

    def __repr__(self) -> str:
        return f"<Body of {counted(len(self), 'byte')} in {counted(len(self._pieces), 'slice')}>"
