"""Real bills: nothing is called broken that was not."""

from __future__ import annotations

import functools
import gzip
from collections import Counter
from collections.abc import Iterator

import pytest
from support.traces import FOLDER, missing

from anaphora.analysis.trace.format import Trace, TraceCall, read_line, unsupported
from anaphora.analysis.trace.verdicts import TraceVerdict, judge_traces

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@functools.cache
def recorded(name: str) -> list[Trace]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz") as lines:
        traces = [read_line(line, f"{name}:{number}") for number, line in enumerate(lines, 1)]
    return [trace for trace in traces if unsupported(trace.provider, trace.model) is None]


@functools.cache
def verdicts(name: str) -> list[TraceVerdict]:
    return list(judge_traces(recorded(name)))


def pairs(name: str) -> Iterator[tuple[TraceCall, TraceCall, TraceVerdict]]:
    """Each billed call with the one before it and its verdict."""
    judged = {(one.predicted.trace, one.predicted.call): one for one in verdicts(name)}
    for trace in recorded(name):
        before = None
        for index, call in enumerate(trace.calls):
            if call.usage is None or not call.usage.total:
                continue
            if before is not None:
                yield before, call, judged[trace.id, index]
            before = call


def clean(before: TraceCall, call: TraceCall) -> bool:
    """Within five minutes, everything that was there was read."""
    assert before.usage is not None
    assert call.usage is not None
    assert before.at is not None
    assert call.at is not None
    return call.at - before.at < 300 and call.usage.cache_read == before.usage.cached


@pytest.mark.long
def test_no_false_alarm_on_the_clean_pairs_of_pi_claude() -> None:
    """1,374 inside tool loops. Of five of them nothing was there to read: 0 = 0 + 0. Those are too
    short to be cached, which is reported, and nothing is lost by it."""
    conversations = {trace.id: trace for trace in recorded("pi_claude")}
    loops: Counter[str] = Counter()
    for before, call, judged in pairs("pi_claude"):
        if not clean(before, call):
            continue
        verdict = judged.verdict
        assert not verdict.broke, verdict.sentence
        assert not verdict.lost
        assert before.usage is not None
        expected = ("hit", None) if before.usage.cached else ("not_cacheable", "below_minimum")
        assert (verdict.result, verdict.cause) == expected, verdict.sentence
        if conversations[judged.predicted.trace].messages[call.messages - 1].role == "tool":
            loops[verdict.result] += 1
    assert loops == {"hit": 1369, "not_cacheable": 5}


@pytest.mark.parametrize("name", ["pi_claude", "claude_code", "deepseek_reasonix", "gemini_cli"])
@pytest.mark.long
def test_only_the_bill_of_an_older_entry_proves_a_loss_at_the_provider(name: str) -> None:
    change = Counter(one.verdict.cause for one in verdicts(name))
    blamed = [one.predicted for one in verdicts(name) if one.verdict.cause == "provider_side"]
    assert all(one.older and one.in_loop for one in blamed)
    assert change["provider_side"] <= change["unknown"]
    assert "changed" not in change


def test_gaps_of_six_minutes_and_more_are_expiries() -> None:
    late = [
        judged.verdict
        for before, call, judged in pairs("pi_claude")
        if call.at is not None and before.at is not None and call.at - before.at >= 360
    ]
    assert len(late) == 12
    assert all(verdict.cause == "expired" for verdict in late)
