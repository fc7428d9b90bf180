"""Which marks to keep when there are more than slots: those that save most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec


class Chance(msgspec.Struct, frozen=True):
    """A way the cache may be used next: by a prompt that agrees up to a block, so likely."""

    limit: int
    """The last block that agrees."""
    weight: float


def saving(marks: Iterable[int], chances: Sequence[Chance], tokens: Sequence[int]) -> float:
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
    chances: Sequence[Chance], tokens: Sequence[int], may_mark: Sequence[bool], slots: int
) -> tuple[int, ...]:
    """At most `slots` marks that save most: exact, since no mark is better than the deepest one
    that some use agrees with."""
    limits = {_at(chance.limit, may_mark) for chance in chances}
    candidates = sorted(limit for limit in limits if limit is not None)
    if len(candidates) <= slots:
        return tuple(candidates)
    return max(combinations(candidates, slots), key=lambda marks: saving(marks, chances, tokens))


def _at(limit: int, may_mark: Sequence[bool]) -> int | None:
    while limit >= 0 and not may_mark[limit]:
        limit -= 1
    return limit if limit >= 0 else None
