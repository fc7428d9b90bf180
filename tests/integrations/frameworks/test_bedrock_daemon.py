"""LangChain's `ChatBedrockConverse` runs a tool loop under a grant of the daemon, with a key pair of its app,
and reads its cache at turn two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_aws")

from langchain_aws import ChatBedrockConverse
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from support.bedrock_sdk import bedrock_client
from support.daemon import GRANT, running_daemon

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

GUIDE = "Look before you leap, and say what you saw. " * 400
REPLIES = [
    {
        "match": {"text": "Look"},
        "reply": {"tool_calls": [{"name": "look", "arguments": {"place": "Rome"}}]},
    },
    {"match": {"result_of": "look"}, "reply": {"text": "It is sunny."}},
]
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


@tool
def look(place: str) -> str:
    """Looks at a place."""
    return f"Sun over {place}"


@pytest.mark.parametrize("provider", ["aws", "anthropic"])
def test_tool_loop_under_a_grant(provider: str, tmp_path: Path) -> None:
    script = Script.decode(json.dumps({"replies": REPLIES}), "the script")
    with emulator.running(EmulatorOptions(script=script)) as emu:
        entry = {"key": {"secret": "PROVIDER_KEY"}}
        aws = {"dialect": "bedrock", "region": "us-east-1", "base_url": emu.url, "model": MODEL}
        own = {"wire": "anthropic", "base_url": emu.url, "model": "claude-sonnet-4-5"}
        llm: dict[str, Any] = {
            "providers": {"aws": {**aws, **entry}, "anthropic": {**own, **entry}},
            "daemon": {"port": 0, "drain_delay": 0},
        }
        grant = {**GRANT, "llm": {**GRANT["llm"], "providers": [provider]}}
        with running_daemon(tmp_path, emu, llm=llm, extensions={"demo": grant}) as daemon:
            model = ChatBedrockConverse(
                model=llm["providers"][provider]["model"],
                provider="anthropic",
                client=bedrock_client(daemon),
                region_name="us-east-1",
            ).bind_tools([look])
            system: list[Any] = [{"text": GUIDE}, {"cachePoint": {"type": "default"}}]
            messages: list[BaseMessage] = [SystemMessage(content=system), HumanMessage("Look")]
            answers: list[AIMessage] = []
            while not answers or answers[-1].tool_calls:
                answer = model.invoke(messages)
                assert isinstance(answer, AIMessage)
                answers.append(answer)
                messages.append(answer)
                messages += [
                    ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])
                    for call in answer.tool_calls
                ]
    first, second = answers
    assert first.tool_calls[0]["args"] == {"place": "Rome"}
    assert second.usage_metadata is not None
    assert second.usage_metadata["input_token_details"]["cache_read"] > 0
