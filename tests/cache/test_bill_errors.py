"""The range of a predicted bill, from the errors of earlier predictions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.cache.read_history import BillErrors

ONE = ("model", "loop"), ("model",), ()


def learned(*ratios: float) -> BillErrors:
    errors = BillErrors()
    for ratio in ratios:
        errors.learn(ONE, 100.0, 100.0 * ratio)
    return errors


def test_ten_errors_make_a_range() -> None:
    assert learned(*[1.0, 1.2, 0.9] * 3).range_of(ONE, 50.0) is None
    span = learned(*[1.0, 1.2, 0.9] * 3, 1.1).range_of(ONE, 50.0)
    assert span is not None
    assert (span.low, span.high) == pytest.approx((45.0, 60.0))


def test_before_that_the_wider_family_counts() -> None:
    errors = learned(*[1.1] * 10)
    other = ("another", "loop"), ("another",), ()
    span = errors.range_of(other, 100.0)
    assert span is not None
    assert span.low == pytest.approx(110.0)


def test_a_rare_loss_does_not_widen_a_range() -> None:
    """The shortest interval that holds enough bills, not the one in the middle."""
    span = learned(*[*[1.0, 1.01] * 24, 9.0] * 4).range_of(ONE, 100.0)
    assert span is not None
    assert span.high < 102.0


@pytest.mark.parametrize("missed", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_nine_bills_in_ten_are_inside(seed: int, missed: float) -> None:
    draw, errors = random.Random(seed), BillErrors()
    inside = ranged = 0
    for _ in range(600):
        ratio = draw.lognormvariate(0.0, 0.1) * (8.0 if draw.random() < missed else 1.0)
        span = errors.range_of(ONE, 100.0)
        if span is not None:
            ranged += 1
            inside += span.low <= 100.0 * ratio <= span.high
        errors.learn(ONE, 100.0, 100.0 * ratio)
    assert inside / ranged >= 0.9


@given(st.lists(st.floats(0.01, 100.0), min_size=10, max_size=60))
def test_a_range_lies_among_the_errors(ratios: list[float]) -> None:
    span = learned(*ratios).range_of(ONE, 1.0)
    assert span is not None
    assert min(ratios) * 0.999 <= span.low <= span.high <= max(ratios) * 1.001


def test_nothing_is_learned_from_a_bill_of_nothing() -> None:
    errors = BillErrors()
    for _ in range(20):
        errors.learn(ONE, 0.0, 5.0)
        errors.learn(ONE, 5.0, 0.0)
    assert errors.range_of(ONE, 1.0) is None
