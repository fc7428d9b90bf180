"""Prompt caching: where the breakpoints go, and whether the prefix held."""

from __future__ import annotations

from .fingerprint import PrefixDifference, WireFingerprint, fingerprint
from .prefix_index import CallHints, EarlierCall, PrefixIndex, hints_of

__all__ = [
    "CallHints",
    "EarlierCall",
    "PrefixDifference",
    "PrefixIndex",
    "WireFingerprint",
    "fingerprint",
    "hints_of",
]
