"""WireFingerprint: a certificate of the bytes that the next turn must begin with."""

from __future__ import annotations

import msgspec

from anaphora.rendered import Rendered

_EXCERPT = 32


class Difference(msgspec.Struct, frozen=True):
    """Where two prompts part ways, and what each says there."""

    offset: int
    """The first byte that differs, counted in the prompt's bytes."""
    label: str
    """The block it is in: a tool, a system block's label, a message of a segment."""
    path: str
    """Its JSON path in the request body."""
    before: str
    """What the earlier prompt says around there; ends early where that prompt ends."""
    after: str

    def __str__(self) -> str:
        where = f"byte {self.offset} in {self.label} ({self.path})"
        return f"{where}: {self.before!r} became {self.after!r}"


class WireFingerprint:
    """BLAKE3 over the cacheable bytes of one rendered call.

    Taking one hashes what was added since the last; comparing two of one conversation compares
    nothing. `restore` rebuilds one from an audit row: it can be extended, not explained.
    """

    __slots__ = ("_rendered", "chunks", "digest", "size")

    def __init__(self, digest: bytes, size: int, chunks: int, rendered: Rendered | None) -> None:
        self.digest = digest
        self.size = size
        """How many bytes it certifies,"""
        self.chunks = chunks
        """and in how many chunks."""
        self._rendered = rendered

    @classmethod
    def restore(cls, digest: str, size: int, chunks: int) -> WireFingerprint:
        return cls(bytes.fromhex(digest), size, chunks, None)

    @property
    def hex(self) -> str:
        return self.digest.hex()

    def extends(self, earlier: WireFingerprint) -> bool:
        """Whether this prompt begins with everything the earlier one certified."""
        if self.size < earlier.size or self.chunks < earlier.chunks:
            return False
        mine, theirs = self._rendered, earlier._rendered
        if mine is None:
            return self.digest == earlier.digest
        if theirs is not None and _shared_chunks(mine, theirs) >= earlier.chunks:
            return True
        if mine.offset(earlier.chunks) != earlier.size:
            return False
        return mine.digest(earlier.chunks) == earlier.digest

    def common_prefix(self, earlier: WireFingerprint) -> int:
        """How many leading bytes the two prompts share."""
        mine, theirs = self._both(earlier)
        shared = min(_shared_chunks(mine, theirs), self.chunks, earlier.chunks)
        if shared in (self.chunks, earlier.chunks):
            return mine.offset(shared)
        return _common_bytes(mine.data(self.chunks), theirs.data(earlier.chunks))

    def first_difference(self, earlier: WireFingerprint) -> Difference | None:
        """What broke the prefix; None when this prompt extends the earlier one."""
        mine, theirs = self._both(earlier)
        offset = self.common_prefix(earlier)
        if offset == earlier.size:
            return None
        changed, at = (mine, offset) if offset < self.size else (theirs, offset)
        chunk = changed.at_offset(at)
        run, position = changed.locate(chunk)
        return Difference(
            offset=offset,
            label=run.label(position),
            path=run.path(position),
            before=_excerpt(theirs, offset, earlier.size),
            after=_excerpt(mine, offset, self.size),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WireFingerprint):
            return NotImplemented
        return (self.digest, self.size) == (other.digest, other.size)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<WireFingerprint {self.hex[:16]} of {self.size} bytes>"

    def _both(self, earlier: WireFingerprint) -> tuple[Rendered, Rendered]:
        if self._rendered is None or earlier._rendered is None:
            raise ValueError("a restored fingerprint has no bytes to compare; render the prompt")
        return self._rendered, earlier._rendered


def fingerprint(rendered: Rendered) -> WireFingerprint:
    """The certificate of a rendered call."""
    chunks = rendered.cacheable
    return WireFingerprint(rendered.digest(chunks), rendered.offset(chunks), chunks, rendered)


def _shared_chunks(mine: Rendered, theirs: Rendered) -> int:
    """How many leading chunks are the same because they are the same bytes in memory."""
    chunks = 0
    for my_run, their_run in zip(mine.runs, theirs.runs, strict=False):
        if my_run.log is not their_run.log or my_run.lead != their_run.lead:
            break
        chunks += min(my_run.count, their_run.count)
        if my_run.count != their_run.count:
            break
    return chunks


def _common_bytes(mine: bytes, theirs: bytes) -> int:
    """The length of the common beginning, by halving: `==` compares at memory speed."""
    low, high = 0, min(len(mine), len(theirs))
    if mine[:high] == theirs[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _excerpt(rendered: Rendered, offset: int, size: int) -> str:
    """A few bytes from the difference on, in the block that holds it."""
    if offset >= size:
        return ""
    chunk = rendered.at_offset(offset)
    begin = offset - rendered.offset(chunk)
    data = rendered.chunk(chunk).data
    return data[max(0, begin - _EXCERPT // 2) : begin + _EXCERPT].decode(errors="replace")
