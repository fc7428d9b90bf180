"""The fields that requests may have, by wire: data, held against the official SDKs by a test."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())
