"""The fields that requests may have, by wire: data, held against the official SDKs by a test."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def typed(table: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """A table by type; each has the field that says so."""
    return {kind: fields | {"type"} for kind, fields in table.items()}
