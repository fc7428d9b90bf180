"""Tokens from bytes: an estimate, and how far to trust it. No tokenizer is loaded."""

from __future__ import annotations

import math

import msgspec

from .profiles import Profile


class TokenEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number of tokens that nobody counted; the true one is likely between `low` and `high`."""

    tokens: int
    error: float
    """Share of `tokens` by which it may be off, either way."""

    @property
    def low(self) -> int:
        return math.floor(self.tokens * (1 - self.error))

    @property
    def high(self) -> int:
        return math.ceil(self.tokens * (1 + self.error))


def estimate(size: int, profile: Profile) -> int:
    """About how many tokens `size` bytes of rendered blocks are; no bytes are no tokens."""
    return math.ceil(size / profile.bytes_per_token.value)


def estimate_within(size: int, profile: Profile) -> TokenEstimate:
    """The same with its error, for whoever decides by it."""
    return TokenEstimate(tokens=estimate(size, profile), error=profile.token_error.value)
