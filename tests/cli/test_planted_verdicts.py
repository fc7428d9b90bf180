"""`watch` and `explain` against causes planted in conversations with the emulator: every loss is
named by its cause, and none where nothing was planted."""

from __future__ import annotations

from support.planted_runs import PLACES
from support.planted_scripts import every_script, planted_run
from support.tables import each_row

from anaphora.cache.verdict import Verdict


def names_loss(verdict: Verdict) -> bool:
    return verdict.result in ("partial", "miss") and verdict.cause is not None


@each_row("place, name", [*every_script()])
def test_verdicts_name_what_was_planted_and_nothing_else(place: str, name: str) -> None:
    for call in planted_run(place, name).calls:
        for verdict in (call.watched, call.explained):
            if (call.planted and call.lost) or names_loss(verdict):
                assert verdict.cause in call.planted, str(verdict)
            if not call.planted:
                assert verdict.lost == 0, str(verdict)


@each_row("place", [*PLACES])
def test_watch_and_explain_agree(place: str) -> None:
    for name in ("a compaction", "an expired entry", "an edited message", "a side call"):
        for call in planted_run(place, name).calls:
            one, two = call.watched, call.explained
            assert (one.result, one.predicted, one.lost) == (two.result, two.predicted, two.lost)


def test_a_compaction_loses_nothing_that_is_not_sent_again() -> None:
    run = planted_run("anthropic", "a compaction")
    (call,) = (call for call in run.calls if call.planted)
    assert (call.watched.cause, call.watched.lost) == ("compaction", 0)
    assert str(call.watched).startswith("Partial hit: ")
