"""Which marks to keep when there are more than slots: those that save most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec


class Chance(msgspec.Struct, frozen=True):
    """A way the cache may be used: by a prompt that agrees up to a block, so likely."""

    limit: int
    """The last block that agrees and takes a marker."""
    weight: float


def saving(
    marks: Iterable[int], chances: Iterable[Chance], tokens: Mapping[int, int] | Sequence[int]
) -> float:
    """The tokens that will be read, by expectation. A prompt reads up to the deepest mark that it
    agrees with."""
    placed = sorted(marks)
    total = 0.0
    for chance in chances:
        deepest = max((mark for mark in placed if mark <= chance.limit), default=None)
        if deepest is not None:
            total += chance.weight * tokens[deepest]
    return total


def best_marks(
    chances: Sequence[Chance], tokens: Mapping[int, int] | Sequence[int], slots: int
) -> tuple[int, ...]:
    """At most so many marks, those that save most. It is enough to look at the limits: a mark
    between two of them serves whom the one before it serves, and reads more."""
    candidates = sorted({chance.limit for chance in chances})
    if len(candidates) <= slots:
        return tuple(candidates)
    return max(combinations(candidates, slots), key=lambda marks: saving(marks, chances, tokens))
