"""Calibration by bills: a billed prefix keeps its count, growth is estimated by growth."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from anaphora.tokens import Bills, calibrated, learned

bills = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=8)


def after(some: list[tuple[int, int]]) -> Bills:
    points: Bills = ()
    for estimated, billed in some:
        points = learned(points, estimated, billed)
    return points


def test_estimate_is_used_without_usage() -> None:
    assert calibrated((), 1234) == 1234


@given(some=bills, estimated=st.integers(1, 10**5), billed=st.integers(10**4, 10**5))
def test_billed_prompt_counts_as_billed(
    some: list[tuple[int, int]], estimated: int, billed: int
) -> None:
    assert calibrated(learned(after(some), estimated, billed), estimated) == billed


@given(some=bills, estimates=st.lists(st.integers(0, 2 * 10**6), min_size=2, max_size=20))
def test_calibration_is_monotonic(some: list[tuple[int, int]], estimates: list[int]) -> None:
    points = after(some)
    counted = [calibrated(points, estimated) for estimated in sorted(estimates)]
    assert counted == sorted(counted)
    assert counted[0] >= 0


@given(some=bills)
def test_points_rise_and_are_few(some: list[tuple[int, int]]) -> None:
    points = after(some)
    assert len(points) <= 4
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(points))


def test_within_a_billed_prompt_counts_are_in_proportion() -> None:
    assert calibrated(learned((), 1000, 1500), 500) == 750


def test_only_new_text_is_estimated() -> None:
    """A system prompt that no estimate saw makes a bill much longer, and the growth no bit."""
    assert calibrated(learned((), 1000, 21_000), 1100) == 21_100


def test_growth_follows_the_growth_that_was_billed() -> None:
    points = after([(1000, 21_000), (2000, 22_200)])
    assert calibrated(points, 3000) == 23_400


def test_one_odd_bill_does_not_make_text_ten_times_as_dense() -> None:
    points = after([(1000, 1000), (2000, 11_000)])
    assert calibrated(points, 3000) == 11_000 + 1330


def test_cut_conversation_restarts_calibration() -> None:
    points = after([(1000, 1100), (9000, 9900), (2000, 2500)])
    assert points == ((1000, 1100), (2000, 2500))


def test_empty_bill_is_ignored() -> None:
    assert learned(((1000, 1100),), 2000, None) == ((1000, 1100),)
    assert learned(((1000, 1100),), 2000, 0) == ((1000, 1100),)
    assert learned(((1000, 1100),), 2000, -5) == ((1000, 1100),)


def test_implausible_bill_is_ignored() -> None:
    assert learned(((1000, 1100),), 5000, 1) == ((1000, 1100),)
    assert learned(((1000, 1100),), 5000, 10**9) == ((1000, 1100),)
