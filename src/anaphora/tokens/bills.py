"""Calibration: bills correct the next estimate.

A bill is a point: a prefix of so many estimated tokens is so many billed ones. Between two points
the count is in proportion. Beyond the last one only what was added is estimated, by the growth
from the first point to the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

Bills: TypeAlias = tuple[tuple[int, int], ...]
"""Points of one conversation, (estimated, billed), both rising."""

#: Points that a conversation keeps: the first, and the newest.
_MOST = 4

#: A growth of fewer estimated tokens is mostly framing and rounding, and says little of the text.
_SHORTEST = 256

#: However odd the bills, text is no denser or thinner than this.
_LEAST, _GREATEST = 0.75, 1.33

#: A bill further from the estimate than this factor is a mistake of the server's; above it, unless
#: a hidden system prompt of so many tokens explains it.
_FACTOR = 32
_HIDDEN = 100_000


def calibrated(bills: Sequence[tuple[int, int]], estimated: int) -> int:
    """How many tokens are billed for a prefix of so many estimated ones."""
    at = bisect_left(bills, (estimated,))
    below, billed = bills[at - 1] if at else (0, 0)
    if at == len(bills):
        return billed + round((estimated - below) * _growth(bills))
    above, most = bills[at]
    return billed + (estimated - below) * (most - billed) // (above - below)


def learned(bills: Bills, estimated: int, billed: int | None) -> Bills:
    """With one more bill. Longer prompts of the past are forgotten: the conversation was cut. One
    that cannot be right is ignored."""
    if not billed or estimated <= 0:
        return bills
    if not estimated / _FACTOR <= billed <= estimated * _FACTOR + _HIDDEN:
        return bills
    kept = [point for point in bills if point[0] < estimated and point[1] <= billed]
    points = (*kept, (estimated, billed))
    return points if len(points) <= _MOST else (points[0], *points[1 - _MOST :])


def _growth(bills: Sequence[tuple[int, int]]) -> float:
    """Billed tokens for each estimated one, of what was added from the first bill to the last."""
    if len(bills) < 2:
        return 1.0
    (before, first), (after, last) = bills[0], bills[-1]
    if after - before < _SHORTEST:
        return 1.0
    growth = (last - first) / (after - before)
    return growth if _LEAST < growth < _GREATEST else _LEAST if growth < 1 else _GREATEST
