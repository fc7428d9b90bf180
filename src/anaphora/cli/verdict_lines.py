"""A verdict as lines of a report."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora.cache.verdict import Result, Verdict

from .terminal import Line

RESULT_COLOURS: dict[Result, str] = {
    "first": "dim",
    "hit": "green",
    "partial": "yellow",
    "miss": "red",
    "not_cacheable": "dim",
}


#: Results whose cause is shown.
MISSED: tuple[Result, ...] = ("partial", "miss")


def detail_lines(verdict: Verdict) -> Iterator[Line]:
    """What follows the sentence: further causes, both excerpts of a change, what was predicted."""
    for cause in verdict.other_causes:
        yield f"    and {cause.text}"
    if verdict.change is not None:
        before, after = verdict.change.excerpts
        yield f"    - {before}", "red"
        yield f"    + {after}", "green"
    expected, billed = verdict.predicted, verdict.billed
    if billed is not None and expected not in (None, billed) and verdict.result in MISSED:
        yield f"    predicted {expected:,} read, billed {billed:,}", "dim"
