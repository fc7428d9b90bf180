"""Token estimates with bounds, calibrated by bills.

    counts = Counts(rendered)              for a split request, `for_model` sets the ratio first
    counts.total                           the whole prompt
    counts.tokens(7)                       its first 7 chunks
    counts.bounds(profile.token_error)     the likely range of the bill
    bills = counts.billed(usage.input)     `Rendered.bills` of the next prompt

All estimates are made here, from lengths: bytes of text by the catalog's ratio, images and
documents by typical sizes, whose base64 is not counted as text. No provider is asked and no
vocabulary is loaded.

A bill is a point: a prefix of so many estimated tokens was billed as so many. Counts between two
points are interpolated; after the last one, the added text is estimated by the growth from the
first point to the last.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import compress, pairwise
from typing import TypeAlias

from msgspec.structs import replace

from anaphora.catalog import Profile
from anaphora.catalog.prices import tool_overhead
from anaphora.rendered import ChunkLog, Kind, Rendered
from anaphora.rendered.media import LONG, NOT_TEXT, Odd, Size, not_text, with_definitions

#: Tokens of framing without bytes: recorded prompts were billed up to 70 more.
_FRAMING = 64

#: Tokens that a provider may bill after the last marker although there is no text.
_ROUGHLY = 16

Bills: TypeAlias = tuple[tuple[int, int], ...]
"""Points of one conversation, (estimated, billed), both rising."""

# Bound once: looking up an enum member is slow.
_RESULT = Kind.TOOL_RESULT

#: Points per conversation: the first, and the newest.
_MOST = 4

#: A growth of fewer estimated tokens is mostly framing and rounding.
_SHORTEST = 256

#: Bounds of the billed tokens per estimated one.
_LEAST, _GREATEST = 0.75, 1.33

#: A bill further from the estimate than this factor is an error of the server; a larger one may be
#: explained by a hidden system prompt of so many tokens.
_FACTOR = 32
_HIDDEN = 100_000

_Row: TypeAlias = tuple[int, int, int, Sequence[int], Odd]
"""A run: its first chunk, the size before the first byte of its log (bytes of text, other tokens),
the ends of its chunks, and the chunks that are not only text."""


def for_model(rendered: Rendered, profile: Profile) -> Rendered:
    """A split request, counted with this model's ratio."""
    ratio = profile.bytes_per_token.value
    if rendered.bytes_per_token == ratio:
        return rendered
    return replace(rendered, bytes_per_token=ratio)


class Counts:
    """Counts of one rendered prompt, computed on demand and corrected by the prompt's bills. Only
    chunks that are new in their log are examined."""

    __slots__ = ("_bills", "_per_token", "_rendered", "_rows", "_size")

    def __init__(self, rendered: Rendered, bills: Bills | None = None) -> None:
        """`bills`: newer ones than the prompt's."""
        self._rendered = rendered
        self._bills = rendered.bills if bills is None else bills
        self._per_token = rendered.bytes_per_token
        # The output schema is a parameter, and is billed like a part of the prompt.
        chunks = text = other = 0
        for name, value in rendered.envelope.cache_params:
            if name == "output_format":
                text += len(value)
        has_deferred = False
        for run in rendered.runs:
            has_deferred |= run.deferred != ()
            if run.section == "tools":
                other = tool_overhead(rendered.wire)
        self._rows: list[_Row] = []
        for run in rendered.runs:
            odd = _examined(run.log, run.count)
            if has_deferred:
                odd = with_definitions(odd, run.log, run.count, rendered.runs)
            row = chunks, text + len(run.lead), other, run.log.ends, odd
            self._rows.append(row)
            chunks += run.count
            text, other = _upto(row, chunks)
        self._size = chunks

    def __len__(self) -> int:
        return self._size

    @property
    def total(self) -> int:
        return self.tokens(self._size)

    def tokens(self, chunks: int) -> int:
        """The first `chunks` chunks, corrected by the bills so far."""
        estimated = self.estimated(chunks)
        return calibrated(self._bills, estimated) if self._bills else estimated

    def estimated(self, chunks: int) -> int:
        """The first `chunks` chunks by bytes and the catalog's ratio, without bills."""
        return self.size(chunks).tokens(self._per_token)

    def size(self, chunks: int) -> Size:
        """The size of the first `chunks` chunks."""
        for row in reversed(self._rows):
            if chunks > row[0]:
                return _upto(row, chunks)
        return Size()

    def sizes(self) -> list[Size]:
        totals = [self.size(chunks) for chunks in range(self._size + 1)]
        return [
            Size(upto.text - before.text, upto.other - before.other)
            for before, upto in pairwise(totals)
        ]

    def before(self, offset: int) -> int:
        """The tokens before a byte of the prompt, without the token that holds the byte."""
        if offset >= self._rendered.size:
            return self.total
        chunk = self._rendered.at_offset(offset)
        return self.within(chunk, offset - self._rendered.offset(chunk))

    def within(self, chunk: int, size: int) -> int:
        """The tokens before the chunk's byte `size`."""
        before, upto = self.size(chunk), self.size(chunk + 1)
        text = before.text + min(size, upto.text - before.text)
        estimated = max(self.estimated(chunk), int(text / self._per_token) + before.other)
        return calibrated(self._bills, estimated) if self._bills else estimated

    def bounds(self, error: float) -> tuple[int, int]:
        """The likely range of the billed tokens: `error` is the relative error of a text estimate
        (`profile.token_error`). Billed parts are exact, parts that are not text are known to a
        factor of four."""
        text, other = self.size(self._size)
        total, unsure = self.total, tokens_in(text, self._per_token)
        if self._bills:
            new = max(0, total - self._bills[-1][1])
            unsure, other = min(unsure, new), min(other, max(0, new - unsure))
        margin = math.ceil(unsure * error) + (_FRAMING if unsure else 0)
        return max(0, total - margin - other), total + margin + 3 * other

    def billed(self, total: int | None, kept: tuple[int, int] | None = None) -> Bills:
        """The bills for the next prompt of the conversation, if this one was billed `total` tokens.
        `kept`: the number of cached chunks, and the tokens they were billed as."""
        bills, whole = self._bills, self.estimated(self._size)
        if kept is not None and total:
            chunks, cached = kept
            prefix = whole if chunks == self._size else self.estimated(chunks)
            # Only if the uncached tokens are about as many as estimated after the prefix.
            if cached and abs(total - cached - (whole - prefix)) <= _ROUGHLY + (whole - prefix) / 2:
                bills = learned(bills, prefix, cached)
                total = cached if prefix == whole else total
        return learned(bills, whole, total)


def _upto(row: _Row, chunks: int) -> Size:
    first, text, other, ends, odd = row
    text += ends[chunks - first - 1]
    if not odd.ends:
        return Size(text, other)
    away, tokens = odd.upto(chunks - first)
    return Size(text - away, other + tokens)


def calibrated(bills: Sequence[tuple[int, int]], estimated: int) -> int:
    """The billed tokens of a prefix of `estimated` tokens."""
    index = bisect_left(bills, (estimated,))
    below, billed = bills[index - 1] if index else (0, 0)
    if index == len(bills):
        return billed + round((estimated - below) * _growth(bills))
    above, most = bills[index]
    return billed + (estimated - below) * (most - billed) // (above - below)


def learned(bills: Bills, estimated: int, billed: int | None) -> Bills:
    """The bills with one more. Longer prompts are dropped, since the conversation was cut; an
    implausible bill is ignored."""
    if not billed or estimated <= 0:
        return bills
    if not estimated / _FACTOR <= billed <= estimated * _FACTOR + _HIDDEN:
        return bills
    if bills and not (bills[-1][0] < estimated and bills[-1][1] <= billed):
        bills = tuple([point for point in bills if point[0] < estimated and point[1] <= billed])
    points = (*bills, (estimated, billed))
    return points if len(points) <= _MOST else (points[0], *points[1 - _MOST :])


def _growth(bills: Sequence[tuple[int, int]]) -> float:
    """Billed tokens per estimated one, between the first bill and the last."""
    if len(bills) < 2:
        return 1.0
    (before, first), (after, last) = bills[0], bills[-1]
    if after - before < _SHORTEST:
        return 1.0
    growth = (last - first) / (after - before)
    return growth if _LEAST < growth < _GREATEST else _LEAST if growth < 1 else _GREATEST


def tokens_in(size: int, per_token: float) -> int:
    """Tokens of `size` bytes of text, rounded up."""
    return math.ceil(size / per_token)


def bytes_in(tokens: int, per_token: float) -> int:
    """The bytes of the longest text of so many tokens."""
    return int(tokens * per_token)


def _examined(log: ChunkLog, count: int) -> Odd:
    """The chunks of a log that are not all text. A log only grows, so each is examined once."""
    known: Odd = log.odd or Odd()
    if known.done >= count:
        return known
    ends, kinds = log.ends, log.kinds[known.done : count]
    found: list[int] = []
    totals: list[tuple[int, int]] = []
    for index in compress(range(known.done, count), map(NOT_TEXT.__contains__, kinds)):
        kind = log.kinds[index]
        start, end = ends[index - 1] if index else 0, ends[index]
        if kind is _RESULT and end - start < LONG:
            continue
        away, tokens = not_text(kind, end - start, partial(log.slice, start, end))
        if away or tokens:
            before = totals[-1] if totals else known.upto(index)
            found.append(index + 1)
            totals.append((before[0] + away, before[1] + tokens))
    if found:
        # A new object, since another thread may be reading this one.
        known = Odd(count, (*known.ends, *found), (*known.totals, *totals))
    else:
        known.done = count
    log.odd = known
    return known
