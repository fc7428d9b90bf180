"""A turn or a run is sent once: awaiting it again returns the same result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.emulated_client import connected

from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.tools import ToolRegistry

NAMES = ("send", "run")
ways = pytest.mark.parametrize("name", NAMES)


def made(chat: Session, name: str) -> Any:
    return getattr(chat, name)("Hello?")


async def gone_through(turn: Any) -> list[Any]:
    return [event async for event in turn]


@ways
def test_awaiting_again_sends_nothing(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            turn = made(chat, name)
            first = await turn
            assert await turn is first
            assert (len(emulated.transport.sent), len(chat.messages)) == (1, 2)

    asyncio.run(main())


@ways
def test_iterated_turn_has_its_response(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            turn = made(chat, name)
            await gone_through(turn)
            await turn
            assert (len(emulated.transport.sent), len(chat.messages)) == (1, 2)

    asyncio.run(main())


@ways
@pytest.mark.parametrize("awaited", [True, False])
def test_events_come_once(emu: Emulator, name: str, awaited: bool) -> None:
    """Iterating again would send another request unnoticed."""

    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            turn = made(chat, name)
            await (turn if awaited else gone_through(turn))
            with pytest.raises(InvalidRequest, match="already consumed"):
                await gone_through(turn)
            assert (len(emulated.transport.sent), len(chat.messages)) == (1, 2)

    asyncio.run(main())


@ways
def test_concurrent_awaits_send_once(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            turn = made(chat, name)
            one, other = await asyncio.gather(
                *(asyncio.ensure_future(turn) for _ in range(2)), return_exceptions=True
            )
            assert isinstance(other, InvalidRequest)
            assert not isinstance(one, Exception)
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


@pytest.mark.parametrize("first", NAMES)
def test_second_run_is_rejected(emu: Emulator, first: str) -> None:
    """Its words would go out with the other's."""

    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            events = aiter(made(chat, first))
            await anext(events)
            with pytest.raises(InvalidRequest, match="in flight"):
                await chat.run("Something else")
            await gone_through(events)
            assert [message.role for message in chat.messages] == ["user", "assistant"]
            assert (await chat.run("And now?")).stop_reason == "done"

    asyncio.run(main())


def test_second_run_while_tools_run_is_rejected(emu: Emulator) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    tools = ToolRegistry()

    @tools.tool
    async def wait() -> str:
        """Waits."""
        started.set()
        await release.wait()
        return "done"

    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic", tools=tools)
            under_way = asyncio.ensure_future(chat.run("Hello?", max_turns=2))
            await started.wait()
            with pytest.raises(InvalidRequest, match="in flight"):
                await chat.run()
            release.set()
            await under_way
            roles = [message.role for message in chat.messages]
            assert roles[:3] == ["user", "assistant", "tool"]
            assert len(emulated.transport.sent) == 2

    asyncio.run(main())
