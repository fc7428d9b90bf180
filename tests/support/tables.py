"""Tests of many small rows: one test checks them all, and names each that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

#: A name, and what is checked.
Row: TypeAlias = tuple[str, tuple[Any, ...]]
Check: TypeAlias = Callable[..., None]

#: Of how many rows that fail the traceback is shown.
_SHOWN = 10


def check_rows(rows: Iterable[Row], check: Check) -> None:
    count, failed = 0, []
    for name, arguments in rows:
        count += 1
        try:
            check(*arguments)
        except Exception as problem:
            problem.add_note(f"row: {name}")
            failed.append((name, problem))
    if failed:
        names = ", ".join(name for name, _ in failed)
        problems = [problem for _, problem in failed[:_SHOWN]]
        raise ExceptionGroup(f"{len(failed)} of {count} rows failed: {names}", problems)
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
