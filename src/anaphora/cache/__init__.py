"""Prompt caching: where the breakpoints go, and whether the prefix held."""

from __future__ import annotations

from .compared_prompt import CallHints, hints_of
from .prefix_difference import PrefixDifference, WireFingerprint, fingerprint
from .prefix_index import EarlierCall, PrefixIndex

__all__ = [
    "CallHints",
    "EarlierCall",
    "PrefixDifference",
    "PrefixIndex",
    "WireFingerprint",
    "fingerprint",
    "hints_of",
]
