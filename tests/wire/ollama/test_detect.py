"""A request to Ollama is known by what only Ollama has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora.wire import detect

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def found(*messages: dict[str, Any], **fields: Any) -> str:
    return detect(json.dumps({"model": "m", "messages": messages, **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"num_ctx": 1}},
        {"think": "high", "tools": [TOOL]},
        {"keep_alive": 0},
        {"format": "json", "logprobs": True},
    ],
)
def test_detection_by_fields(fields: dict[str, Any]) -> None:
    assert found(USER, **fields) == "ollama"


@pytest.mark.parametrize(
    "message",
    [
        {**USER, "images": ["QUJD"]},
        {"role": "tool", "tool_name": "f", "content": "x"},
        called({"a": 1}),
    ],
)
def test_detection_by_messages(message: dict[str, Any]) -> None:
    assert found(USER, message) == "ollama"


def test_requests_of_other_wires_are_not_detected() -> None:
    assert found(USER, called('{"a":1}')) == "openai_chat"
    assert found(USER, tools=[TOOL]) == "openai_chat"
    assert found(USER, think=True, response_format={"type": "text"}) == "openai_chat"
    assert found({"role": "user", "content": [{"type": "image_url"}]}, think=1) == "openai_chat"
    assert found(USER, format="json", system="s") == "anthropic"


def test_plain_request_is_read_as_chat() -> None:
    assert found(USER) == "openai_chat"
