"""Marks that save most: exact, held against every other placement."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anaphora.cache.plan.choose import Chance, best_marks, saving

sizes = st.lists(st.integers(1, 500), min_size=1, max_size=9)


@given(sizes, st.data(), st.integers(1, 4))
def test_no_placement_of_so_many_marks_saves_more(
    steps: list[int], data: st.DataObject, slots: int
) -> None:
    tokens = [sum(steps[: at + 1]) for at in range(len(steps))]
    chance = st.builds(Chance, st.integers(0, len(steps) - 1), st.floats(0.01, 1))
    chances = data.draw(st.lists(chance, min_size=1, max_size=6))
    chosen = best_marks(chances, tokens, slots)
    assert len(chosen) <= slots
    best = max(
        saving(marks, chances, tokens)
        for count in range(1, slots + 1)
        for marks in combinations(range(len(tokens)), min(count, len(tokens)))
    )
    assert saving(chosen, chances, tokens) >= best - 1e-9
