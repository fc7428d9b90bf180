"""The prefixes kept for a model are bounded, whatever the time."""

from __future__ import annotations

import json

import pytest

from anaphora.emulator import journal
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest

PREFIX = "A prefix that stays the same. " * 400


def read(engine: Engine, path: str, number: int) -> int:
    """Sends a prompt unique to the number and returns the tokens read from the cache."""
    messages = [{"role": "user", "content": f"{number}: {PREFIX}"}]
    body = {"model": "gpt-4o", "messages": messages}
    if path == "/v1/messages":
        marked = {
            "type": "text",
            "text": messages[0]["content"],
            "cache_control": {"type": "ephemeral"},
        }
        messages = [{"role": "user", "content": [marked]}]  # type: ignore[dict-item]
        body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}  # type: ignore[dict-item]
    headers = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
    request = EmulatorRequest(
        method="POST",
        path=path,
        headers=headers,
        body=json.dumps(body).encode(),
        now=float(engine.journal._count),
    )
    answer = engine.respond(request)
    assert answer.status == 200, answer.body
    found: int = engine.journal.entries(1)[0]["read"]
    return found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_least_recently_used_prefixes_are_dropped_first(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PREFIXES", 10)
    engine = Engine()
    assert [read(engine, path, number) for number in range(15)] == [0] * 15
    assert read(engine, path, 14) > 0, "among the ten"
    assert read(engine, path, 0) == 0, "forgotten"
    caches = engine._billing._simulators.values()
    assert max(len(simulator._marked) for simulator in caches) <= 10
