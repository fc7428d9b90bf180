"""What `anaphora rules check` found, as data."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from anaphora.analysis.rules_check import Row, Seen
from anaphora.analysis.trace.sources import Problem, Source


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    calls: int
    """Billed calls that were asked."""
    conversations: int
    threshold: float
    rows: tuple[Row, ...]
    """The contradicted first."""
    failed: tuple[str, ...]
    """The verified rows that are contradicted: why the exit code is 1."""
    skipped: tuple[Trouble, ...]
    passed_over: tuple[Trouble, ...]
    """Nothing wrong, and nothing to compare."""


def report_of(
    rows: list[Row],
    billed: list[Seen],
    found: list[Source],
    problems: list[Problem],
    threshold: float,
) -> Report:
    places = {source.trace.id: source.place for source in found}
    return Report(
        calls=len(billed),
        conversations=len({call.trace for call in billed}),
        threshold=threshold,
        rows=tuple(_placed(row, places) for row in rows),
        failed=tuple(name(row) for row in rows if row.contradicted and row.verified),
        skipped=tuple(_trouble(one) for one in problems if not one.harmless),
        passed_over=tuple(_trouble(one) for one in problems if one.harmless),
    )


def name(row: Row) -> str:
    return f"{row.provider} {row.figure}"


def _placed(row: Row, places: dict[str, str]) -> Row:
    examples = tuple(replace(one, place=places.get(one.trace, "")) for one in row.examples)
    return replace(row, examples=examples)


def _trouble(problem: Problem) -> Trouble:
    return Trouble(place=problem.place, reason=problem.reason)
