"""Exchanges in the forms that Ollama documents, as files: nothing of them is lost.

There are no recordings of this wire, so these were written for it: `name.request.json` with
`name.reply.<status>.json`, or `name.reply.ndjson` for a stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.roundtrip import RecordedExchange, WireRules
from support.roundtrip.rules import RULES, check
from support.tables import each_row

from anaphora.rendered import Plan
from anaphora.values import ReplyEnd
from anaphora.wire import ollama

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(file.name.removesuffix(".request.json") for file in FIXTURES.glob("*.request.json"))


def exchange(name: str) -> RecordedExchange:
    (reply,) = FIXTURES.glob(f"{name}.reply.*")
    stream = reply.suffix == ".ndjson"
    return RecordedExchange(
        id=name,
        wire="ollama",
        request=(FIXTURES / f"{name}.request.json").read_text(),
        response=reply.read_text(),
        status=200 if stream else int(reply.suffixes[-2][1:]),
        stream=stream,
    )


@each_row("name", NAMES)
def test_recorded_exchanges_round_trip(name: str) -> None:
    outcome = check(exchange(name))
    assert outcome.good, outcome
    assert outcome.notices == ()


def test_every_normalisation_is_needed_by_some_request() -> None:
    needed: dict[str, list[str]] = {}
    for name in NAMES:
        for rule in check(exchange(name)).overlooked:
            needed.setdefault(rule, []).append(name)
    for spoiled, rule in SPOILED:
        outcome = check(RecordedExchange(id="", wire="ollama", request=spoiled, response=ANSWER))
        assert outcome.good, outcome
        assert rule in outcome.overlooked
        needed.setdefault(rule, []).append(spoiled)
    assert set(needed) == {*RULES["ollama"].request}


ANSWER = '{"model":"m","created_at":"x","message":{"role":"assistant","content":"x"},"done":true}'
#: Forms that no fixture has.
SPOILED = [
    (
        '{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":'
        '[{"id":"","function":{"name":"f"}}]},'
        '{"role":"tool","content":"x","tool_name":"","tool_call_id":""}]}',
        "a call without arguments has an empty object of them",
    ),
    (
        '{"model":"m","messages":[{"role":"user","content":"x","images":[],"thinking":null}]}',
        "an empty text or list beside the content is left out",
    ),
    (
        '{"model":"m","messages":[{"role":"user","content":"x"},'
        '{"role":"assistant","content":"","thinking":"x"},{"role":"user","content":"x"}]}',
        "reasoning that nothing follows is refused, so it is left out with a notice",
    ),
    (
        '{"model":"m","messages":[],"tools":[{"function":{"name":"f","description":""}}]}',
        "a tool has a type and parameters",
    ),
    (
        '{"model":"m","messages":[],"tools":[],"options":{"stop":[]}}',
        "a field with its default value is left out",
    ),
]


@each_row("name", NAMES)
def test_a_split_recording_assembles_to_the_same_body(name: str) -> None:
    request = exchange(name).request
    cut = ollama.split(request.encode())
    reported = {"messages": [], **json.loads(request)}
    assert json.loads(ollama.assemble(cut, Plan()).body.join()) == reported


@pytest.mark.parametrize("name", [name for name in NAMES if exchange(name).stream])
def test_stream_lines_as_events(name: str) -> None:
    """Not only the same twice: text, reasoning, calls and counts are where a reader looks."""
    body = exchange(name).response or ""
    lines: list[dict[str, Any]] = [json.loads(line) for line in body.splitlines()]
    if "error" in lines[-1]:
        return
    reader = ollama.reader()
    end = (reader.feed(body.encode()) + reader.close())[-1]
    assert isinstance(end, ReplyEnd)
    assert end.reply.text == "".join(line["message"]["content"] for line in lines)
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [(c.name, json.loads(c.arguments)) for c in end.reply.tool_calls] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]
    assert end.reply.usage.input == lines[-1]["prompt_eval_count"]
    assert end.reply.stop_reason == ("tool_calls" if calls else "end")


def test_a_difference_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail: without the rules, what they overlook is a change with a path."""
    monkeypatch.setitem(RULES, "ollama", WireRules("ollama", {}, {}))
    assert check(exchange("streamed_by_default")).changed == "$.stream"
    assert check(exchange("unload")).changed == "$.messages"
    assert check(exchange("older_server")).lost == "$.done_reason"
