"""Tests of many small rows: one test checks them all, and names each that fails.

    @each_row("text, number", [("1", 1), ("2", 2)])
    def test_number(text: str, number: int) -> None:
        assert int(text) == number

For pytest a test takes longer than such a check does. Rows that take long, or that need a fixture of
their own, are `pytest.mark.parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pytest

#: A name, and what is checked.
Row: TypeAlias = tuple[str, tuple[Any, ...]]
Check: TypeAlias = Callable[..., None]
Names: TypeAlias = Iterable[object] | Callable[[Any], object] | None

#: Of how many rows that fail the traceback is shown.
_SHOWN = 10


def check_rows(rows: Iterable[Row], check: Check) -> None:
    count = 0
    failed: list[tuple[str, BaseException]] = []
    for name, arguments in rows:
        count += 1
        try:
            check(*arguments)
        except (Exception, BaseExceptionGroup, pytest.fail.Exception) as problem:
            problem.add_note(f"row: {name}")
            failed.append((name, problem))
    if failed:
        names = ", ".join(name for name, _ in failed)
        problems = [problem for _, problem in failed[:_SHOWN]]
        raise BaseExceptionGroup(f"{len(failed)} of {count} rows failed: {names}", problems)
    assert count, "a table without rows"


def table(rows: Iterable[Row]) -> Callable[[Check], Callable[[], None]]:
    """The decorated function checks one row; the test checks all."""
    rows = list(rows)

    def decorate(check: Check) -> Callable[[], None]:
        def test() -> None:
            check_rows(rows, check)

        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__doc__, test.__module__ = check.__doc__, check.__module__
        return test

    return decorate


def each_row(
    names: str | Sequence[str], values: Iterable[Any], ids: Names = None
) -> Callable[[Check], Check]:
    """The decorated function checks one row; the test checks all. Arguments are those of
    `pytest.mark.parametrize`; other parameters of the function are fixtures, which the rows share."""
    keys = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    given = ids if ids is None or callable(ids) else list(ids)
    rows = [_row(keys, number, value, given) for number, value in enumerate(values)]

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        def test(*instance: Any, **fixtures: Any) -> None:
            check_rows(rows, lambda row: check(*instance, **row, **fixtures))

        signature = inspect.signature(check)
        missing = set(keys) - signature.parameters.keys()
        assert not missing, f"{check.__name__} has no parameter {missing}"
        kept = [each for name, each in signature.parameters.items() if name not in keys]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return decorate


def _row(keys: Sequence[str], number: int, value: Any, ids: Names) -> Row:
    name = ids[number] if isinstance(ids, list) else None
    if isinstance(value, type(pytest.param())):
        assert not value.marks, "one row of a test cannot be marked"
        name, values = value.id or name, value.values
    else:
        values = (value,) if len(keys) == 1 else value
    arguments = dict(zip(keys, values, strict=True))
    if name is None:
        name = "-".join(_text(key, number, each, ids) for key, each in arguments.items())
    return str(name), (arguments,)


def _text(key: str, number: int, value: Any, ids: Names) -> str:
    named = ids(value) if callable(ids) else None
    if named is not None:
        return str(named)
    if isinstance(value, str | int | float | None):
        return str(value)
    return getattr(value, "__name__", f"{key}{number}")
