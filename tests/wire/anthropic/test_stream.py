"""Streams of the Anthropic wire that differ from the documented form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora.values import PartDelta, ReplyEnd, ReplyFail, ReplyStart
from anaphora.wire import anthropic


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    },
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "Hi"},
}
STOP = {"type": "content_block_stop", "index": 0}
LAST = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 9},
}
END = {"type": "message_stop"}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
WHOLE = (START, BLOCK, DELTA, STOP, LAST, END)


def events_of(*events: dict[str, Any]) -> list[Any]:
    reader = anthropic.reader()
    return [*reader.feed(sse(*events)), *reader.close()]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(WHOLE, id="as it should be"),
        pytest.param((START, START, BLOCK, DELTA, STOP, LAST, END), id="a second start"),
        pytest.param((*WHOLE, ERROR, DELTA), id="events after the end"),
        pytest.param((START, {"type": "ping"}, {"type": "novel"}, *WHOLE[1:]), id="unknown events"),
        pytest.param((START, BLOCK, DELTA, LAST, END), id="a part that is never ended"),
    ],
)
def test_tolerated_stream_irregularities(events: tuple[dict[str, Any], ...]) -> None:
    found = events_of(*events)
    assert isinstance(found[0], ReplyStart)
    assert [e for e in found if isinstance(e, PartDelta)] == [PartDelta(0, "Hi")]
    assert isinstance(found[-1], ReplyEnd)
    assert found[-1].reply.text == "Hi"
    assert found[-1].reply.usage.output == 9
    assert found[-1].reply.usage.uncached == 5


def test_missing_start_is_added() -> None:
    found = events_of(*WHOLE[1:])
    assert found[0] == ReplyStart("", "")
    assert isinstance(found[-1], ReplyEnd)


@pytest.mark.parametrize(
    "events, error, code",
    [
        (WHOLE[:3], "Transport", None),
        ((*WHOLE[:3], ERROR, *WHOLE[3:]), "Overloaded", "overloaded_error"),
        ((START, DELTA), "Parse", None),
        ((), "Transport", None),
    ],
)
def test_broken_stream_fails_with_partial_reply(
    events: tuple[dict[str, Any], ...], error: str, code: str | None
) -> None:
    found = events_of(*events)
    assert isinstance(found[-1], ReplyFail)
    assert (found[-1].error, found[-1].code) == (error, code)
    assert sum(isinstance(event, ReplyFail | ReplyEnd) for event in found) == 1
    if BLOCK in events:
        assert found[-1].partial is not None
        assert found[-1].partial.text == "Hi"


@pytest.mark.parametrize(
    "block, delta",
    [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "x" * 2**20}),
        (
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": "x" * 2**20},
        ),
    ],
)
def test_endless_reply_is_rejected_at_the_limit(
    block: dict[str, Any], delta: dict[str, Any]
) -> None:
    reader = anthropic.reader()
    reader.feed(sse(START, {"type": "content_block_start", "index": 0, "content_block": block}))
    piece = sse({"type": "content_block_delta", "index": 0, "delta": delta})
    found: list[Any] = []
    for _ in range(10):
        found += reader.feed(piece)
    assert isinstance(found[-1], ReplyFail)
    assert "more than" in found[-1].message
