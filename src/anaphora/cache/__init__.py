"""Prompt caching: where the breakpoints go, and whether the prefix held."""

from __future__ import annotations

from anaphora.rendered import Plan

from .compared_prompt import hints_of
from .prefix_difference import WireFingerprint, fingerprint
from .prefix_index import PrefixIndex

__all__ = ["Plan", "PrefixIndex", "WireFingerprint", "fingerprint", "hints_of"]
