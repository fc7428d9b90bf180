"""OpenAI's SDK puts a Responses stream together from its pieces."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.byte_server import byte_server
from support.sdk.openai_chat import client
from support.sdk.openai_responses import ASK, CASE, REPLIES, check_reply

from anaphora.values import Event, PartDelta, ReplyFail
from anaphora.wire.replies import reply_events


def put_together(stream: bytes) -> Any:
    with (
        byte_server(stream, "text/event-stream") as address,
        client(address) as api,
        api.responses.stream(**ASK) as events,
    ):
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize(
    "name", [n for n, r in REPLIES.items() if r.stop_reason in ("end", "tool_calls")]
)
def test_sdk_accumulates_a_stream(name: str) -> None:
    """Its own accumulator comes to the same content, from the pieces. (It knows no other end than
    `response.completed`.)"""
    check_reply(put_together(CASE.stream(REPLIES[name])), REPLIES[name])


def slowly(events: list[Event]) -> list[Event]:
    """The same in small pieces, as a model sends them."""
    return [
        piece
        for event in events
        for piece in (
            [msgspec.structs.replace(event, delta=char) for char in event.delta]
            if isinstance(event, PartDelta)
            else [event]
        )
    ]


@pytest.mark.parametrize("name", ["ours", "another provider's", "nothing"])
def test_sdk_accumulates_a_slow_stream(name: str) -> None:
    writer, written = CASE.codec.writer(), REPLIES[name]
    pieces = [writer.write(event) for event in slowly(reply_events(written))]
    assert sum(bool(piece) for piece in pieces) >= (10 if name != "nothing" else 2)
    check_reply(put_together(b"".join(pieces)), written)


def test_the_sdk_reads_an_error_in_a_stream() -> None:
    writer = CASE.codec.writer()
    first, *_ = reply_events(REPLIES["cut off"])
    stream = writer.write(first) + writer.write(ReplyFail("Overloaded", "busy", "server_error"))
    with byte_server(stream, "text/event-stream") as address, client(address) as api:
        *_, last = api.responses.create(**ASK, stream=True)
    type(last).model_validate(json.loads(last.to_json()))
    assert (last.type, last.message, last.code) == ("error", "busy", "server_error")
