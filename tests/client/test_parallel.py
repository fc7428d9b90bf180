"""Parallel tool execution can be set for a run, a turn or a whole conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.emulated_client import AT_ONCE, connected

from anaphora import emulator
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.prompt import ToolChoice
from anaphora.tools import ToolRegistry

SCRIPT = """
replies:
  - match: {text: begin}
    reply:
      tool_calls:
        - {name: step, id: call_1, arguments: {number: 1}}
        - {name: step, id: call_2, arguments: {number: 2}}
  - match: {result: did 2}
    reply: {text: All done.}
"""
ONE = ToolChoice(parallel=False)
#: For the conversation, for the run, and how many tools ran at the same time.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "nowhere": ({}, {}, 2),
    "in the run": ({}, {"parallel": False}, 1),
    "in the run's choice": ({}, {"tool_choice": ONE}, 1),
    "in the conversation's choice": ({"tool_choice": ONE}, {}, 1),
    "in both, the run's goes first": ({"tool_choice": ONE}, {"tool_choice": ToolChoice()}, 2),
}


@pytest.fixture(scope="module")
def scripted() -> Iterator[Emulator]:
    with emulator.running(
        EmulatorOptions(latency=AT_ONCE, script=Script.decode(SCRIPT, "script.yaml"))
    ) as running:
        yield running


@pytest.mark.parametrize("setting", SETTINGS)
def test_tools_run_in_parallel_where_allowed(scripted: Emulator, setting: str) -> None:
    conversation, run, most = SETTINGS[setting]
    now, seen = 0, 0
    tools = ToolRegistry()

    @tools.tool
    async def step(number: int) -> str:
        """Does a step."""
        nonlocal now, seen
        now += 1
        seen = max(seen, now)
        await asyncio.sleep(0.01)
        now -= 1
        return f"did {number}"

    async def main() -> None:
        # Gemini has no such parameter: it still calls several tools.
        async with connected(scripted, ["gemini"]) as emulated:
            chat = emulated.client.session("gemini", tools=tools, **conversation)
            assert (await chat.run("begin", **run)).text == "All done."

    asyncio.run(main())
    assert seen == most
