"""Which markers to keep when there are more than slots, and TTLs in an order that is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from anaphora.rendered import Mark
from anaphora.values import TTL_SECONDS, Ttl


class Chance(msgspec.Struct, frozen=True):
    """A later prompt that agrees with this one up to a chunk, and how likely it is."""

    limit: int
    """The last chunk that agrees and can carry a marker."""
    weight: float


def saving(
    marks: Iterable[int], chances: Iterable[Chance], tokens: Mapping[int, float] | Sequence[float]
) -> float:
    """The expected number of tokens read. A prompt reads up to the deepest marker that it agrees
    with."""
    placed = sorted(marks)
    total = 0.0
    for chance in chances:
        deepest = max((mark for mark in placed if mark <= chance.limit), default=None)
        if deepest is not None:
            total += chance.weight * tokens[deepest]
    return total


def best_marks(
    chances: Sequence[Chance], tokens: Mapping[int, float] | Sequence[float], slots: int
) -> tuple[int, ...]:
    """At most `slots` marks with the highest saving. Only the limits are worth a marker: one in
    between serves the same prompts as the next limit before it, with fewer tokens.

    Dynamic programming over the last mark; the time is quadratic in the number of limits.
    """
    limits = sorted({chance.limit for chance in chances})
    if len(limits) <= slots:
        return tuple(limits)
    if slots <= 0:
        return ()
    weights = dict.fromkeys(limits, 0.0)
    for chance in chances:
        weights[chance.limit] += chance.weight
    # behind[i]: the weight of all prompts that agree at least up to limit i
    behind = [0.0] * (len(limits) + 1)
    for at in range(len(limits) - 1, -1, -1):
        behind[at] = behind[at + 1] + weights[limits[at]]
    # A mark at i adds, for every prompt that reaches it, its tokens beyond the mark before.
    best: list[tuple[float, tuple[int, ...]]] = [
        (tokens[limit] * behind[at], (limit,)) for at, limit in enumerate(limits)
    ]
    overall = max(best)
    for _ in range(slots - 1):
        longer = list(best)
        for at, limit in enumerate(limits):
            for before in range(at):
                value, marks = best[before]
                value += (tokens[limit] - tokens[limits[before]]) * behind[at]
                if value > longer[at][0]:
                    longer[at] = value, (*marks, limit)
        best = longer
        overall = max(overall, *best)
    return overall[1]


def hash_order(mark: Mark) -> tuple[int, float]:
    """A chunk's own marker stands at its very end, behind those of blocks inside it."""
    return mark.chunk, float("inf") if mark.splice is None else mark.splice


def falling_ttls(marks: list[Mark]) -> list[Mark]:
    """Providers reject a longer TTL behind a shorter one. The earlier marker gets the longer TTL:
    everything in front of a one-hour marker is written for one hour anyway, and no marker lives
    shorter than requested."""
    for mark in marks:
        if mark.ttl != marks[0].ttl:
            break
    else:
        return marks
    legal: list[Mark] = []
    longest: Ttl | None = None
    for mark in reversed(marks):
        if longest is not None and TTL_SECONDS[mark.ttl] < TTL_SECONDS[longest]:
            mark = Mark(mark.chunk, longest, mark.splice)
        longest = mark.ttl
        legal.append(mark)
    return legal[::-1]


def longer_ttl(one: Ttl | None, other: Ttl | None) -> Ttl | None:
    if one is None or other is None:
        return one or other
    return one if TTL_SECONDS[one] >= TTL_SECONDS[other] else other
