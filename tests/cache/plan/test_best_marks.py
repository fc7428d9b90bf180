"""Marks that save most: exact, held against every other placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anaphora.cache.plan.marking import best_marks

sizes = st.lists(st.integers(1, 500), min_size=1, max_size=9)


def saving(marks: Iterable[int], weights: Mapping[int, float], tokens: list[int]) -> float:
    """The expected number of tokens read: a prompt reads up to the deepest marker it agrees with."""
    total = 0.0
    for limit, weight in weights.items():
        deepest = max((mark for mark in marks if mark <= limit), default=None)
        if deepest is not None:
            total += weight * tokens[deepest]
    return total


@given(sizes, st.data(), st.integers(1, 4))
def test_no_other_placement_saves_more(steps: list[int], data: st.DataObject, slots: int) -> None:
    tokens = [sum(steps[: at + 1]) for at in range(len(steps))]
    limits, chances = st.integers(0, len(steps) - 1), st.floats(0.01, 1)
    weights = data.draw(st.dictionaries(limits, chances, min_size=1, max_size=6))
    chosen = best_marks(weights, tokens, slots)
    assert len(chosen) <= slots
    best = max(
        saving(marks, weights, tokens)
        for count in range(1, slots + 1)
        for marks in combinations(range(len(tokens)), min(count, len(tokens)))
    )
    assert saving(chosen, weights, tokens) >= best - 1e-9
