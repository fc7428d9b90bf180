"""Provider diagnoses: read from replies, and compared with the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.planted import PLACES, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import wire
from anaphora.cache.verdict import Diagnosis, Verdict, diagnosis_of
from anaphora.values import ReplyEnd

Json = dict[str, Any]


def anthropic_reply(diagnostics: Any) -> Any:
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
        "diagnostics": diagnostics,
    }
    return wire.get("anthropic").read_reply(json.dumps(answer).encode())


def openai_reply(diagnostics: Any) -> Any:
    content = [{"type": "output_text", "text": "Hello.", "annotations": []}]
    answer = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5.6",
        "status": "completed",
        "output": [{"type": "message", "id": "m", "role": "assistant", "content": content}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        "prompt_cache_diagnostics": diagnostics,
    }
    return wire.get("openai_responses").read_reply(json.dumps(answer).encode())


@each_row(
    "diagnostics, expected",
    [
        (None, None),
        ({"cache_miss_reason": None}, None),
        (
            {"cache_miss_reason": {"type": "tools_changed"}},
            Diagnosis(provider="anthropic", code="tools_changed"),
        ),
        (
            {"cache_miss_reason": {"type": "messages_changed", "cache_missed_input_tokens": 812}},
            Diagnosis(provider="anthropic", code="messages_changed", tokens=812),
        ),
        (
            {"cache_miss_reason": {"type": "unavailable"}},
            Diagnosis(provider="anthropic", code="unavailable", conclusive=False),
        ),
        (
            {"cache_miss_reason": {"type": "previous_message_not_found"}},
            Diagnosis(provider="anthropic", code="previous_message_not_found", conclusive=False),
        ),
    ],
)
def test_anthropic_diagnostics(diagnostics: Any, expected: Diagnosis | None) -> None:
    assert diagnosis_of(anthropic_reply(diagnostics)) == expected


@pytest.mark.parametrize(
    "diagnostics, expected",
    [
        (None, None),
        ({"type": "cache_hit"}, Diagnosis(provider="openai", code="cache_hit")),
        (
            {"type": "cache_miss", "reason": "tools", "cache_missed_tokens": 2048},
            Diagnosis(provider="openai", code="tools", tokens=2048),
        ),
        (
            {"type": "comparison_response_not_found"},
            Diagnosis(provider="openai", code="comparison_response_not_found", conclusive=False),
        ),
    ],
)
def test_openai_prompt_cache_diagnostics(diagnostics: Any, expected: Diagnosis | None) -> None:
    assert diagnosis_of(openai_reply(diagnostics)) == expected


def test_diagnostics_in_a_stream() -> None:
    start: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 1},
        "diagnostics": {"cache_miss_reason": {"type": "system_changed"}},
    }
    end = {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "message_delta", **end},
        {"type": "message_stop"},
    ]
    lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    reader = wire.get("anthropic").reader()
    last = [*reader.feed(lines.encode()), *reader.close()][-1]
    assert isinstance(last, ReplyEnd)
    result = diagnosis_of(last.reply)
    assert result == Diagnosis(provider="anthropic", code="system_changed")


def moved_tools() -> tuple[Json, Json]:
    before, after = spec(), grown(spec())
    after["tools"].reverse()
    return before, after


def judged(name: str, word: str, *, plant: bool = True) -> Verdict:
    place = PLACES[name]
    before, after = moved_tools() if plant else (spec(), grown(spec()))
    one, two = split(place, body(place, before)), split(place, body(place, after))
    provider = "anthropic" if name == "anthropic" else "openai"
    return verdict_of(place, one, two, diagnosis=Diagnosis(provider=provider, code=word, tokens=7))


@pytest.mark.parametrize(
    "name, word", [("anthropic", "tools_changed"), ("openai_responses", "tools")]
)
def test_agreement_is_shown(name: str, word: str) -> None:
    result = judged(name, word)
    assert result.agrees is True
    assert result.sentence.endswith(f"The provider reports {word} (7 tokens), which agrees.")


@pytest.mark.parametrize(
    "name, word", [("anthropic", "system_changed"), ("openai_responses", "model")]
)
def test_disagreement_is_shown_and_does_not_overrule_the_bytes(name: str, word: str) -> None:
    result = judged(name, word)
    assert result.agrees is False
    assert "tools_changed" in [cause.kind for cause in result.causes]
    assert "disagrees" in result.sentence


def test_a_diagnosis_without_a_changed_byte_is_contradicted() -> None:
    result = judged("anthropic", "messages_changed", plant=False)
    assert (result.cause, result.agrees) == ("provider_side", False)


def test_an_inconclusive_diagnosis_neither_agrees_nor_disagrees() -> None:
    place = PLACES["anthropic"]
    before, after = moved_tools()
    diagnosis = Diagnosis(provider="anthropic", code="unavailable", conclusive=False)
    one, two = split(place, body(place, before)), split(place, body(place, after))
    assert verdict_of(place, one, two, diagnosis=diagnosis).agrees is None


@pytest.mark.parametrize(
    "word, was, now",
    [
        ("prompt_cache_key", {"prompt_cache_key": "a"}, {"prompt_cache_key": "b"}),
        ("verbosity", {}, {"text": {"verbosity": "low"}}),
        ("reasoning_effort", {}, {"reasoning": {"effort": "low"}}),
        ("service_tier", {}, {"service_tier": "flex"}),
    ],
)
def test_openai_parameter_codes(word: str, was: Json, now: Json) -> None:
    place = PLACES["openai_responses"]
    one = split(place, body(place, {**spec(), "params": was}))
    two = split(place, body(place, {**grown(spec()), "params": now}))
    result = verdict_of(place, one, two, diagnosis=Diagnosis(provider="openai", code=word))
    assert result.agrees is True
