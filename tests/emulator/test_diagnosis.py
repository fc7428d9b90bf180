"""The provider's diagnosis of a miss agrees with our verdict on the same two calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora import catalog, wire
from anaphora.cache import verdict
from anaphora.cache.verdict import SentCall
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.wire.cutting import cut

LONG = "A beginning that stays the same. " * 400
KEYS = {"authorization": "Bearer k", "anthropic-version": "2023-06-01"}
TOOL: Any = {"name": "look", "description": LONG}
SCHEMA: Any = {"type": "object", "properties": {}}
ANTHROPIC: Any = {
    "model": "claude-opus-5-5",
    "max_tokens": 100,
    "tools": [{**TOOL, "input_schema": SCHEMA}],
    "system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Hello"}],
    "diagnostics": {"previous_message_id": None},
}
OPENAI: Any = {
    "model": "gpt-5.6",
    "tools": [{**TOOL, "type": "function", "parameters": SCHEMA}],
    "instructions": LONG,
    "input": "Hello",
}
HOMES = {"anthropic": ("/v1/messages", ANTHROPIC), "openai_responses": ("/v1/responses", OPENAI)}


def send(engine: Engine, name: str, body: Any, at: float) -> tuple[Any, SentCall]:
    data = json.dumps(body).encode()
    path = HOMES[name][0]
    answer = engine.respond(
        EmulatorRequest(method="POST", path=path, headers=KEYS, body=data, now=at)
    )
    assert answer.status == 200, answer.body
    codec = wire.get(name)
    reply = codec.read_reply(answer.body)
    return reply, SentCall(rendered=cut(codec, data), at=at, usage=reply.usage)


@pytest.mark.parametrize(
    "name, change, word",
    [
        ("anthropic", {"system": [{**ANTHROPIC["system"][0], "text": "Now. " + LONG}]}, "system_changed"),
        ("anthropic", {"tools": [{**ANTHROPIC["tools"][0], "description": "Now. " + LONG}]}, "tools_changed"),
        ("openai_responses", {"instructions": "Now. " + LONG}, "input_changed"),
        ("openai_responses", {"tools": [{**OPENAI["tools"][0], "description": "Now. " + LONG}]}, "tools_changed"),
        ("openai_responses", {"prompt_cache_key": "another"}, "prompt_cache_key_changed"),
        ("openai_responses", {"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
    ],
)  # fmt: skip
def test_diagnosis_and_verdict_agree(name: str, change: Any, word: str) -> None:
    engine, body = Engine(), HOMES[name][1]
    first, before = send(engine, name, body, 0.0)
    compared: Any = {"prompt_cache_options": {"comparison_response_id": first.id}}
    if name == "anthropic":
        compared = {"diagnostics": {"previous_message_id": first.id}}
    second, after = send(engine, name, {**body, **change, **compared}, 10.0)
    diagnosis = verdict.diagnosis_of(second)
    assert diagnosis is not None
    assert diagnosis.code == word
    assert diagnosis.tokens == (first.usage.written_total or 0) - (second.usage.read or 0)
    rules = catalog.rules(wire.PROVIDERS[name], body["model"])
    found = verdict.judge(before, after, rules, diagnosis=diagnosis)
    assert found.result == "miss"
    assert found.agrees


def test_unknown_comparison_response_is_reported() -> None:
    engine = Engine()
    compared = {"prompt_cache_options": {"comparison_response_id": "resp_gone"}}
    reply, _ = send(engine, "openai_responses", {**OPENAI, **compared}, 0.0)
    diagnosis = verdict.diagnosis_of(reply)
    assert diagnosis is not None
    assert diagnosis.code == "comparison_response_not_found"


def test_expired_cache_is_reported_as_unavailable() -> None:
    engine = Engine()
    first, _ = send(engine, "openai_responses", OPENAI, 0.0)
    compared = {"prompt_cache_options": {"comparison_response_id": first.id}}
    reply, _ = send(engine, "openai_responses", {**OPENAI, **compared}, 100_000.0)
    diagnosis = verdict.diagnosis_of(reply)
    assert diagnosis is not None
    assert diagnosis.code == "unavailable"
