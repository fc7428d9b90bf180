"""What all readers of files share: recognising, clocks, places."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_traces import at, bill, trace_of
from support.tables import each_row

from anaphora import catalog
from anaphora.analysis.trace import detect
from anaphora.analysis.trace.format import TraceCall, stand_in, unsupported
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, checked, count, numbered, seconds
from anaphora.analysis.trace.predict import Predictor


@each_row(
    "one, format",
    [
        ({"calls": [], "messages": []}, "trace"),
        ({"type": "user", "sessionId": "s", "message": {}}, "claude_code"),
        ({"type": "assistant", "parentUuid": None}, "claude_code"),
        ({"type": "event_msg", "payload": {}}, "codex"),
        ({"type": "token_usage_record", "payload": {}}, "codex"),
        ({"type": "session.start", "data": {}, "id": "1", "parentId": None}, "copilot"),
        ({"type": "session", "version": 3, "id": "1", "timestamp": "", "cwd": "/"}, "pi"),
        ({"type": "message", "id": "1", "parentId": None, "message": {"role": "user"}}, "pi"),
        ({"info": {"id": "ses_1"}, "messages": [{"info": {}, "parts": []}]}, "opencode"),
        ({"type": "message", "role": "user"}, None),
        ({"request": {}, "response": {}}, None),
        ({}, None),
    ],
)
def test_a_format_is_recognised_by_its_structure(one: dict[str, Any], format: str | None) -> None:
    assert detect(one) == format


def test_lines_are_numbered_as_editors_do_and_empty_ones_passed_over() -> None:
    assert [line.place for line in numbered([b"{}\n", b"\n", b" \n", b"{}"], "f")] == ["f:1", "f:4"]


@each_row(
    "stamp, expected",
    [
        (1700000000, 1700000000.0),
        (1700000000.5, 1700000000.5),
        (1700000000500, 1700000000.5),
        ("2023-11-14T22:13:20Z", 1700000000.0),
        ("2023-11-14T22:13:20.250+00:00", 1700000000.25),
        ("2023-11-14T22:13:20", 1700000000.0),
        ("yesterday", None),
        (None, None),
        (True, None),
    ],
)
def test_timestamp_formats_of_loggers(stamp: object, expected: float | None) -> None:
    assert seconds(stamp) == expected


@pytest.mark.parametrize("value", [-1, 1.5, "12", True])
def test_invalid_counts_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"usage\.tokens"):
        count({"tokens": value}, "tokens")


def placed(*calls: TraceCall) -> list[FoundTrace | Problem]:
    return list(checked(FoundTrace("f:3", trace_of(*calls))))


def test_a_clock_that_stepped_back_keeps_every_bill_and_every_other_gap() -> None:
    stepped, ends, source = placed(
        at(100, 1, bill(written=5000)),
        at(96.5, 3, bill(read=5000), t_end=98),
        at(120, 5, bill(read=5000), t_end=110),
        at(130, 7, bill(read=5000)),
    )
    assert str(stepped) == (
        "f:3: the clock stepped back before 1 call (2), by 3.5 s at most: the time since the call"
        " before is unknown, and later times are moved by the step"
    )
    assert str(ends) == (
        "f:3: the clock stepped back within 1 call (3): when they began is unknown"
    )
    assert isinstance(stepped, Problem)
    assert isinstance(ends, Problem)
    assert (stepped.kind, ends.kind) == ("notice", "notice")
    assert isinstance(source, FoundTrace)
    assert all(call.usage is not None for call in source.trace.calls)
    assert [call.at for call in source.trace.calls] == [100, 100, 113.5, 133.5]
    assert [call.gap_unknown for call in source.trace.calls] == [False, True, False, False]
    assert source.trace.calls[1].t_end == 101.5


@given(
    gaps=st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
    steps=st.dictionaries(st.integers(1, 12), st.integers(-20_000, -1)),
)
def test_only_the_gap_at_a_step_of_the_clock_is_unknown(
    gaps: list[int], steps: dict[int, int]
) -> None:
    clock, calls = 1e9, [at(1e9, 1, bill(written=5000))]
    for index, gap in enumerate(gaps, 1):
        clock += gap + steps.get(index, 0)
        calls.append(at(clock, 1, bill(read=5000)))
    *_, found = placed(*calls)
    assert isinstance(found, FoundTrace)
    read = found.trace.calls
    for index, gap in enumerate(gaps, 1):
        before, call = read[index - 1].at, read[index].at
        assert before is not None
        assert call is not None
        moved = gap + steps.get(index, 0)
        assert call - before == (0 if moved < 0 else moved)
        assert call_gap_unknown(read[index]) == (moved < 0)
    assert [call.usage for call in read] == [call.usage for call in calls]


def call_gap_unknown(call: TraceCall) -> bool:
    (predicted,) = [
        one
        for one in Predictor().play([trace_of(at(1, 1, bill(written=5000)), call)])
        if one.call == 1
    ]
    return predicted.gap is None


def test_equal_and_missing_times_are_accepted() -> None:
    calls = at(100, 1, None), TraceCall(messages=3), at(100, 5, None)
    (source,) = placed(*calls)
    assert isinstance(source, FoundTrace)
    assert source.trace.calls == calls


@each_row(
    "name, provider",
    [
        ("anthropic", "anthropic"),
        ("Anthropic", "anthropic"),
        ("gemini", "google"),
        ("api.anthropic.com", "anthropic"),
        ("api.groq.com", "groq"),
        ("nobody", None),
        ("api.nobody.com", None),
    ],
)
def test_provider_aliases(name: str, provider: str | None) -> None:
    assert catalog.provider_named(name) == provider


@each_row(
    "provider, model, rejected, noted",
    [
        ("anthropic", "claude-sonnet-4-5-20250929", None, None),
        ("anthropic", "claude-9", None, "unknown model 'claude-9' of anthropic: simulated with"),
        ("google", "", None, "no model is recorded: simulated with the stand-in rows of google"),
        ("vllm", "whatever/is-loaded", None, None),
        ("nobody", "m", "unknown provider 'nobody'; name one with --provider: alibaba, ", None),
        ("nobody", "gpt-5.5", "--provider (gpt-5.5 is a model of openai): alibaba, ", None),
    ],
)
def test_unknown_providers_are_rejected_and_unknown_models_noted(
    provider: str, model: str, rejected: str | None, noted: str | None
) -> None:
    for found, expected in (
        (unsupported(provider, model), rejected),
        (stand_in(provider, model), noted),
    ):
        assert found is None if expected is None else expected in (found or "")
