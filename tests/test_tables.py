"""A test of many rows must be able to fail."""

from __future__ import annotations

import pytest
from support.tables import check_rows, each_row, table


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


@pytest.fixture(scope="module")
def two() -> int:
    return 2


@each_row("number", [0, pytest.param(4, id="four")])
@each_row("factor", [1, 3])
def test_rows_share_fixtures(number: int, factor: int, two: int) -> None:
    assert number * factor % (two * two) == 0


def test_each_row_names_what_failed() -> None:
    values = [(1, ValueError), (2, ValueError), pytest.param(3, KeyError, id="of its own")]

    @each_row("number, error", values)
    def check(number: int, error: type[Exception]) -> None:
        with pytest.raises(error):
            int("two" if number == 2 else "2")

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows failed: 1-ValueError, of its own"):
        check()


def test_rows_of_rows_are_named() -> None:
    @each_row("first", ["1", "b", "c"])
    @each_row("second", ["2", "d"])
    def check(first: str, second: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011
            int(first + second)

    with pytest.raises(BaseExceptionGroup, match="1 of 3 rows failed: 1") as caught:
        check()
    (inner,) = caught.value.exceptions
    assert str(inner).startswith("1 of 2 rows failed: 2")


def test_rows_are_named_by_ids() -> None:
    for ids in (["one", "two"], lambda number: {1: "one", 2: "two"}[number]):
        with pytest.raises(BaseExceptionGroup, match="1 of 2 rows failed: one"):
            each_row("number", [1, 2], ids)(check_even)()


def test_rows_cannot_be_marked_and_need_their_parameters() -> None:
    with pytest.raises(AssertionError, match="cannot be marked"):
        each_row("number", [pytest.param(1, marks=pytest.mark.soak)])
    with pytest.raises(AssertionError, match="no parameter"):
        each_row("other", [1])(check_even)
