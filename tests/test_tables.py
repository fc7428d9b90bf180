"""A test of many rows must be able to fail."""

from __future__ import annotations

import pytest
from support.tables import check_rows, table


def check_even(number: int) -> None:
    assert number % 2 == 0


def test_failing_rows_are_named_and_the_others_checked() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 rows failed: one, three") as caught:
        check_rows([("one", (1,)), ("two", (2,)), ("three", (3,)), ("four", (4,))], check_even)
    assert [type(problem) for problem in caught.value.exceptions] == [AssertionError] * 2
    assert caught.value.exceptions[1].__notes__ == ["row: three"]


def test_table_without_rows_fails() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        check_rows([], check_even)


@table([("zero", (0,)), ("two", (2,))])
def test_decorated_check_has_its_name_and_no_arguments(number: int) -> None:
    """Doc."""
    check_even(number)
    test = test_decorated_check_has_its_name_and_no_arguments
    assert (test.__name__, test.__doc__) == (
        "test_decorated_check_has_its_name_and_no_arguments",
        "Doc.",
    )
    assert test.__code__.co_argcount == 0
