"""Token-count requests that the providers reject."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse

CLAUDE = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses/input_tokens"
GEMINI = "/v1beta/models/gemini-2.5-flash:countTokens"
HEADERS = {
    CLAUDE: {"x-api-key": "k", "anthropic-version": "2023-06-01"},
    RESPONSES: {"authorization": "Bearer k"},
    GEMINI: {"x-goog-api-key": "k"},
}
HELLO = {"role": "user", "content": "Hello"}
MARK = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "a", **MARK}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
LONG = "word " * 2_000_000


def claude(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "claude-sonnet-4-5", "messages": [HELLO, *messages], **more}


def contents(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}], **more}


def ask(path: str, body: dict[str, Any]) -> EmulatorResponse:
    data = json.dumps(body).encode()
    return Engine().respond(
        EmulatorRequest(method="POST", path=path, headers=HEADERS[path], body=data)
    )


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no messages": (CLAUDE, claude() | {"messages": []}, "at least one message"),
    "five markers": (CLAUDE, claude(system=[TEXT] * 5), "Found 5"),
    "a call without its result": (CLAUDE, claude(CALL), "`tool_use` ids were found without"),
    "a limit, which counting has not": (CLAUDE, claude(max_tokens=5), "max_tokens: Extra inputs"),
    "a role": (CLAUDE, claude({"role": "robot", "content": "x"}), "messages.1.role"),
    "an unknown parameter": (RESPONSES, {"input": "Hello", "stream": True}, "'stream'"),
    "an output without its call": (
        RESPONSES,
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "No tool call found",
    ),
    "a schema without a name": (
        RESPONSES,
        {"input": "Hello", "text": {"format": {"type": "json_schema", "schema": {}}}},
        "text.format.name",
    ),
    "an unknown name": (GEMINI, contents({"text": "a"}, tokens=1), 'Unknown name \\"tokens\\"'),
    "an unknown name inside": (
        GEMINI,
        {"generateContentRequest": contents({"text": "a", "txt": "b"})},
        'Unknown name \\"txt\\"',
    ),
    "nothing": (GEMINI, {"contents": []}, "contents is not specified"),
}


@each_row("name", REFUSED)
def test_rejected_count(name: str) -> None:
    path, body, message = REFUSED[name]
    answer = ask(path, body)
    assert answer.status == 400
    assert message in answer.body.decode()


COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "without a limit": (CLAUDE, claude()),
    "a prompt that no model takes": (CLAUDE, claude({"role": "user", "content": LONG})),
    "without a model": (RESPONSES, {"input": "Hello"}),
    "with one": (RESPONSES, {"model": "gpt-4o", "input": "Hello", "instructions": "Be brief."}),
    "contents alone": (GEMINI, contents({"text": "a"})),
    "a whole request": (
        GEMINI,
        {
            "generateContentRequest": {
                "model": "models/gemini-2.5-flash",
                **contents({"text": "a"}, systemInstruction={"parts": [{"text": "Be brief."}]}),
            }
        },
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_accepted_count(name: str) -> None:
    answer = ask(*COUNTED[name])
    assert answer.status == 200, answer.body
    counted = json.loads(answer.body)
    assert (counted.get("input_tokens") or counted.get("totalTokens")) > 0
