"""What a call would read, write and pay for, and why."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

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
    "not_persisted",
    "not_whole_granule",
    "last_token",
]
"""Why tokens are where they are. Found: an earlier call left them there. Held: they live under a
handle. New: no call before had them. Expired, not readable yet, beyond the look-back, a changed
parameter, pushed out, or lost at the provider: an earlier call had them, and this one cannot read
them. Behind the last marker, no marker, below the minimum: nothing is written there. Not persisted:
the provider keeps whole units only. Not a whole granule: what is left over. The last token is
always computed."""


class Span(msgspec.Struct, frozen=True):
    """Tokens from `start` up to `end` that share a fate."""

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
        """What can be read after it: what it read itself, and what it wrote."""
        tokens = 0
        for span in self.spans:
            if span.fate != "uncached":
                tokens += span.end - span.start
        return tokens

    @property
    def written(self) -> dict[WriteTtl, int]:
        by_ttl: dict[WriteTtl, int] = {}
        for span in self.spans:
            if span.fate == "written" and span.end > span.start:
                ttl: WriteTtl = span.ttl or "unsplit"
                by_ttl[ttl] = by_ttl.get(ttl, 0) + span.end - span.start
        return by_ttl

    @property
    def uncached(self) -> int:
        return sum(span.tokens for span in self.spans if span.fate == "uncached")

    @property
    def total(self) -> int:
        return self.spans[-1].end if self.spans else 0

    def usage(self, output: int | None = None) -> Usage:
        """The same as a provider would report it."""
        return Usage(uncached=self.uncached, read=self.read, written=self.written, output=output)

    def __str__(self) -> str:
        wrote = sum(self.written.values())
        return f"{self.read} read, {wrote} written, {self.uncached} uncached of {self.total}"


def spans_of(*spans: Span) -> tuple[Span, ...]:
    """Those that hold a token."""
    return tuple([span for span in spans if span.end > span.start])
