"""Running totals beside a chunk log: what was counted once is not counted again.

A log only grows, so its totals only grow with it. They are let go with the log.
"""

from __future__ import annotations

import math
import threading
from array import array
from weakref import WeakKeyDictionary

import msgspec

from anaphora.catalog import Profile
from anaphora.rendered import ChunkLog, Rendered

from .count import NOTHING, Count
from .estimate import estimate
from .figures import Framing, figures, unseen
from .reading import TEXT_ONLY, answer_schema, read, shown
from .tokenizers import Tokenizer

#: How many figures a total has.
_ROW = 8


class Part(msgspec.Struct, frozen=True):
    """Some chunks, counted. Bytes become tokens only when they are all together, so that no chunk
    is rounded for itself."""

    size: int = 0
    """Bytes that are estimated as text,"""
    blocks: int = 0
    """and in how many blocks they stand."""
    counted: Count = NOTHING
    media: Count = NOTHING
    """What is billed by what it shows."""

    def __add__(self, other: Part) -> Part:
        return Part(
            self.size + other.size,
            self.blocks + other.blocks,
            _sum(self.counted, other.counted),
            _sum(self.media, other.media),
        )

    def since(self, earlier: Part) -> Part:
        """What was added to an earlier total of the same prompt: bounds only grow, too."""
        return Part(
            self.size - earlier.size,
            self.blocks - earlier.blocks,
            _grown(earlier.counted, self.counted),
            _grown(earlier.media, self.media),
        )


def together(parts: list[Part]) -> Part:
    """All of them, added up in one go."""
    size = blocks = 0
    counted = media = NOTHING
    for part in parts:
        size += part.size
        blocks += part.blocks
        if part.counted is not NOTHING:
            counted = _sum(counted, part.counted)
        if part.media is not NOTHING:
            media = _sum(media, part.media)
    return Part(size, blocks, counted, media)


def _sum(one: Count, other: Count) -> Count:
    """Most parts have nothing to add here."""
    if other is NOTHING:
        return one
    return other if one is NOTHING else one + other


def _grown(before: Count, after: Count) -> Count:
    return Count(after.tokens - before.tokens, after.low - before.low, after.high - before.high)


class Method:
    """How chunks are counted: by their bytes, or by a tokenizer and what frames the texts."""

    __slots__ = ("by_bytes", "framing", "key", "profile", "tokenizer")

    def __init__(
        self, profile: Profile, framing: Framing | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.profile = profile
        self.framing = framing
        self.tokenizer = tokenizer
        self.by_bytes = tokenizer is None
        by = (profile.bytes_per_token.value, profile.token_error.value)
        self.key = (*by, None if tokenizer is None else (tokenizer.family, framing))

    def chunk(self, log: ChunkLog, at: int) -> Part:
        start, end, kind = log.start(at), log.ends[at], log.kinds[at]
        if self.by_bytes and kind in TEXT_ONLY:
            return Part(end - start, 1)
        if self.tokenizer is not None and self.framing is not None:
            data = log.slice(start, end)
            counted, media = read(kind, data, self.profile, self.framing, self.tokenizer)
            return Part(0, 0, counted, media)
        size, media = shown(kind, end - start, lambda: log.slice(start, end), self.profile)
        return Part(size, 1, NOTHING, media)

    def glue(self, lead: bytes) -> Part:
        """What stands before the first chunk of a run; it opens the message, if one is opened."""
        if self.framing is None:
            return Part(len(lead))
        opens = b'"role"' in lead or b'"instructions"' in lead
        return Part(counted=self.framing.about(self.framing.message if opens else 0))

    def opening(self, rendered: Rendered) -> Part:
        """What a prompt costs before it says anything,"""
        schemas = [value for name, value in rendered.envelope.knobs if name == "output_format"]
        if self.framing is None or self.tokenizer is None:
            size = sum(map(len, schemas))
            return Part(size, len(schemas), unseen("prompt", rendered.wire))
        opening = self.framing.about(self.framing.prompt)
        for schema in schemas:
            tokens = self.tokenizer.count(answer_schema(schema)).tokens
            opening += Count.about(tokens, figures().output.error)
        return Part(counted=opening)

    def having_tools(self, rendered: Rendered) -> Part:
        """and what having tools does, apart from the tools."""
        if self.framing is None:
            return Part(counted=unseen("tools", rendered.wire))
        return Part(counted=self.framing.about(self.framing.tools))

    def tokens(self, part: Part) -> int:
        """All of a part, without its bounds."""
        text = math.ceil(part.size / self.profile.bytes_per_token.value)
        return text + part.counted.tokens + part.media.tokens

    def text(self, part: Part) -> Count:
        """All of a part that is text, in tokens."""
        text = estimate(part.size, self.profile)
        dress = part.blocks * figures().dress.bytes / self.profile.bytes_per_token.value
        low = max(0, text.low - round(dress))
        return Count(text.tokens, low, text.high) + part.counted


class Tally:
    """The totals at every chunk end of one log, counted by one method."""

    __slots__ = ("_last", "_lock", "_rows", "led")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.led: tuple[object, tuple[int, Part, Part]] | None = None
        """What a run that goes on behind this log had before it, last time, and for whom."""
        self._last = 0, Part()
        """What was asked for last: of tools and system blocks that is always the same."""
        self._rows = array("Q")
        """For each chunk size, blocks, and the three figures of each count."""

    def upto(self, chunks: int, log: ChunkLog, method: Method) -> Part:
        """The total of the first chunks of the log."""
        last, total = self._last
        if chunks == last:
            return total
        # Rows are only added, each at once: who reads without the lock goes by their number.
        if chunks * _ROW > len(self._rows):
            with self._lock:
                self._count(chunks, log, method)
        total = self._total(chunks)
        self._last = chunks, total
        return total

    def _total(self, chunks: int) -> Part:
        if not chunks:
            return Part()
        row = self._rows[(chunks - 1) * _ROW : chunks * _ROW]
        size, blocks, tokens, low, high, media, least, most = row
        counted = Count(tokens, low, high) if high else NOTHING
        return Part(size, blocks, counted, Count(media, least, most) if most else NOTHING)

    def _count(self, chunks: int, log: ChunkLog, method: Method) -> None:
        """Adds the rows that are missing. Most chunks add bytes and nothing else."""
        done = len(self._rows) // _ROW
        row = self._rows[-_ROW:].tolist() or [0] * _ROW
        start, ends = log.start(done), log.ends[done:chunks]
        for at, (kind, end) in enumerate(zip(log.kinds[done:chunks], ends, strict=True), done):
            if method.by_bytes and kind in TEXT_ONLY:
                row[0] += end - start
                row[1] += 1
            else:
                _add(row, method.chunk(log, at))
            start = end
            self._rows.extend(row)


def _add(row: list[int], part: Part) -> None:
    row[0] += part.size
    row[1] += part.blocks
    for first, count in ((2, part.counted), (5, part.media)):
        if count is not NOTHING:
            row[first] += count.tokens
            row[first + 1] += count.low
            row[first + 2] += count.high


_tallies: WeakKeyDictionary[ChunkLog, dict[object, Tally]] = WeakKeyDictionary()
_lock = threading.Lock()


def tally(log: ChunkLog, method: Method) -> Tally:
    """The log's totals by a method, as far as anybody has counted."""
    found = _tallies.get(log)
    known = None if found is None else found.get(method.key)
    if known is not None:
        return known
    with _lock:
        return _tallies.setdefault(log, {}).setdefault(method.key, Tally())
