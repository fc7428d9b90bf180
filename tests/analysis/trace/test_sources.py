"""What all readers of files share: recognising, clocks, places."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_traces import at, bill, trace_of
from support.tables import each_row

from anaphora import catalog
from anaphora.analysis.trace import detect
from anaphora.analysis.trace.format import TraceCall, stand_in, unsupported
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, checked, count, numbered, seconds


@each_row(
    "one, format",
    [
        ({"calls": [], "messages": []}, "trace"),
        ({"type": "user", "sessionId": "s", "message": {}}, "claude_code"),
        ({"type": "assistant", "parentUuid": None}, "claude_code"),
        ({"type": "event_msg", "payload": {}}, "codex"),
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


def test_a_backward_clock_is_reported_and_its_call_not_compared() -> None:
    back, ends, source = placed(
        at(100, 1, bill(written=5000)),
        at(96.5, 3, bill(read=5000)),
        at(120, 5, bill(read=5000), t_end=110),
        at(130, 7, bill(read=5000)),
    )
    assert str(back) == (
        "f:3: calls[1] is 3.5 s earlier than the call before it: the clock runs backwards"
    )
    assert str(ends) == "f:3: calls[2] ends 10.0 s before it begins: the clock runs backwards"
    assert isinstance(source, FoundTrace)
    assert [call.usage is not None for call in source.trace.calls] == [True, False, False, True]
    assert [call.at for call in source.trace.calls] == [100, None, None, 130]


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
