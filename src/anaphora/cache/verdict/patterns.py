"""What changes by itself: dates, clocks, ids, numbers. Used where two texts are known to differ, so
that a pattern may be generous."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .values import ChangeKind

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"

_KINDS: tuple[tuple[ChangeKind, str], ...] = (
    ("uuid", r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
    (
        "date",
        rf"{_DAY}(?:\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?!\d)"
        rf"|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b"
        rf"|\b{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.?\s+{_MONTH}\.?,?\s+\d{{4}}\b)",
    ),
    ("date", r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"),
    (
        "clock",
        r"(?:t|\b)\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?(?:z\b|[+-]\d{2}:?\d{2})?",
    ),
    ("clock", r"\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b"),
    (
        "nonce",
        r"\b(?=[0-9a-z_-]*[0-9])(?=[0-9a-z_-]*[a-z])[0-9a-z]+(?:[_-][0-9a-z]+)*\b",
    ),
    ("counter", r"\b\d+(?:\.\d+)?\b"),
)

_ANY = re.compile("|".join(f"({pattern})" for _, pattern in _KINDS), re.IGNORECASE)

#: Shorter words with a digit in them are names (v2, gpt4) more often than nonces.
_NONCE = 6


def _matches(text: str) -> Iterator[tuple[int, int, ChangeKind, str]]:
    for found in _ANY.finditer(text):
        kind = _KINDS[(found.lastindex or 1) - 1][0]
        if kind == "nonce" and found.end() - found.start() < _NONCE:
            continue
        yield found.start(), found.end(), kind, found.group()


def volatile_change(before: str, after: str) -> ChangeKind | None:
    """The kind of what differs, when two texts differ in nothing but what changes by itself."""
    one, two = list(_matches(before)), list(_matches(after))
    if len(one) != len(two) or _without(before, one) != _without(after, two):
        return None
    for (_, _, kind, said), (_, _, other, then) in zip(one, two, strict=True):
        if said != then:
            return kind if kind == other else "nonce"
    return None


def _without(text: str, matches: list[tuple[int, int, ChangeKind, str]]) -> list[str]:
    """What stands between the matches."""
    pieces, done = [], 0
    for start, end, _, _ in matches:
        pieces.append(text[done:start])
        done = end
    return [*pieces, text[done:]]
