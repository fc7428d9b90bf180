"""A6: clients for everybody, with a rate limiter and a tool registry."""

from __future__ import annotations

import asyncio

import pytest
from support.emulated_client import AT_ONCE

from anaphora import AsyncClient, ToolRegistry, emulator
from anaphora.errors import Throttled
from anaphora.values import ToolResult

#: How each is reached, and a model of it.
SPOKEN = {
    "anthropic": ("anthropic", "", "claude-opus-4-6"),
    "openai_chat": ("openai/openai_chat", "", "gpt-5.2"),
    "openai_responses": ("openai/openai_responses", "", "gpt-5.6"),
    "deepseek": ("deepseek", "/deepseek", "deepseek-v4-pro"),
    "minimax, as OpenAI": ("minimax/openai_chat", "/minimax", "MiniMax-M3"),
    "minimax, as Anthropic": ("minimax/anthropic", "/minimax", "MiniMax-M3"),
    "gemini": ("google/gemini", "", "gemini-2.5-flash"),
}


@pytest.mark.parametrize("name", SPOKEN)
def test_a6_every_provider_answers_calls_tools_and_is_limited(name: str) -> None:
    dialect, path, model = SPOKEN[name]
    tools = ToolRegistry()

    @tools.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    async def run(url: str) -> None:
        provider = {
            "dialect": dialect,
            "base_url": url + path,
            "key": {"env": "KEY"},
            "limits": {"requests_per_minute": 2},
        }
        settings = {"providers": {"one": provider}}
        async with AsyncClient.from_config(settings, environ={"KEY": "any"}) as client:
            chat = client.session("one", model=model, tools=tools)
            ran = await chat.run("What is the weather in Rome?", max_turns=2)
            assert ran.turns == 2
            results = [part for message in chat.messages for part in message.parts]
            assert any(isinstance(part, ToolResult) and not part.error for part in results)
            with pytest.raises(Throttled):
                await client.complete("One more?", "one", model=model, timeout=1)

    with emulator.running(emulator.EmulatorOptions(latency=AT_ONCE)) as emu:
        asyncio.run(run(emu.url))
        assert [call["status"] for call in emu.requests()] == [200, 200]
