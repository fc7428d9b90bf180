"""Messages may be dictionaries wherever messages are taken: the request is the same as without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from support.emulated_client import WIRES, connected

from anaphora import Image, Message, PromptBlock, Text, ToolCall
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.values import Url

URL = "https://example.com/a.png"
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
HISTORY: list[Any] = [
    {"role": "user", "content": "Look for it"},
    {"role": "assistant", "content": "A moment", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "found"},
    {"role": "assistant", "content": "Here it is"},
]
MESSAGES = [
    Message.user("Look for it"),
    Message.assistant("A moment", ToolCall("c1", "find", '{"a": 1}')),
    Message.tool("c1", "found"),
    Message.assistant("Here it is"),
]
NEXT: Any = {
    "role": "user",
    "content": [{"type": "text", "text": "And?"}, {"type": "image_url", "image_url": {"url": URL}}],
}
NEXT_PARTS = (Text("And?"), Image(Url(URL)))
SYSTEM: Any = {"role": "system", "content": "Be terse."}


def bodies(emu: Emulator, wire: str, *ways: Any) -> list[Any]:
    """The requests that these functions send, each with a client of its own: one that has seen a
    prompt marks it for the cache."""

    async def main(way: Any) -> Any:
        async with connected(emu, [wire]) as emulated:
            await way(emulated.client)
            (body,) = emulated.transport.bodies
            return json.loads(body)

    return [asyncio.run(main(way)) for way in ways]


@pytest.mark.parametrize("wire", WIRES)
def test_dictionaries_send_what_messages_send(emu: Emulator, wire: str) -> None:
    async def with_messages(client: Any) -> None:
        content = [*MESSAGES, Message.user(*NEXT_PARTS)]
        await client.complete(content, wire, system="Be terse.")

    async def with_dicts(client: Any) -> None:
        await client.complete([SYSTEM, *HISTORY, NEXT], wire)

    async def with_an_iterator(client: Any) -> None:
        given: Iterator[Any] = iter([SYSTEM, *HISTORY, NEXT])
        await client.complete(given, wire)

    one, *others = bodies(emu, wire, with_messages, with_dicts, with_an_iterator)
    assert others == [one, one]


@pytest.mark.parametrize("wire", WIRES)
def test_sessions_take_dictionaries(emu: Emulator, wire: str) -> None:
    def session(client: Any, **options: Any) -> Session:
        made: Session = client.session(wire, on_prefix_break="off", **options)
        return made

    async def with_messages(client: Any) -> None:
        await session(client, system="Be terse.", messages=MESSAGES).send(NEXT_PARTS)

    async def with_dicts(client: Any) -> None:
        chat = session(client, messages=[SYSTEM, *HISTORY])
        assert [message.role for message in chat.messages][:2] == ["user", "assistant"]
        await chat.send(NEXT)

    async def with_run(client: Any) -> None:
        await session(client, system="Be terse.", messages=HISTORY).run(NEXT)

    async def with_append(client: Any) -> None:
        chat = session(client, system="Be terse.")
        chat.append(*HISTORY)
        chat.append(NEXT)
        await chat.send()

    async def with_parts(client: Any) -> None:
        chat = session(client, system="Be terse.", messages=HISTORY)
        await chat.send(NEXT["content"])

    ways = (with_messages, with_dicts, with_run, with_append, with_parts)
    one, *others = bodies(emu, wire, *ways)
    assert others == [one] * 4


@pytest.mark.parametrize("wire", WIRES)
def test_system_keyword_comes_before_system_messages(emu: Emulator, wire: str) -> None:
    """Both are kept, the keyword first."""
    blocks = [PromptBlock("one", "Be kind."), PromptBlock("two", "Be terse.")]

    async def with_blocks(client: Any) -> None:
        await client.complete("Hi", wire, system=blocks)

    async def with_both(client: Any) -> None:
        await client.complete([SYSTEM, {"role": "user", "content": "Hi"}], wire, system="Be kind.")

    one, other = bodies(emu, wire, with_blocks, with_both)
    assert one == other


def test_later_system_message_stays_where_it_stands(emu: Emulator) -> None:
    async def way(client: Any) -> None:
        await client.complete([*HISTORY, SYSTEM, NEXT], "openai_chat")

    (body,) = bodies(emu, "openai_chat", way)
    roles = [message["role"] for message in body["messages"]]
    assert roles.index("assistant") < len(roles) - 2 == roles.index(roles[-2])
    assert roles[-2] in ("system", "developer")


@pytest.mark.parametrize("wire", WIRES)
def test_reply_of_the_anthropic_sdk_is_history(emu: Emulator, wire: str) -> None:
    """As its documentation appends it: the blocks are objects."""
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "text", "text": "A moment", "citations": None},
        {"type": "tool_use", "id": "c1", "name": "find", "input": {"a": 1}},
    ]
    reply: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    reply |= {
        "model": "claude-sonnet-5-5",
        "content": blocks,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": usage,
    }
    message = anthropic.types.Message.model_validate(reply)

    def way(answer: Any) -> Any:
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "found"}
        return lambda client: client.complete(
            [HISTORY[0], answer, {"role": "user", "content": [result]}], wire
        )

    as_dict = {"role": "assistant", "content": blocks}
    as_object = {"role": "assistant", "content": message.content}
    first, *others = bodies(emu, wire, way(as_dict), way(as_object), way(message))
    assert "A moment" in json.dumps(first)
    assert others == [first, first]
