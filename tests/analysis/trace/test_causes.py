"""The most likely cause of a difference, from what a recording shows."""

from __future__ import annotations

from typing import Any

from support.small_traces import bill
from support.tables import each_row

from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.predicted import CAUSE_TEXTS, Predicted
from anaphora.cache.simulator import Outcome, Span


def expected(read: int, reason: str = "found") -> Outcome:
    if not read:
        return Outcome((Span(0, 100, "written", reason),))  # type: ignore[arg-type]
    return Outcome((Span(0, read, "read", "found"),))


def call(outcome: Outcome, billed: TraceUsage, **facts: Any) -> Predicted:
    usual: dict[str, Any] = {"gap": 20.0, "baseline": 5000, "provider": "anthropic", "at": 0.0}
    usual |= {"trace": "conversation", "call": 1, "model": "claude-sonnet-4-5", "in_loop": True}
    return Predicted(outcome=outcome, billed=billed, **{**usual, **facts})


CASES: list[tuple[str | None, Outcome, TraceUsage, dict[str, Any]]] = [
    (None, expected(5000), bill(read=5000), {}),
    # More was read than predicted.
    ("written_by_others", expected(0), bill(read=900), {"baseline": None}),
    ("written_by_others", expected(0, "expired"), bill(read=900), {}),
    ("written_by_others", expected(0), bill(read=900), {"implicit": True}),
    ("outlived", expected(0, "expired"), bill(read=5000), {"older": True}),
    ("began_earlier", expected(0, "expired"), bill(read=5000), {"older": True, "ends_only": True}),
    ("older_entry", expected(0, "new"), bill(read=4000), {"older": True}),
    ("unrecorded_write", expected(5000), bill(read=5300), {}),
    ("within_granule", expected(4992), bill(read=5120), {"granule": 128, "implicit": True}),
    ("length_estimated", expected(2048), bill(read=5120), {"granule": 128, "implicit": True}),
    # Less was read.
    ("unexplained", expected(5000), bill(written=5200), {}),
    ("out_of_order", expected(5000), bill(written=5200), {"gap": -3.0}),
    ("prompt_changed", expected(5000), bill(written=4800), {}),
    ("routing", expected(5120), bill(input=5200), {"implicit": True, "granule": 128}),
    ("expired", expected(5120), bill(input=5200), {"implicit": True, "lapsed": expected(0)}),
    ("within_granule", expected(5120), bill(read=4992), {"implicit": True, "granule": 128}),
    ("older_entry", expected(5000), bill(read=4000, written=1200), {"older": True}),
    ("not_yet_visible", expected(5000), bill(4000, 1200), {"older": True, "gap": 2.0, "delay": 3}),
    ("messages_voided", expected(5000), bill(read=900, written=4200), {}),
]


@each_row("cause, outcome, billed, facts", CASES)
def test_the_cause(
    cause: str | None, outcome: Outcome, billed: TraceUsage, facts: dict[str, Any]
) -> None:
    assert call(outcome, billed, **facts).cause == cause


def test_every_cause_has_a_text_and_a_case() -> None:
    assert {cause for cause, *_ in CASES} - {None} == set(CAUSE_TEXTS)


def test_without_a_bill_there_is_no_cause() -> None:
    assert call(expected(5000), None).cause is None  # type: ignore[arg-type]
