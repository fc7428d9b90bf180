"""Cache handles that expire: the conversation need not have been closed."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from support.emulated_client import LONG, Connected, connected

from anaphora.client.session import Session
from anaphora.emulator.server import Emulator

MODEL = "gemini-2.0-flash"


async def session_with_handle(emulated: Connected) -> Session:
    """A conversation whose system prompt the provider has just begun to hold."""
    chat = emulated.client.session("gemini", system=LONG * 3, max_tokens=50)
    created = methods(emulated, "cachedContents").count("POST")
    await chat.send("One")
    await chat.send("Two")
    assert methods(emulated, "cachedContents").count("POST") == created + 1
    return chat


def test_what_is_stored_counts_in_a_budget(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ["gemini"], model=MODEL) as emulated:
            async with emulated.client.budget(usd=1) as budget:
                chat = await session_with_handle(emulated)
            assert chat.cost_usd is not None
            assert chat.cost_usd < budget.spent_usd < chat.cost_usd + Decimal("0.05")
            assert budget.held_usd == 0
            # Calls fit into this one, and the stored prefix does not.
            async with emulated.client.budget(usd="0.007") as small:
                chat = emulated.client.session("gemini", system=LONG * 3, max_tokens=20)
                await chat.send("One")
                created = methods(emulated, "cachedContents").count("POST")
                await chat.send("Two")
            assert methods(emulated, "cachedContents").count("POST") == created
            assert small.spent_usd == chat.cost_usd
            await emulated.client.close()

    asyncio.run(run())


def methods(emulated: Connected, path: str = "") -> list[str]:
    return [request.method for request in emulated.transport.sent if path in request.url]


@pytest.mark.parametrize("late", [0, 100_000])
def test_closing_deletes_handles_that_are_alive_and_expired(
    emu: Emulator, late: int, caplog: pytest.LogCaptureFixture
) -> None:
    emu.advance(-late)  # so that the handle expires in our past

    async def run() -> None:
        async with connected(emu, ["gemini"], model=MODEL) as emulated:
            chat = await session_with_handle(emulated)
            await chat.close()
            assert methods(emulated)[-1] == "DELETE"
            await emulated.client.close()
            assert methods(emulated).count("DELETE") == 1, "nothing is held any more"

    asyncio.run(run())
    assert caplog.messages == []


def test_handle_that_cannot_be_deleted_is_logged(
    emu: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs until it expires; one that is gone already is not logged."""

    async def run() -> None:
        async with connected(emu, ["gemini"], model=MODEL) as emulated:
            chat = await session_with_handle(emulated)
            emulated.transport.faults = ["529"]
            await chat.close()
            emulated.transport.faults = []

    asyncio.run(run())
    (message,) = caplog.messages
    assert "could not be deleted (Overloaded)" in message
    assert "billed until it expires" in message


def test_open_conversation_is_forgotten_when_its_handle_has_expired(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ["gemini"], model=MODEL) as emulated:
            emu.advance(-100_000)
            await session_with_handle(emulated)
            emu.advance(100_000)
            await session_with_handle(emulated)
            await session_with_handle(emulated)
            await emulated.client.close()
            assert methods(emulated).count("DELETE") == 2, "of the second and the third"

    asyncio.run(run())
