"""What an app changes in place after it has passed it is not sent, and breaks no prefix."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.emulated_client import LONG, connected

from anaphora import Message, PromptBlock, Text, Tool, ToolResult, wire
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, RequestRejected
from anaphora.values.conversation import unanswered


async def send(chat: Session) -> None:
    results = [ToolResult(call.id, "Seen.") for call in unanswered(chat.conversation)]
    with contextlib.suppress(RequestRejected):  # a strict provider refuses unknown fields
        await chat.send([*results, "Hello?"])


@pytest.mark.parametrize("name", wire.WIRES)
def test_changes_in_place_between_turns_are_not_sent(emu: Emulator, name: str) -> None:
    own = '{"unknown":"before"}'
    of_tool, of_block, of_part = ({name: own} for _ in range(3))
    parts, tools = [Text("Look.", extras=of_part)], [Tool("look", extras=of_tool)]
    blocks = [PromptBlock("system", LONG, extras=of_block)]
    message = Message(role="user", parts=parts)  # type: ignore[arg-type]
    messages = [message, Message.assistant("Seen.")]
    stop, metadata = ["END"], {"user_id": "before"}

    async def main(server: Emulator) -> list[bytes]:
        async with connected(server, [name]) as emulated:
            chat = emulated.client.session(
                name,
                model="gpt-4o" if name == "openai_chat" else None,  # gpt-5.2 takes no stop
                messages=messages,
                tools=tools,
                system=blocks,
                stop=stop,
                metadata=metadata,
            )
            await send(chat)
            for extras in (of_tool, of_block, of_part):
                extras[name] = '{"unknown":"after"}'
            parts.append(Text("after"))
            tools.append(Tool("after"))
            blocks.append(PromptBlock("b", "after"))
            messages.append(Message.user("after"))
            stop.append("after")
            metadata["user_id"] = "after"
            await send(chat)
            return emulated.transport.bodies

    first, second = asyncio.run(main(emu))
    assert b"before" in first
    assert b"after" not in second
    assert first.count(b"before") == second.count(b"before")


@pytest.mark.parametrize("name", wire.WIRES)
def test_extras_of_a_session_are_those_it_began_with(emu: Emulator, name: str) -> None:
    extras = {name: '{"unknown_field":"before"}'}

    async def main(server: Emulator) -> list[bytes]:
        async with connected(server, [name]) as emulated:
            with pytest.raises(InvalidRequest, match=r"extras\.x: must be a dict of fields"):
                emulated.client.session(name, extras={"x": 1})  # type: ignore[dict-item]
            chat = emulated.client.session(name, extras=extras)
            extras[name] = '{"unknown_field":"after"}'
            await send(chat)
            return emulated.transport.bodies

    (body,) = asyncio.run(main(emu))
    assert b"before" in body
    assert b"after" not in body


def test_equal_values_of_another_type_are_refused(emu: Emulator) -> None:
    """`strict=1` equals `strict=True`: it would be sent as the bytes of the other."""

    async def main() -> None:
        async with connected(emu, ["openai_chat"]) as emulated:
            schema = '{"type":"object","properties":{},"additionalProperties":false}'
            strict = Tool("look", schema=schema, strict=True)
            await emulated.client.session("openai_chat", tools=[strict]).send("One?")
            with pytest.raises(InvalidRequest, match=r"Tool\.strict: must be a bool, not int"):
                Tool("look", strict=1)  # type: ignore[arg-type]

    asyncio.run(main())
