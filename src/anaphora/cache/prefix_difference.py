"""How far two prompts begin alike, and where they first differ."""

from __future__ import annotations

import re
from typing import AnyStr

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import Kind, Rendered
from anaphora.tokens import Counts

from .sent_call import shared_chunks

#: Bytes that are compared first.
_STEP = 256
_EXCERPT = 32

#: An image in a block.
_IMAGE = re.compile(
    rb'"type"\s*:\s*"(?:image|image_url|input_image)"|"(?:images)"\s*:\s*\[\s*"'
    rb'|"mime_?[tT]ype"\s*:\s*"image/'
)


def tokens_behind(
    counts: Counts, chunks: int, offset: int, rules: CacheRules | None, *, marked: bool
) -> int:
    """The tokens of the first `chunks` chunks that are lost if the prompt changes at a byte. A
    cache that works on tokens has whole granules, and keeps those before the byte."""
    cached, kept = counts.tokens(chunks), counts.before(offset)
    if rules is not None and rules.caches_tokens and not (marked and rules.slots.value):
        cached, kept = rules.whole_granules(cached), rules.whole_granules(kept)
    return max(0, cached - kept)


def first_difference(earlier: Rendered, later: Rendered, chunks: int) -> int | None:
    """The first byte in which the later prompt differs from the first `chunks` chunks of the
    earlier one; None if it begins with all of them."""
    shared = shared_chunks(later, earlier)
    if shared >= chunks:
        return None
    after, before = later.data_from(shared, len(later)), earlier.data_from(shared, chunks)
    offset = earlier.offset(shared) + common_length(after, before)
    return None if offset >= earlier.offset(chunks) else offset


def common_length(one: AnyStr, two: AnyStr) -> int:
    """The length of the common beginning, by galloping and bisection: `==` compares at memory
    speed, and little is read after the first difference."""
    low, high, end = 0, min(_STEP, len(one), len(two)), min(len(one), len(two))
    while one[low:high] == two[low:high]:
        if high == end:
            return end
        low, high = high, min(end, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def equal_around(one: bytes, two: bytes) -> int:
    """How many bytes are equal before the first difference and after the last one."""
    before = common_length(one, two)
    return before + common_length(one[before:][::-1], two[before:][::-1])


class PrefixDifference(msgspec.Struct, frozen=True):
    """The first byte in which two prompts differ, with the text around it."""

    offset: int
    """The byte, counted from the start of the prompt."""
    label: str
    """The block it is in: a tool, a system block's label, a message of a segment."""
    path: str
    """The block's JSON path in the request body."""
    before: str
    """The earlier prompt's text from there on; shorter if that prompt ends."""
    after: str

    def __str__(self) -> str:
        where = f"byte {self.offset} in {self.label} ({self.path})"
        return f"{where}: {self.before!r} became {self.after!r}"


class WireFingerprint:
    """BLAKE3 over the cacheable bytes of one rendered call.

    Taking one hashes only what was added since the last. Comparing two of one conversation reads no
    bytes. `restore` rebuilds one from an audit row: it can be compared, but not explained.
    """

    __slots__ = ("_rendered", "chunks", "digest", "size")

    def __init__(self, digest: bytes, size: int, chunks: int, rendered: Rendered | None) -> None:
        """`size` and `chunks` are the numbers of bytes and chunks that it covers."""
        self.digest = digest
        self.size = size
        self.chunks = chunks
        self._rendered = rendered

    @classmethod
    def restore(cls, digest: str, size: int, chunks: int) -> WireFingerprint:
        return cls(bytes.fromhex(digest), size, chunks, None)

    @property
    def hex(self) -> str:
        return self.digest.hex()

    def extends(self, earlier: WireFingerprint) -> bool:
        """Whether this prompt begins with everything that the earlier fingerprint covers."""
        if self.size < earlier.size or self.chunks < earlier.chunks:
            return False
        mine, other = self._rendered, earlier._rendered
        if mine is None:
            return self.digest == earlier.digest
        if other is not None and shared_chunks(mine, other) >= earlier.chunks:
            return True
        if mine.offset(earlier.chunks) != earlier.size:
            return False
        return mine.digest(earlier.chunks) == earlier.digest

    def common_prefix(self, earlier: WireFingerprint) -> int:
        """How many leading bytes the two prompts share."""
        mine, other = self._both(earlier)
        shared = min(shared_chunks(mine, other), self.chunks, earlier.chunks)
        if shared in (self.chunks, earlier.chunks):
            return mine.offset(shared)
        return common_length(mine.data(self.chunks), other.data(earlier.chunks))

    def first_difference(self, earlier: WireFingerprint) -> PrefixDifference | None:
        """What broke the prefix; None if this prompt extends the earlier one."""
        mine, other = self._both(earlier)
        offset = self.common_prefix(earlier)
        if offset == earlier.size:
            return None
        changed = mine if offset < self.size else other
        run, position = changed.locate(changed.at_offset(offset))
        return PrefixDifference(
            offset=offset,
            label=run.label(position),
            path=run.path(position),
            before=_excerpt(other, offset, earlier.size),
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
    chunks = rendered.cacheable
    return WireFingerprint(rendered.digest(chunks), rendered.offset(chunks), chunks, rendered)


def _excerpt(rendered: Rendered, offset: int, size: int) -> str:
    """A few bytes around the difference, in the block that holds it."""
    if offset >= size:
        return ""
    chunk = rendered.at_offset(offset)
    begin = offset - rendered.offset(chunk)
    data = rendered.chunk_data(chunk)
    return data[max(0, begin - _EXCERPT // 2) : begin + _EXCERPT].decode(errors="replace")


def has_image(rendered: Rendered) -> bool:
    """Whether a message holds an image. Searches only chunks that were not searched before."""
    for run in rendered.runs:
        log, (searched, first) = run.log, run.log.first_image
        if run.section != "messages":
            continue
        if first is None and searched < run.count:
            for index in range(searched, run.count):
                data = log.slice(log.start(index), log.ends[index])
                if log.kinds[index] is Kind.IMAGE or _IMAGE.search(data):
                    first = index
                    break
            log.first_image = run.count, first
        if first is not None and first < run.count:
            return True
    return False
