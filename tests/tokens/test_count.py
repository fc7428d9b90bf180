"""A count keeps its promises through arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.errors import InvalidRequest
from anaphora.tokens import NOTHING, Count

numbers = st.integers(0, 10**7)
errors = st.floats(0, 0.99)
counts = st.builds(Count.about, numbers, errors) | st.builds(Count.exactly, numbers)


@st.composite
def counts_of_something(draw: st.DrawFn) -> tuple[Count, int]:
    """A count, and a number of tokens that it holds."""
    count = draw(counts)
    return count, draw(st.integers(count.low, count.high))


@given(numbers)
def test_exact_is_exact(tokens: int) -> None:
    count = Count.exactly(tokens)
    assert count.exact
    assert count.error == 0
    assert count.holds(tokens)
    assert not count.holds(tokens + 1)
    assert repr(count) == f"<Count {tokens}>"


@given(numbers, errors, st.floats(-1, 1))
def test_an_estimate_holds_whatever_is_within_its_error(
    tokens: int, error: float, off: float
) -> None:
    assert Count.about(tokens, error).holds(round(tokens * (1 + off * error)))


def test_the_error_is_a_share_of_the_tokens() -> None:
    count = Count.about(1000, 0.25)
    assert (count.low, count.high, count.error, count.exact) == (750, 1250, 0.25, False)
    assert repr(count) == "<Count about 1000, 750 to 1250>"


@given(counts_of_something(), counts_of_something())
def test_a_sum_holds_the_sum(a: tuple[Count, int], b: tuple[Count, int]) -> None:
    assert (a[0] + b[0]).holds(a[1] + b[1])


@given(counts_of_something(), counts_of_something())
def test_a_difference_holds_the_difference(a: tuple[Count, int], b: tuple[Count, int]) -> None:
    assert (a[0] - b[0]).holds(max(0, a[1] - b[1]))


@given(counts, counts, counts)
def test_sums_do_not_depend_on_the_order(a: Count, b: Count, c: Count) -> None:
    assert (a + b) + c == a + (b + c) == (c + b) + a
    assert a + NOTHING == a


@given(counts, counts)
def test_a_sum_is_exact_only_when_both_are(a: Count, b: Count) -> None:
    assert (a + b).exact == (a.exact and b.exact)


def test_an_error_below_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"error: an error is a share of 0 or more, not -0\.1"):
        Count.about(10, -0.1)
