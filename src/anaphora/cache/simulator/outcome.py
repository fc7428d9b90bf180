"""What a call reads, writes and pays for in full, and why; and what it should read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.catalog import CacheRules
from anaphora.rendered import Mark
from anaphora.values import Ttl, Usage, WriteTtl

Fate: TypeAlias = Literal["read", "written", "uncached"]

Reason: TypeAlias = Literal[
    "found",
    "held",
    "new",
    "expired",
    "not_readable_yet",
    "beyond_lookback",
    "param_changed",
    "evicted",
    "lost",
    "behind_last_marker",
    "no_marker",
    "below_minimum",
    "above_maximum",
    "not_persisted",
    "not_whole_granule",
    "last_token",
]
"""Why tokens are read, written or uncached.

- found, held: an earlier call cached them, or they are stored under a handle
- new: no earlier call sent them
- expired, not_readable_yet, beyond_lookback, param_changed, evicted, lost: cached, but not readable
- behind_last_marker, no_marker, below_minimum, above_maximum: not written
- not_persisted, not_whole_granule: the provider keeps whole units or granules only
- last_token: the last token of a prompt is always computed
"""


#: The detail of tokens that would have been read by the rules.
AS_BILLED = "not read, as earlier bills show"


class Span(msgspec.Struct, frozen=True):
    """Tokens from `start` up to `end` with the same state and reason."""

    start: int
    end: int
    fate: Fate
    reason: Reason
    ttl: Ttl | None = None
    detail: str = ""

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Outcome(msgspec.Struct, frozen=True):
    """A call's input, every token of it in exactly one span."""

    spans: tuple[Span, ...]

    @property
    def read(self) -> int:
        tokens = 0
        for span in self.spans:
            if span.fate == "read":
                tokens += span.end - span.start
        return tokens

    @property
    def kept(self) -> int:
        """What the next call can read: what this one read and wrote."""
        tokens = 0
        for span in self.spans:
            if span.fate != "uncached":
                tokens += span.end - span.start
        return tokens

    @property
    def uncached(self) -> int:
        return self.total - self.kept

    @property
    def written(self) -> dict[WriteTtl, int]:
        return dict(self.usage().written or {})

    @property
    def total(self) -> int:
        return self.spans[-1].end if self.spans else 0

    def usage(self, output: int | None = None) -> Usage:
        """The counts in the form of a provider's report."""
        read, written = 0, dict[WriteTtl, int]()
        for span in self.spans:
            tokens = span.end - span.start
            if span.fate == "read":
                read += tokens
            elif span.fate == "written" and tokens > 0:
                ttl: WriteTtl = span.ttl or "unsplit"
                written[ttl] = written.get(ttl, 0) + tokens
        uncached = (self.spans[-1].end if self.spans else 0) - read - sum(written.values())
        return Usage(uncached=uncached, read=read, written=written, output=output)

    def reading(self, tokens: int) -> Outcome:
        """The outcome if so many tokens are read, as earlier bills show."""
        read, written = min(tokens, self.total), None
        spans = [Span(0, read, "read", "found")]
        for span in self.spans:
            if span.fate == "written" and written is None:
                written = span.ttl
        fate: Fate = "uncached" if written is None else "written"
        for span in self.spans:
            start = max(span.start, read)
            if span.fate != "read":
                spans.append(replace(span, start=start))
            elif start < span.end:
                spans.append(Span(start, span.end, fate, "new", written, AS_BILLED))
        return Outcome(spans_of(*spans))

    def __str__(self) -> str:
        wrote = sum(self.written.values())
        return f"{self.read} read, {wrote} written, {self.uncached} uncached of {self.total}"


def spans_of(*spans: Span) -> tuple[Span, ...]:
    return tuple([span for span in spans if span.end > span.start])


def marked_outcome(
    writes: tuple[Mark, ...],
    tokens: Callable[[int], int],
    *,
    total: int,
    found: int = -1,
    marked: bool = True,
    too_long: bool = False,
    reason: Reason = "new",
    detail: str = "",
) -> Outcome:
    """The outcome of a call that reads up to the block `found` (-1: nothing), and writes at
    `writes`. `reason` is why nothing more is read; `too_long`: the last marker is beyond the
    longest prefix."""
    read = tokens(found) if found >= 0 else 0
    spans = [Span(0, read, "read", "found")] if read else []
    start = read
    for mark in writes:
        end = tokens(mark.chunk)
        if end > start:
            spans.append(Span(start, end, "written", reason, mark.ttl, detail))
            start = end
    if total > start:
        rest: Reason = "below_minimum" if marked else "no_marker"
        if writes or found >= 0:
            rest = "behind_last_marker"
        if too_long:
            rest = "above_maximum"
        spans.append(Span(start, total, "uncached", rest))
    return Outcome(tuple(spans))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a call should read, by the rules and the bill of the previous call."""

    left: int
    """Tokens that the previous call left in the cache."""
    read: int
    outcome: Outcome
    exact: bool
    """Whether `left` is exact to the token, as it is at markers."""


def predict_read(
    wrote: Outcome,
    usage: Usage | None,
    outcome: Outcome,
    rules: CacheRules,
    *,
    marked: bool = False,
) -> Prediction:
    """From two simulated calls: the previous one, which was billed `usage` and may have had markers
    of the provider's, and this."""
    kept = wrote.kept
    if not (rules.needs_marks or marked):
        # If the provider caches by itself, the whole prompt is cached in any case.
        total = wrote.total if usage is None or not usage.input else usage.input
        left = rules.whole_granules(total)
        return Prediction(left=left, read=outcome.read, outcome=outcome, exact=False)
    if usage is not None and usage.read is not None:
        left = usage.read + (usage.written_total or 0)
    else:
        left = kept
    return Prediction(left=left, read=outcome.read, outcome=outcome, exact=kept > 0)
