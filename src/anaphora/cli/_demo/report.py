"""What the demonstration found: the JSON it prints has these fields."""

from __future__ import annotations

import msgspec


class Marker(msgspec.Struct, frozen=True):
    """A cache breakpoint: the block or message it ends, and how long the entry lives."""

    on: str
    path: str
    ttl: str


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """What broke the prefix, and what that costs."""

    since_turn: int
    """The turn whose bytes this one was to begin with."""
    offset: int
    label: str
    path: str
    before: str
    after: str
    rewritten_bytes: int
    """Had been written already, and cannot be read any more."""
    rewritten_tokens: int
    tokens_error: float
    """Share by which the estimate of the tokens may be off."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call. Reused, added, volatile and envelope bytes make up the request's body."""

    turn: int
    event: str
    markers: tuple[Marker, ...]
    body_bytes: int
    reused_bytes: int
    """Up to the last breakpoint of an earlier turn that this prompt still begins with."""
    added_bytes: int
    """From there to the end of what the next turn may reuse."""
    volatile_bytes: int
    """The state behind it."""
    envelope_bytes: int
    """Markers, closing brackets, parameters."""
    serialised_bytes: int
    """What was written for this turn; the rest of the body was there already."""
    fingerprint: str
    extends: int | None
    """The latest turn that this prompt begins with, every certified byte of it."""
    broken: Break | None
    notices: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.reused_bytes / self.body_bytes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All turns, and what they come to."""

    wire: str
    model: str
    turns: tuple[Turn, ...]
    serialised_bytes: int
    body_bytes: int
    """What is sent, and what would be serialised by writing every request anew."""
    read_price: float
    write_prices: dict[str, float]
    """In multiples of the input price; writing depends on the TTL."""
