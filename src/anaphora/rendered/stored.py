"""Runs of chunks in stored form, so that a later process can compare its prompt with an earlier
one.

    stored, added = store_run(run, before)      `added` has the pieces that are not stored yet
    match_run(stored, rendered)                 the same bytes in a later prompt, as a view of it
    restore_run(stored, pieces)                 the run from its pieces, if a byte has changed

A run is stored as pieces of its log. A later call of a growing conversation adds one piece and
keeps the others; small neighbours are joined, so that a run of n calls has about log n pieces.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora.values import Conversation, Section, SegmentRole
from anaphora.values.stability import Kind

from .chunks import ChunkRun, Rendered, digest
from .log import ChunkLog, LogAppend

#: A packed piece that is shorter than this is stored inside the record that lists it.
_INLINE = 1024
#: The splice of a chunk that takes no marker; others count back from the chunk's end.
_NO_SPLICE = 1
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT

Count = Annotated[int, Meta(ge=0, lt=1 << 40)]


class LogPiece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive chunks of a log. Positions are counted from the first of them."""

    data: bytes
    sizes: list[int]
    splices: list[int]
    kinds: list[Kind]
    message_ends: list[int]
    ids: list[str]
    opens: list[int]
    roles: list[str]
    labels: list[str]

    def __post_init__(self) -> None:
        count = len(self.sizes)
        rising = (self.opens, self.message_ends)
        if (
            len(self.splices) != count
            or len(self.kinds) != count
            or len(self.ids) != len(self.message_ends)
            or len(self.roles) != len(self.opens)
            or min(self.sizes, default=0) < 0
            or sum(self.sizes) != len(self.data)
            or any(one > two for positions in rising for one, two in pairwise(positions))
            or any(not 0 <= position <= count for positions in rising for position in positions)
            or any(splice > _NO_SPLICE for splice in self.splices)
        ):
            raise ValueError("the piece contradicts itself")


class PieceRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a piece is stored."""

    chunks: Count
    messages: Count
    size: Count
    """The size of its unpacked data."""
    digest: bytes
    """The digest of the packed piece, which is its name."""
    packed: bytes = b""
    """The piece itself, if it is small."""


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """One run, without its bytes: `digest` identifies them. If no text may be stored, only its
    section, role and number of chunks are given."""

    section: Section
    role: SegmentRole | None
    count: Annotated[int, Meta(ge=1, lt=1 << 40)]
    messages: Count = 0
    size: Count = 0
    digest: bytes = b""
    lead: bytes = b""
    first_message: Count = 0
    first_block: Count = 0
    place: str = ""
    paths: tuple[str, ...] = ()
    blocks: str = ""
    pieces: tuple[PieceRef, ...] = ()
    sources: tuple[bytes, ...] = ()
    """Digests of the messages of dynamic context, which may differ at every call."""

    def check(self) -> None:
        """Raises if a value that was read from a store contradicts itself."""
        whole = self.count, self.messages, self.size
        pieces = [(ref.chunks, ref.messages, ref.size) for ref in self.pieces]
        if tuple(map(sum, zip(*pieces, strict=True))) != whole:
            raise ValueError("the pieces are not the whole run")
        if (self.section == "messages") != (self.role is not None):
            raise ValueError("only messages have a role")
        if self.paths and len(self.paths) != self.count:
            raise ValueError("not every chunk has a path")


class NewPiece(msgspec.Struct, frozen=True):
    """A piece that has to be packed and stored."""

    piece: bytes
    chunks: int
    messages: int
    size: int

    def pack(self) -> tuple[PieceRef, bytes]:
        """The slow part, about 10 ms for a megabyte; may run in another thread."""
        packed = zlib.compress(self.piece, 1)
        name = blake3(packed).digest(16)
        inline = packed if len(packed) <= _INLINE else b""
        return PieceRef(self.chunks, self.messages, self.size, name, inline), packed


def store_run(run: ChunkRun, before: StoredRun | None) -> tuple[StoredRun, NewPiece | None]:
    """The stored run, and the piece that has to be added to it. `before` is the stored run of the
    last call."""
    log, count = run.log, run.count
    is_list = run.section == "messages"
    messages = len(run.source) if is_list else 0
    kept: list[PieceRef] = []
    if before is not None and _begins_with(log, count, before) and before.messages <= messages:
        kept = list(before.pieces)
    size, new = log.start(count), None
    done = sum(ref.chunks for ref in kept)
    if done < count:
        added = size - sum(ref.size for ref in kept)
        while kept and kept[-1].size <= added:
            added += kept.pop().size
        first = sum(ref.chunks for ref in kept)
        kept_messages = sum(ref.messages for ref in kept)
        data = msgspec.msgpack.encode(_piece(run, first, kept_messages, messages))
        new = NewPiece(data, count - first, messages - kept_messages, added)
    stored = StoredRun(
        section=run.section,
        role=run.role,
        count=count,
        messages=messages,
        size=size,
        digest=_digest(log, count),
        lead=run.lead,
        first_message=run.first_message,
        first_block=run.first_block,
        place=run.place,
        paths=run.paths[:count],
        blocks=run.blocks,
        pieces=tuple(kept),
        sources=message_digests(run.source) if run.role is _DYNAMIC else (),
    )
    return stored, new


def match_run(stored: StoredRun, rendered: Rendered) -> ChunkRun | None:
    """The stored run as a view of a prompt with the same bytes; None if the bytes differ."""
    for run in rendered.runs:
        if (run.section, run.role) == (stored.section, stored.role):
            if not _begins_with(run.log, run.count, stored):
                continue
            source = run.source
            if isinstance(source, Conversation):
                source = source.prefix(stored.messages)
            return _run(stored, run.log, source)
    return None


def restore_run(stored: StoredRun, pieces: Mapping[bytes, bytes]) -> ChunkRun:
    """The stored run from its packed pieces. Raises if they do not fit together."""
    log = ChunkLog()
    labels: list[str] = []
    for ref in stored.pieces:
        piece = _unpack(ref, pieces)
        log.append(_addition(log, piece))
        labels += piece.labels
    log.labels = tuple(labels)
    if len(log) != stored.count or _digest(log, stored.count) != stored.digest:
        raise ValueError("the pieces are not those of the run")
    if stored.section == "messages" and not (log.opens and log.message_ends):
        raise ValueError("the pieces have no message")
    return _run(stored, log, Conversation())


def message_digests(messages: Conversation) -> tuple[bytes, ...]:
    """A digest of the content of each message; ids are not part of it."""
    return tuple(
        blake3(msgspec.msgpack.encode((message.role, message.parts))).digest(16)
        for message in messages
    )


def _begins_with(log: ChunkLog, count: int, stored: StoredRun) -> bool:
    if count < stored.count or log.start(stored.count) != stored.size:
        return False
    return _digest(log, stored.count) == stored.digest


def _digest(log: ChunkLog, count: int) -> bytes:
    return digest(((b"", log, count),))


def _run(stored: StoredRun, log: ChunkLog, source: object) -> ChunkRun:
    return ChunkRun(
        stored.section,
        log,
        stored.count,
        role=stored.role,
        lead=stored.lead,
        source=source,
        first_message=stored.first_message,
        first_block=stored.first_block,
        place=stored.place,
        paths=stored.paths,
        blocks=stored.blocks,
    )


def _piece(run: ChunkRun, first: int, kept_messages: int, messages: int) -> LogPiece:
    log, last = run.log, run.count
    ends, begin = log.ends[first:last].tolist(), log.start(first)
    splices = [
        _NO_SPLICE if splice < 0 else splice - end
        for splice, end in zip(log.splices[first:last], ends, strict=True)
    ]
    opened = slice(bisect_left(log.opens, first), bisect_left(log.opens, last))
    return LogPiece(
        data=log.slice(begin, log.start(last)),
        sizes=[two - one for one, two in pairwise([begin, *ends])],
        splices=splices,
        kinds=log.kinds[first:last],
        message_ends=[min(end, last) - first for end in log.message_ends[kept_messages:messages]],
        ids=log.ids[kept_messages:messages],
        opens=[at - first for at in log.opens[opened]],
        roles=list(map(str, log.roles[opened])),
        labels=list(log.labels[first:last]),
    )


def _unpack(ref: PieceRef, pieces: Mapping[bytes, bytes]) -> LogPiece:
    packed = ref.packed or pieces[ref.digest]
    if blake3(packed).digest(16) != ref.digest:
        raise ValueError("a piece has changed")
    inflate = zlib.decompressobj()
    # The chunks' sizes, kinds and ids add to the data: a few hundred bytes for each.
    data = inflate.decompress(packed, ref.size + 1024 * (ref.chunks + ref.messages + 1))
    if not inflate.eof:
        raise ValueError("a piece is longer than it should be")
    return msgspec.msgpack.decode(data, type=LogPiece)


def _addition(log: ChunkLog, piece: LogPiece) -> LogAppend:
    addition = LogAppend(len(log), len(log.message_ends))
    begin = 0
    for kind, splice, size in zip(piece.kinds, piece.splices, piece.sizes, strict=True):
        data = piece.data[begin : begin + size]
        addition.chunk(kind, data, None if splice > 0 else splice)
        begin += size
    first = addition.first_chunk
    addition.message_ends = [first + end for end in piece.message_ends]
    addition.ids = piece.ids
    addition.opens = [first + at for at in piece.opens]
    addition.roles = piece.roles
    return addition
