"""Verdicts on recordings: a loss is named where the clock, a note of the program or the rules prove
it, and is unknown elsewhere."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from support.small_traces import at, bill, trace_of
from support.tables import each_row

from anaphora.analysis.trace.format import TraceCall, TraceUsage
from anaphora.analysis.trace.verdicts import judge_traces
from anaphora.cache.verdict import Verdict


def verdicts(*calls: TraceCall, **more: Any) -> list[Verdict]:
    return [one.verdict for one in judge_traces([trace_of(*calls, **more)])]


def hour(read: int, written: int) -> TraceUsage:
    return TraceUsage(cache_read=read, cache_write_1h=written, output=10)


FIRST = at(0, 1, bill(written=20_000))
UNKNOWN = (
    "Unknown: 0 of 20,000 cached tokens read; the bodies of the requests are not recorded, so the"
    " change is not known: `anaphora watch -- COMMAND` compares them."
)
LATE = "TTL 5m, previous call 67 min earlier) (and 1 more reason)"
#: When the second call was sent, what is recorded of it, and its verdict.
SECOND = {
    "nothing but its bill": (60, {}, "unknown", ["unknown"], 0, UNKNOWN),
    "a compaction": (60, {"began_by": "compaction"}, "miss", ["compaction"], 0, "summary"),
    "an edited message": (60, {"began_by": "edit"}, "miss", ["history_edited"], 0, "removed"),
    "a resumed session": (60, {"began_by": "resume"}, "miss", ["resumed"], 0, "resumed 60 s after"),
    "a fork": (60, {"began_by": "fork"}, "miss", ["resumed"], 0, "forked 60 s after"),
    "another model": (
        60,
        {"note": "model_change:claude-opus-4-5"},
        "miss",
        ["model_changed"],
        20_000,
        "model",
    ),
    "a late resume": (4000, {"began_by": "resume"}, "miss", ["expired", "resumed"], 20_000, LATE),
    "a late edit": (
        4000,
        {"began_by": "edit"},
        "miss",
        ["expired", "history_edited"],
        20_000,
        LATE,
    ),
}


@each_row("moment, facts, result, causes, lost, said", [*SECOND.values()])
def test_cause_is_what_the_recording_says(
    moment: float, facts: dict[str, Any], result: str, causes: list[str], lost: int, said: str
) -> None:
    _, second = verdicts(FIRST, at(moment, 3, bill(written=21_000), **facts))
    assert (second.result, [cause.kind for cause in second.causes]) == (result, causes)
    assert (second.lost, said in str(second)) == (lost, True)


def test_entry_that_was_written_for_an_hour_lives_for_one() -> None:
    """No markers are recorded; the bills show the TTL, also of calls that wrote nothing."""
    calls = [at(0, 1, hour(0, 20_000)), at(60, 3, hour(20_000, 0))]
    *_, soon = verdicts(*calls, at(1800, 5, hour(5000, 16_000)))
    assert (soon.result, soon.lost) == ("unknown", 0)
    *_, late = verdicts(*calls, at(4000, 5, hour(5000, 16_000)))
    assert (late.cause, late.lost) == ("expired", 15_000)


def test_the_look_back_is_no_cause_where_the_markers_are_not_recorded() -> None:
    """Programs set several markers, of which their files tell nothing."""
    calls = FIRST, at(60, 51, bill(written=24_000))
    assert [(one.cause, one.lost) for one in verdicts(*calls)][1] == ("unknown", 0)
    marked = [replace(call, breakpoints=((call.messages - 1, "5m"),)) for call in calls]
    _, second = verdicts(*marked)
    assert (second.cause, second.lost) == ("lookback_exceeded", 20_000)


def test_call_beside_the_conversation_is_a_side_call() -> None:
    """The call after it reads what the one before it left."""
    _, side, third = verdicts(
        FIRST, at(30, 3, bill(input=900)), at(60, 3, bill(read=20_000, written=500))
    )
    assert (side.result, side.cause, side.lost) == ("first", "side_call", 0)
    assert str(side).startswith("Side call: it shares no beginning")
    assert (third.result, third.cause) == ("hit", None)
