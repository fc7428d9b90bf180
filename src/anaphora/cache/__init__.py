"""Prompt caching: where the breakpoints go, and whether the prefix held."""

from __future__ import annotations

from .fingerprint import PrefixDifference, WireFingerprint, fingerprint

__all__ = ["PrefixDifference", "WireFingerprint", "fingerprint"]
