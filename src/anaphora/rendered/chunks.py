"""Rendered: the effective prompt as chunks in the provider's hash order, without markers.

A chunk's glue leads it (the comma, the opening of a message or of a section); closing brackets are
part of the envelope. So the chunks of one turn are a prefix of the next turn's, byte for byte, even
if a new message is merged into the last one.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from weakref import ref

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.values import Notice, Section, SegmentRole, Ttl
from anaphora.values.stability import Kind

from .log import ChunkLog
from .plan import Envelope, Mark

#: The label of a block whose text was dropped.
NOT_KEPT_LABEL = "no longer kept"
#: In place of the text of such a block: a byte that no JSON has.
_NOT_KEPT = b"\0"


def not_kept(key: int, size: int) -> bytes:
    """A placeholder for a block whose text was dropped; `key` has 64 bits."""
    return (_NOT_KEPT + key.to_bytes(8, "big", signed=True)).ljust(size, _NOT_KEPT)[: max(1, size)]


def is_placeholder(data: bytes) -> bool:
    return _NOT_KEPT in data


class DeferredTool(msgspec.Struct, frozen=True, gc=False):
    """A tool that is in the body, but not in the prompt until a block of a message refers to it: no
    chunk, so it is neither hashed nor marked nor counted."""

    name: str
    before: int
    """The index of the chunk in its run that follows it."""
    data: bytes
    """With the comma that separates it from its neighbour."""


class ChunkRun(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Chunks that were rendered together: the tools, the system blocks, or one segment."""

    section: Section
    log: ChunkLog
    count: int
    """How many chunks of the log belong to this run."""
    role: SegmentRole | None = None
    """The segment's role; None for tools and system blocks."""
    lead: bytes = b""
    """The glue before the first chunk, which depends on the run before."""
    close: bytes = b""
    """The bytes of the envelope after the run; not part of the cacheable bytes."""
    source: Any = None
    """The tools, blocks or messages that were rendered."""
    first_message: int = 0
    first_block: int = 0
    """The position of the first chunk: message on the wire, block in it."""
    place: str = ""
    """The name of the list in the body, if it differs from the section."""
    paths: tuple[str, ...] = ()
    """The path of each chunk, if the chunks are not in one list."""
    blocks: str = "content"
    """The name of a message's list of blocks."""
    before: str | None = None
    after: str | None = None
    """The wire roles before and after the run when it was rendered."""
    deferred: tuple[DeferredTool, ...] = ()

    @property
    def size(self) -> int:
        return len(self.lead) + self.log.start(self.count)

    @property
    def volatile(self) -> bool:
        return self.role is SegmentRole.VOLATILE_TAIL

    @property
    def last_role(self) -> str:
        return self.log.role_of(self.count - 1)

    def without_text(self) -> ChunkRun:
        log = self.log
        if log.base is log or not log.has_text:
            return self
        if self.section == "messages":
            return replace(self, log=log.without_text())
        # Tools and system blocks are mostly those of other calls.
        known: ref[ChunkRun] | None = log.base.run
        run = None if known is None else known()
        if run is None or run.lead != self.lead or run.log.keys is not log.keys:
            run = replace(self, log=log.without_text())
            log.base.run = ref(run)
        return run

    def offset(self, chunk: int) -> int:
        """Where a chunk begins, glue included, from the start of the run."""
        return len(self.lead) + self.log.start(chunk) if chunk else 0

    def label(self, chunk: int) -> str:
        if self.section != "messages":
            return self.log.labels[chunk]
        message_id = self.log.ids[self.log.message_of(chunk)]
        assert self.role is not None
        return f"{self.role.value} {message_id}"

    def position(self, chunk: int) -> tuple[int, int]:
        opened = self.log.wire_message_of(chunk)
        block = chunk - self.log.opens[opened]
        return self.first_message + opened, block + (self.first_block if opened == 0 else 0)

    def path(self, chunk: int) -> str:
        """The JSON path of a chunk in the request body."""
        if self.paths:
            return self.paths[chunk]
        if self.section != "messages":
            return f"{self.place or self.section}[{chunk}]"
        message, block = self.position(chunk)
        return f"{self.place or self.section}[{message}].{self.blocks}[{block}]"

    def find(self, message_id: str) -> range | None:
        """The chunks of a source message of this run, else None. They end after `count` if the
        message is left out of the run for this turn."""
        position = self.log.position_of(message_id)
        if position is None or position >= len(self.source):
            return None
        return self.log.chunks_of(position)

    def notices(self) -> list[Notice]:
        if not self.log.notices:
            return []
        return [notice for index, notice in self.log.notices if index < len(self.source)]

    def __repr__(self) -> str:
        return (
            f"<ChunkRun of {self.count} chunks, {self.role.value if self.role else self.section}>"
        )


class Chunk(msgspec.Struct, frozen=True):
    """One block of the prompt, as sent."""

    index: int
    """Position among all chunks of the prompt."""
    kind: Kind
    label: str
    path: str
    data: bytes
    """Glue and block, without marker."""
    splice: int | None
    """The offset of a marker in `data`; None if none is allowed."""
    section: Section
    role: SegmentRole | None
    message_id: str | None


class Rendered(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A call rendered for one wire: the input of the planner and of `assemble`."""

    wire: str
    model: str
    runs: tuple[ChunkRun, ...]
    """In hash order; none is empty."""
    cacheable: int
    """The number of leading chunks that the next turn may reuse: up to the first volatile chunk, or
    the first dynamic one that differs from the turn before."""
    envelope: Envelope
    body_order: tuple[int, ...] | None = None
    """The runs in the order of the body, if that is not the hash order."""
    markers: Mapping[Ttl, bytes]
    """The bytes of a marker, inserted at a chunk's splice."""
    request_markers: Mapping[Ttl, bytes] = {}
    """The bytes that request an automatic breakpoint, inserted before the envelope's tail."""
    only_marks: bytes | None = None
    """The bytes that request no automatic breakpoint; None if that is not possible."""
    key_place: bytes | str | None = None
    """The place of the planner's cache key: the bytes before it in the body, or a header's name.
    None if no key may be sent, or the caller has chosen one."""
    marks: tuple[Mark, ...] = ()
    """The caller's marks."""
    automatic: Ttl | None = None
    """The caller requests an automatic breakpoint."""
    frozen: int | None = None
    """The last chunk of the frozen region."""
    frozen_with: bytes | None = None
    """The settings that a cache handle freezes; None: the wire has no handles."""
    messages_cacheable: bool = True
    message_ttl: Ttl | None = None
    """The TTL that the caller requests inside the history; None: the planner chooses."""
    bytes_per_token: float = 4.0
    """Bytes of text per token, by the catalog."""
    bills: tuple[tuple[int, int], ...] = ()
    """(estimated, billed) tokens earlier in the conversation."""
    notices: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        return f"<Rendered {self.model} on {self.wire}: {len(self)} chunks, {self.size} bytes>"

    @property
    def size(self) -> int:
        """The bytes of all chunks; the body adds markers, closing brackets and parameters."""
        size = 0
        for run in self.runs:
            size += len(run.lead) + (run.log.ends[run.count - 1] if run.count else 0)
        return size

    def __len__(self) -> int:
        count = 0
        for run in self.runs:
            count += run.count
        return count

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(len(self)))

    def locate(self, chunk: int) -> tuple[ChunkRun, int]:
        """The run of a chunk, and its position there."""
        for run in self.runs:
            if chunk < run.count:
                return run, chunk
            chunk -= run.count
        raise IndexError("chunk index out of range")

    def chunk(self, index: int) -> Chunk:
        run, position = self.locate(index)
        log = run.log
        lead = run.lead if position == 0 else b""
        begin, splice = log.start(position), log.splices[position]
        data = lead + log.slice(begin, log.ends[position])
        in_messages = run.section == "messages"
        return Chunk(
            index=index,
            kind=log.kinds[position],
            label=run.label(position),
            path=run.path(position),
            data=data,
            splice=None if splice < 0 else len(lead) + splice - begin,
            section=run.section,
            role=run.role,
            message_id=log.ids[log.message_of(position)] if in_messages else None,
        )

    def chunk_data(self, index: int) -> bytes:
        """The bytes of a chunk, glue and block."""
        run, position = self.locate(index)
        data = run.log.slice(run.log.start(position), run.log.ends[position])
        return data if position else run.lead + data

    def is_sent(self, chunk: int) -> bool:
        """False for chunks of a stored response: hashed, but not in the body."""
        if self.body_order is None:
            return True
        run, _ = self.locate(chunk)
        return any(self.runs[index] is run for index in self.body_order)

    def offset(self, chunk: int) -> int:
        """The byte at which a chunk begins; for the chunk after the last, the size."""
        offset = 0
        for run in self.runs:
            if chunk <= run.count:
                return offset + run.offset(chunk)
            offset += len(run.lead) + run.log.start(run.count)
            chunk -= run.count
        if not self.runs and not chunk:
            return 0  # a request without a prompt
        raise IndexError("chunk index out of range")

    def at_offset(self, offset: int) -> int:
        """The chunk that holds this byte of the prompt."""
        index = 0
        for run in self.runs:
            if offset < run.size:
                return index + bisect_right(run.log.ends, max(0, offset - len(run.lead)))
            offset -= run.size
            index += run.count
        raise IndexError("byte offset out of range")

    def data(self, chunks: int | None = None) -> bytes:
        """The bytes of the first `chunks` chunks, or of all."""
        return self.data_from(0, len(self) if chunks is None else chunks)

    def data_from(self, first: int, end: int) -> bytes:
        """The bytes of the chunks from one up to another."""
        pieces: list[bytes | memoryview] = []
        for run in self.runs:
            low, high = max(0, first), min(end, run.count)
            if low < high:
                log = run.log
                pieces += b"" if low else run.lead, log.view(log.start(low), log.start(high))
            first, end = first - run.count, end - run.count
        return b"".join(pieces)

    @property
    def has_text(self) -> bool:
        return all(run.log.has_text for run in self.runs)

    @property
    def can_drop_text(self) -> bool:
        for run in self.runs:  # noqa: SIM110
            if run.log.base is run.log:
                return False
        return True

    def without_text(self, *, leading: bool = True) -> Rendered:
        """What is remembered of a prompt: its chunks and parameters, without text that can be
        dropped. `leading`: also without that of tools and system blocks."""
        runs = tuple(
            [
                run.without_text() if leading or run.section == "messages" else run
                for run in self.runs
            ]
        )
        envelope = replace(self.envelope, head=b"", tail=b"", plain=None)
        return replace(self, runs=runs, envelope=envelope)

    def stretches(self, chunks: int) -> Stretches:
        """The stretches of the first chunks, without a copy of their bytes."""
        stretches = []
        for run in self.runs:
            count = min(chunks, run.count)
            if not count:
                break
            stretches.append((run.lead, run.log, count))
            chunks -= count
        return tuple(stretches)

    def digest(self, chunks: int) -> bytes:
        """BLAKE3 over the first chunks; bytes of earlier turns are not hashed again."""
        return digest(self.stretches(chunks))

    def cacheable_data(self) -> bytes:
        """The bytes that the next turn must begin with."""
        return self.data(self.cacheable)


# ── Hashes of growing logs ───────────────────────────────────────────────────────────────────────

#: Consecutive stretches of logs: the glue before each, the log, and the number of chunks.
Stretches: TypeAlias = tuple[tuple[bytes, ChunkLog, int], ...]


def digest(stretches: Stretches) -> bytes:
    """BLAKE3 over the stretches. Bytes that an earlier call hashed after the same beginning are not
    hashed again."""
    if not stretches:
        return blake3().digest()
    *before, (lead, log, count) = stretches
    return _hash_of(log).digest(tuple(before), lead, log, count)


def same_bytes(one: Stretches, two: Stretches) -> bool:
    """Whether the stretches hold the same bytes; those of one log are not read."""
    if len(one) != len(two):
        return _joined(one) == _joined(two)
    for (lead, mine, count), (other_lead, other, other_count) in zip(one, two, strict=True):
        if count != other_count or lead != other_lead:
            return _joined(one) == _joined(two)  # divided differently
        if mine.base is not other.base:
            end = other.start(count)
            if mine.start(count) != end or not mine.begins_with(other.view(0, end)):
                return False
    return True


def _joined(stretches: Stretches) -> bytes:
    return b"".join([lead + log.slice(0, log.start(count)) for lead, log, count in stretches])


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
        kept = tuple([(glue, each.base, chunks) for glue, each, chunks in before])
        if self._before != kept or self._lead != lead:
            self._state = self._separate(before, lead, log, 0)
            self._before, self._lead, self._reached, self._digests = kept, lead, 0, {}
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
    return _hash_of(log).state(tuple(before), lead, log, count)


def _hash_of(log: ChunkLog) -> RunningHash:
    if log.hashing is None:
        log.hashing = RunningHash()
    hashing: RunningHash = log.hashing
    return hashing
