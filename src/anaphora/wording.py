"""Numbers with their nouns, for messages and reports."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 turn`, `2 turns`, `1,024 tokens`; `plural` for nouns that do not end with -s there."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
