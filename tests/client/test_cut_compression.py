"""A response whose compressed data ends early is a failure of the connection: retried, or with what
was received."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from support.raw_server import answering, raw_server

import anaphora
from anaphora.errors import Transport
from anaphora.values import Event, PartDelta, Reply
from anaphora.wire import anthropic

REPLY = Reply(id="r", model="m", message=anaphora.Message.assistant("Hi."), stop_reason="end")
WHOLE = gzip.compress(anthropic.write_reply(REPLY))
STREAM = b"".join(
    b"event: %b\ndata: %b\n\n" % pair
    for pair in [
        (
            b"message_start",
            b'{"type":"message_start","message":{"id":"r","type":"message","role":"assistant",'
            b'"model":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}',
        ),
        (
            b"content_block_start",
            b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        ),
        (
            b"content_block_delta",
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}',
        ),
    ]
)


def response(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: %b\r\n" % kind
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def config(url: str) -> dict[str, object]:
    provider = {
        "wire": "anthropic",
        "base_url": url,
        "key": {"env": "KEY"},
        "model": "claude-sonnet-5-5",
        "retry": {"first_wait": 0.001},
    }
    return {"providers": {"claude": provider}}


def test_cut_response_is_sent_again() -> None:
    async def main() -> None:
        cut = response(b"application/json", WHOLE[:-6])
        async with raw_server(answering(cut, response(b"application/json", WHOLE))) as server:
            client = anaphora.AsyncClient.from_config(config(server.url), environ={"KEY": "k"})
            async with client:
                answered = await client.complete("Hello?", "claude")
            assert answered.text == "Hi."
            first, second = answered.record.attempts
            assert (first.error, second.error) == ("Transport", None)
            assert "the compressed data ends early" in first.reason

    asyncio.run(main())


def test_cut_stream_fails_with_what_was_received() -> None:
    async def main() -> None:
        cut = response(b"text/event-stream", gzip.compress(STREAM)[:-6])
        async with raw_server(answering(cut)) as server:
            client = anaphora.AsyncClient.from_config(config(server.url), environ={"KEY": "k"})
            async with client:
                events: list[Event] = []

                async def collect() -> None:
                    async for event in client.stream("Hello?", "claude"):
                        events.append(event)  # noqa: PERF401 - the stream fails

                with pytest.raises(Transport) as caught:
                    await collect()
        assert [event.delta for event in events if isinstance(event, PartDelta)] == ["Hi"]
        assert caught.value.phase == "body"
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Hi"

    asyncio.run(main())
