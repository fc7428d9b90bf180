"""The README's example on every wire: a tool loop whose prompt ends with a volatile state."""

from __future__ import annotations

import asyncio

import pytest
from support.emulated_client import MODELS, connected

from anaphora.client.session.run import RunResult
from anaphora.emulator.server import Emulator
from anaphora.tools import ToolRegistry
from anaphora.values import ReplyEnd, ToolCall

every = pytest.mark.parametrize("name", MODELS)
both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])


def fares() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool
    def find_fare(city: str) -> str:
        """Find today's cheapest fare to a city."""
        return f"{city}: 89 EUR"

    @tools.tool
    def find_hotel(city: str) -> str:
        """Find a hotel in a city."""
        return f"{city}: Hotel Roma"

    return tools


@both
@every
def test_run_with_tools_and_state_ends_after_the_results(
    emu: Emulator, name: str, stream: bool
) -> None:
    async def main() -> None:
        clock = iter(f"It is 09:{minute}." for minute in range(10, 60))
        async with connected(emu, [name]) as emulated:
            chat = emulated.client.session(name, tools=fares(), state=lambda: next(clock))
            # A finished answer, then a new question: the tool is called again.
            for question in ("Book me a flight to Rome.", "And one to Oslo?"):
                run = chat.run(question)
                if stream:
                    events = [event async for event in run]
                    assert sum(isinstance(event, ReplyEnd) for event in events) == 2
                ran: RunResult = await run
                assert (ran.stop_reason, ran.turns) == ("done", 2)
                assert ran.text
            roles = "".join(message.role[0] for message in chat.messages)
            assert roles == "uatauata"

    asyncio.run(main())


@every
def test_named_tool_is_called_with_a_state_after_the_question(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            for tool in ("find_fare", "find_hotel"):
                chat = emulated.client.session(name, tools=fares(), state="It is 09:41.")
                answered = await chat.send(f"Use {tool} for Rome.")
                called = [p.name for p in answered.reply.message.parts if isinstance(p, ToolCall)]
                assert called == [tool]

    asyncio.run(main())
