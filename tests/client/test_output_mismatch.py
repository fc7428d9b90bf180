"""A stream request that is answered with one JSON body, and the reverse: read as the answer it is,
with exactly one request made."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from support.emulated_client import MODELS, WIRES, connected
from support.raw_server import answering, raw_server, reply
from support.tables import each_row

from anaphora import errors
from anaphora import wire as wires
from anaphora.emulator.server import Emulator
from anaphora.values import (
    Event,
    Message,
    PartDelta,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.usefixtures("more_faults")

BRISK: dict[str, Any] = {"retry": {"max_attempts": 3, "first_wait": 0.001}}


async def streamed(chat: Any, text: str) -> list[Event]:
    return [event async for event in chat.send(text)]


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.parametrize("name", MODELS)
def test_other_response_form_is_read_at_once(emu: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, [name], **BRISK) as emulated:
            plain = await emulated.client.session(name).send("Hello there")
            emu.reset()
            chat = emulated.client.session(name)
            emulated.transport.faults = ["wrong-form"]
            if stream:
                check_events(await streamed(chat, "Hello there"), plain.text)
            else:
                await chat.send("Hello there")
            assert chat.last is not None
            assert chat.last.text == plain.text
            assert chat.last.usage.input == plain.usage.input
            assert chat.last.usage.output == plain.usage.output
            assert len(emu.requests()) == len(chat.last.attempts) == 1
            emulated.transport.faults = []
            await streamed(chat, "And now?")
            assert len(chat.messages) == 4

    asyncio.run(main())


def check_events(events: list[Event], text: str) -> None:
    assert isinstance(events[0], ReplyStart)
    assert isinstance(events[-1], ReplyEnd)
    deltas = [event.delta for event in events if isinstance(event, TextDelta)]
    assert "".join(deltas) == text
    ended = [event.part for event in events if isinstance(event, PartEnd)]
    assert "".join(part.text for part in ended if isinstance(part, Text)) == text


REPLY = Reply(
    id="r1",
    model="m",
    message=Message(
        id="r1",
        role="assistant",
        parts=(Text("Let me look."), ToolCall("call_1", "look", '{"where":"here"}')),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=5, read=0, output=4),
)


async def answered(wire: str, body: bytes, requests: int = 1) -> list[Event]:
    """The events of a streamed turn that a server answers with a JSON body."""
    answer = reply(body, "200 OK", "Content-Type: application/json")
    handler = answering(answer, then_close=True)
    async with raw_server(handler) as server, connected(server, [wire], **BRISK) as emulated:
        try:
            return await streamed(emulated.client.session(wire), "Hello")
        finally:
            assert len(server.requests) == requests


@each_row("indent", [-1, 2], ids=["one line", "indented"])
@each_row("wire", WIRES)
def test_tool_call_in_a_json_body_reaches_a_streaming_caller(wire: str, indent: int) -> None:
    body = msgspec.json.format(wires.get(wire).write_reply(REPLY), indent=indent)
    events = asyncio.run(answered(wire, body))
    assert isinstance(events[-1], ReplyEnd)
    final = events[-1].reply
    assert final.text == "Let me look."
    (call,) = final.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"where": "here"})
    assert (final.usage.input, final.usage.output) == (5, 4)
    text, arguments = [event for event in events if isinstance(event, PartDelta)]
    assert text == TextDelta(0, "Let me look.")
    assert isinstance(arguments, ToolArgumentsDelta)
    assert (arguments.call_id, arguments.name) == (call.id, "look")
    assert json.loads(arguments.delta) == {"where": "here"}


def test_gemini_chunks_in_a_json_list_are_read_as_a_stream() -> None:
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "Let me "}]}}], "responseId": "r1"},
        {"candidates": [{"content": {"parts": [{"text": "look."}]}, "finishReason": "STOP"}]},
    ]
    events = asyncio.run(answered("gemini", json.dumps(chunks, indent=2).encode()))
    deltas = [event.delta for event in events if isinstance(event, TextDelta)]
    assert deltas == ["Let me ", "look."]
    assert isinstance(events[-1], ReplyEnd)


@pytest.mark.parametrize("wire", WIRES)
def test_unreadable_json_body_is_not_requested_again(wire: str) -> None:
    """It was billed: what cannot be read the first time cannot be read the third time either."""
    with pytest.raises(errors.Parse):
        asyncio.run(answered(wire, wires.get(wire).write_reply(REPLY)[:-20]))


@pytest.mark.parametrize("wire", WIRES)
def test_broken_stream_keeps_its_partial_reply(wire: str) -> None:
    """Although no stream was requested."""
    writer = wires.get(wire).writer()
    events: list[Event] = [
        ReplyStart("r1", "m"),
        PartStart(0, "text"),
        TextDelta(0, "Let "),
        TextDelta(0, "me "),
    ]
    body = b"".join(writer.write(event) for event in events)

    async def main() -> None:
        async with (
            raw_server(answering(reply(body), then_close=True)) as server,
            connected(server, [wire], retry={"max_attempts": 1}) as emulated,
        ):
            with pytest.raises(errors.Transport) as caught:
                await emulated.client.session(wire).send("Hello")
            assert caught.value.partial.text == "Let me "

    asyncio.run(main())
