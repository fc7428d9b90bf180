"""Handles that end by themselves: nobody has to have closed the conversation."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.talking import LONG, Talk, talking

from anaphora.client.asking import Asked
from anaphora.client.session import Session
from anaphora.client.session.holding import Handles
from anaphora.emulator.server import Emulator
from anaphora.rendered import CreateHandle
from anaphora.values import Message


async def holding(talk: Talk) -> tuple[Session, Handles]:
    """A conversation for which the provider has just begun to hold the system prompt."""
    chat = talk.client.session("gemini", system=LONG)
    stop = chat._stops.current
    place = chat._place(stop)
    said = Asked(messages=(Message.user("Hello"),))
    _, written, _ = chat._writer.write(place, chat._history.ask(), said)
    plan = msgspec.structs.replace(written.plan, preludes=(CreateHandle(1, 300),))
    handles = chat._handles[stop] = Handles(place, chat._holders)
    await handles.carry_out(msgspec.structs.replace(written, plan=plan))
    return chat, handles


@pytest.mark.parametrize("late", [0, 1000])
def test_closing_lets_go_of_what_is_held_and_of_what_has_ended(
    emu: Emulator, late: int, caplog: pytest.LogCaptureFixture
) -> None:
    emu.advance(-late)  # so that the five minutes end in our past

    async def run() -> None:
        async with talking(emu, ["gemini"]) as talk:
            chat, handles = await holding(talk)
            assert talk.client._holders == {handles}
            await chat.close()
            assert not talk.client._holders
            assert talk.line.sent[-1].method == "DELETE"

    asyncio.run(run())
    assert caplog.messages == []


def test_a_handle_that_cannot_be_deleted_is_told(
    emu: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs until it ends; one that is gone already is no news."""

    async def run() -> None:
        async with talking(emu, ["gemini"]) as talk:
            chat, _ = await holding(talk)
            talk.line.faults = ["503"]
            await chat.close()
            talk.line.faults = []

    asyncio.run(run())
    (told,) = caplog.messages
    assert "could not be deleted (Overloaded)" in told
    assert "paid for until it ends" in told


def test_a_conversation_that_nobody_closed_is_forgotten_when_its_handle_has_ended(
    emu: Emulator,
) -> None:
    async def run() -> None:
        async with talking(emu, ["gemini"]) as talk:
            emu.advance(-1000)
            await holding(talk)
            emu.advance(1000)
            _, second = await holding(talk)
            _, third = await holding(talk)
            assert talk.client._holders == {second, third}

    asyncio.run(run())
