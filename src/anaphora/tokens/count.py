"""Count: a number of tokens that says how sure it is."""

from __future__ import annotations

import math

import msgspec

from anaphora.errors import InvalidRequest


class Count(msgspec.Struct, frozen=True):
    """Tokens, and the bounds they were likely counted within. Exact when the bounds meet.

    Bounds are whole tokens and add up as they are, so a sum promises no more than its parts did.
    """

    tokens: int
    low: int
    high: int

    @classmethod
    def exactly(cls, tokens: int) -> Count:
        """Counted by the model's own tokenizer, or billed."""
        return cls(tokens, tokens, tokens)

    @classmethod
    def about(cls, tokens: int, error: float) -> Count:
        """An estimate that may be off by a share of itself, either way."""
        if error < 0:
            raise InvalidRequest(f"an error is a share of 0 or more, not {error}", path="error")
        low = max(0, math.floor(tokens * (1 - error)))
        return cls(tokens, low, math.ceil(tokens * (1 + error)))

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def error(self) -> float:
        """The share of `tokens` by which they may be off; 0 when exact."""
        return max(self.tokens - self.low, self.high - self.tokens) / max(self.tokens, 1)

    def holds(self, tokens: int) -> bool:
        """Whether this many is within the bounds."""
        return self.low <= tokens <= self.high

    def __add__(self, other: Count) -> Count:
        return Count(self.tokens + other.tokens, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Count) -> Count:
        """What is left without `other`; never fewer than no tokens."""
        return Count(
            max(0, self.tokens - other.tokens),
            max(0, self.low - other.high),
            max(0, self.high - other.low),
        )

    def __repr__(self) -> str:
        if self.exact:
            return f"<Count {self.tokens}>"
        return f"<Count about {self.tokens}, {self.low} to {self.high}>"


NOTHING = Count.exactly(0)
