"""Whatever bytes a provider sends, the app gets a response or an `AnaphoraError`."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.raw_server import answering, raw_server
from support.stream_events import stream_of
from support.tables import each_row

from anaphora import AsyncClient, Message, Response, wire
from anaphora.errors import Parse, RateLimited, Upstream
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail, Thinking, Usage

REPLY = Reply(
    id="r",
    model="m",
    message=Message.assistant("Hi."),
    stop_reason="end",
    usage=Usage(uncached=3, output=1),
)


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def client(name: str, url: str) -> AsyncClient:
    provider = {"wire": name, "base_url": url, "key": {"env": "KEY"}, "retry": {"max_attempts": 1}}
    settings = {"providers": {"local": provider}}
    return AsyncClient.from_config(settings, environ={"KEY": "k"})


async def response_to(name: str, answer: bytes) -> Response:
    """The response to a call that a server answers with these bytes."""
    async with raw_server(answering(answer)) as server, client(name, server.url) as made:
        return await made.complete("Hi.", "local", model="m")


@pytest.mark.parametrize("name", wire.WIRES)
@pytest.mark.parametrize(
    "value",
    [
        "Fri, 31 Dec 99999999999 23:59:59 GMT",
        "Fri, 31 Dec 2026 23:59:59 +99999999999999",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "1e400",
        "nan",
    ],
)
def test_an_absurd_retry_after_is_a_rate_limit(name: str, value: str) -> None:
    body = json.dumps({"error": {"message": "Slow down."}}).encode()
    with pytest.raises(RateLimited):
        asyncio.run(response_to(name, http("429 Too Many Requests", body, f"Retry-After: {value}")))


@pytest.mark.parametrize("name", wire.WIRES)
@pytest.mark.parametrize("depth", [500, 900, 1_000, 2_000, 100_000])
def test_a_reply_with_a_deeply_nested_field(name: str, depth: int) -> None:
    nested = b'"unknown":' + b'{"a":' * depth + b"1" + b"}" * depth
    body = b"{" + nested + b"," + wire.get(name).write_reply(REPLY)[1:]
    try:
        response = asyncio.run(response_to(name, http("200 OK", body)))
    except Parse:
        assert depth > 500, "deep, but not too deep to be read"
        return
    assert response.text == "Hi."
    assert repr(response)


@each_row("name", wire.WIRES)
@each_row("depth", [900, 1_000, 100_000])
def test_a_stream_whose_events_have_a_deeply_nested_field(name: str, depth: int) -> None:
    nested = b',"unknown":' + b'{"a":' * depth + b"1" + b"}" * depth
    reader = wire.get(name).reader()
    events: list[Event] = []
    for piece in stream_of(name, REPLY, lambda event: event[:-1] + nested + b"}"):
        events += reader.feed(piece)
    events += reader.close()
    assert isinstance(events[-1], ReplyEnd | ReplyFail)


def test_reply_of_a_server_that_signs_no_thinking() -> None:
    """As Ollama and OpenRouter reply on Anthropic's wire; some gateways leave out more."""
    blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}]
    body = json.dumps({"type": "message", "content": blocks, "stop_reason": "end_turn"})
    response = asyncio.run(response_to("anthropic", http("200 OK", body.encode())))
    assert (response.text, response.stop_reason) == ("Hi.", "end")
    assert response.reply.message.parts[0] == Thinking("Hm.", "", provider="anthropic")


@pytest.mark.parametrize("name", wire.WIRES)
@pytest.mark.parametrize("streamed", [False, True])
def test_half_of_a_surrogate_pair_is_replaced(name: str, streamed: bool) -> None:
    def with_halves(data: bytes) -> bytes:
        return data.replace(b"Hi.", rb"\ud83d \uDE00 \ud83d\ude00 \\ud83d")

    body = with_halves(wire.get(name).write_reply(REPLY))
    if streamed:
        body = b"".join(stream_of(name, REPLY, with_halves))
    response = asyncio.run(response_to(name, http("200 OK", body)))
    assert response.text == "\ufffd \ufffd \N{GRINNING FACE} \\ud83d"


@pytest.mark.parametrize("name", wire.WIRES)
@pytest.mark.parametrize("status", ["200 OK", "301 Moved Permanently", "404 Not Found"])
@pytest.mark.parametrize("streamed", [False, True])
def test_page_of_another_server_names_the_setting(name: str, status: str, streamed: bool) -> None:
    async def main() -> None:
        page = http(status, b"\n<!doctype html><title>Sign in</title>")
        async with raw_server(answering(page)) as server, client(name, server.url) as made:

            async def respond() -> None:
                if streamed:
                    async for _ in made.session("local", model="m").send("Hi."):
                        pass
                await made.complete("Hi.", "local", model="m")

            with pytest.raises((Parse, Upstream), match="is the base_url of local right") as caught:
                await respond()
            assert len(caught.value.attempts) == 1

    asyncio.run(main())
