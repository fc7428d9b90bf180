"""Prompt caching: where the breakpoints go, and whether the prefix held."""

from __future__ import annotations

from .fingerprint import Difference, WireFingerprint, fingerprint

__all__ = ["Difference", "WireFingerprint", "fingerprint"]
