"""Tokens from bytes, with the error the catalog states for it. No tokenizer is loaded."""

from __future__ import annotations

import math

from anaphora.catalog import Profile

from .count import Count


def estimate(size: int, profile: Profile) -> Count:
    """About how many tokens `size` bytes of rendered blocks are; no bytes are no tokens."""
    tokens = math.ceil(size / profile.bytes_per_token.value)
    return Count.about(tokens, profile.token_error.value)
