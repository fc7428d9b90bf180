"""LangChain's `ChatBedrockConverse` runs a tool loop at the emulator, and reads its cache at turn two."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("langchain_aws")

from langchain_aws import ChatBedrockConverse
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

ACCESS, SECRET = "AKIAEMULATED00000000", "emulated/secret+key"
GUIDE = "Look before you leap, and say what you saw. " * 400
REPLIES = [
    {
        "match": {"text": "Look"},
        "reply": {"tool_calls": [{"name": "look", "arguments": {"place": "Rome"}}]},
    },
    {"match": {"result_of": "look"}, "reply": {"text": "It is sunny."}},
]


@tool
def look(place: str) -> str:
    """Looks at a place."""
    return f"Sun over {place}"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_loop_reads_the_cache_at_turn_two(stream: bool) -> None:
    script = Script.decode(json.dumps({"replies": REPLIES}), "the script")
    options = EmulatorOptions(script=script)
    with emulator.running(options) as emu:
        model = ChatBedrockConverse(
            model="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            endpoint_url=emu.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        ).bind_tools([look])
        system: list[Any] = [{"text": GUIDE}, {"cachePoint": {"type": "default"}}]
        messages: list[BaseMessage] = [SystemMessage(content=system), HumanMessage("Look")]
        answers: list[AIMessage] = []
        while not answers or answers[-1].tool_calls:
            answers.append(_ask(model, messages, stream))
            messages.append(answers[-1])
            messages += [
                ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])
                for call in answers[-1].tool_calls
            ]
    first, second = answers
    assert first.tool_calls[0]["args"] == {"place": "Rome"}
    assert second.text == "It is sunny."
    assert _cached(first)["cache_read"] == 0
    assert _cached(second)["cache_read"] > 1000


def _ask(model: Any, messages: list[BaseMessage], stream: bool) -> AIMessage:
    if not stream:
        return model.invoke(messages)
    first, *rest = model.stream(messages)
    for piece in rest:
        first += piece
    return first


def _cached(message: AIMessage) -> dict[str, int]:
    usage = message.usage_metadata
    assert usage is not None
    return dict(usage["input_token_details"])
