"""Answers, streams and errors in detail. The answers are files beside this one: `name.json` is what
`name.chunks.txt` ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.replies.openai_responses import minimal
from support.tables import each_row

from anaphora import errors
from anaphora.values import (
    Message,
    Opaque,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
    Usage,
    UsageUpdate,
)
from anaphora.wire import openai_responses as wire

FIXTURES = Path(__file__).parent / "fixtures"
#: An answer that failed is no answer: it is read as its error.
FAILED = "failed"
NAMES = sorted(file.stem for file in FIXTURES.glob("*.json") if file.stem != FAILED)
WIRE, ITEM = "openai_responses", "openai_responses.item"


def body(name: str) -> bytes:
    return (FIXTURES / f"{name}.json").read_bytes()


def stream(name: str) -> bytes:
    return (FIXTURES / f"{name}.chunks.txt").read_bytes()


def events_of(data: bytes) -> list[Any]:
    reader = wire.reader()
    return [*reader.feed(data), *reader.close()]


# ── Single answers ───────────────────────────────────────────────────────────────────────────────


def test_every_field_is_read() -> None:
    reply = wire.read_reply(body("everything"))
    thinking, search, text, refusal, call = reply.message.parts
    assert isinstance(thinking, Thinking)
    assert (thinking.text, thinking.data) == ("Look it up.\n\nThen say.", "gAAAA-final")
    assert isinstance(search, Opaque)
    assert search.kind == "web_search_call"
    assert isinstance(text, Text)
    assert text.text == "Zürich 🌧️"
    assert json.loads((text.extras or {})[ITEM]) == {
        "id": "msg_1",
        "status": "completed",
        "phase": "commentary",
    }
    assert refusal == Refusal("Not more.")
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments) == ("call_1", "look_up", '{"city": "Zürich"}')
    assert (reply.stop_reason, reply.stop_reason_raw) == ("tool_calls", "completed")
    usage = reply.usage
    assert (usage.uncached, usage.read, usage.output, usage.reasoning) == (76, 1024, 60, 40)
    assert usage.written == {"30m": 300, "12h": 100}
    assert usage.input == 1500


@pytest.mark.parametrize("name", NAMES)
def test_reply_is_written_as_received(name: str) -> None:
    assert json.loads(wire.write_reply(wire.read_reply(body(name)))) == json.loads(body(name))


def test_failed_response_raises_its_error() -> None:
    """As a single body, and at the end of a stream with the parts so far."""
    with pytest.raises(errors.Overloaded) as caught:
        wire.read_reply(body(FAILED))
    end = events_of(stream(FAILED))[-1]
    assert isinstance(end, ReplyFail)
    assert (end.error, end.message, end.code) == (
        "Overloaded",
        str(caught.value),
        caught.value.code,
    )
    assert end.partial is not None


@pytest.mark.parametrize(
    "code, kind",
    [
        ("server_error", errors.Overloaded),
        ("rate_limit_exceeded", errors.RateLimited),
        ("context_length_exceeded", errors.ContextOverflow),
        ("invalid_prompt", errors.ContentRefused),
    ],
)
def test_the_code_of_a_failed_answer_decides_its_class(
    code: str, kind: type[errors.Upstream]
) -> None:
    failed = minimal(status="failed", error={"code": code, "message": "no"}, output=[])
    with pytest.raises(kind) as caught:
        wire.read_reply(failed)
    assert (caught.value.code, str(caught.value)) == (code, "no")
    notices = {"type": "response.failed", "sequence_number": 1, "response": json.loads(failed)}
    reader = wire.reader()
    events = reader.feed(b"data: " + json.dumps(notices).encode() + b"\n\n") + reader.close()
    end = events[-1]
    assert isinstance(end, ReplyFail)
    assert (end.error, end.code) == (kind.__name__, code)


@each_row(
    "notices, expected",
    [
        ({"input_tokens": 5, "output_tokens": 2}, Usage(uncached=5, output=2)),
        (
            {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 3}},
            Usage(uncached=2, read=3),
        ),
        (
            {
                "input_tokens": 5,
                "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
            },
            Usage(uncached=2, read=1, written={"unsplit": 2}),
        ),
        (
            {"input_tokens": 5, "input_tokens_details": {"cache_write_tokens": 0}},
            Usage(uncached=5, written={}),
        ),
        (
            {
                "input_tokens": 50,
                "input_tokens_details": {
                    "cached_tokens": 0,
                    "cache_write_tokens": 40,
                    "cache_write_tokens_details": {"ttl_30m_tokens": 10, "ttl_12h_tokens": 25},
                },
            },
            Usage(uncached=10, read=0, written={"12h": 25, "30m": 10, "unsplit": 5}),
        ),
        (
            {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 3}},
            Usage(uncached=0, read=1),
        ),
        ({}, Usage()),
    ],
)
def test_usage_is_a_partition(notices: dict[str, Any], expected: Usage) -> None:
    usage = wire.read_reply(minimal(usage=notices)).usage
    assert json.loads(usage.raw or "") == notices
    found = (usage.uncached, usage.read, usage.written, usage.output, usage.reasoning)
    assert found == (
        expected.uncached,
        expected.read,
        expected.written,
        expected.output,
        expected.reasoning,
    )


def test_usage_of_another_provider_is_converted() -> None:
    raw = '{"input_tokens":3,"output_tokens":5,"cache_read_input_tokens":4}'
    usage = Usage(uncached=3, read=4, written={"1h": 2}, output=5, raw=raw)
    reply = Reply(id="m", model="c", message=Message.assistant("x"), stop_reason="end", usage=usage)
    encoded = json.loads(wire.write_reply(reply))["usage"]
    assert (encoded["input_tokens"], encoded["total_tokens"]) == (9, 14)
    assert encoded["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 2}


def test_unsupported_parts_of_a_reply_are_left_out() -> None:
    parts = (
        Thinking("t", "sig", provider="anthropic"),
        Opaque("anthropic", "server_tool_use", "{}"),
        Text("x"),
    )
    message = Message(role="assistant", parts=parts)
    reply = Reply(id="m", model="c", message=message, stop_reason="pause")
    written = json.loads(wire.write_reply(reply))
    assert [item["type"] for item in written["output"]] == ["reasoning", "message"]
    assert written["status"] == "completed"


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_stream_ends_with_the_reply(name: str) -> None:
    events = events_of(stream(name))
    assert isinstance(events[0], ReplyStart)
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    expected = wire.read_reply(body(name))
    assert json.loads(wire.write_reply(end.reply)) == json.loads(body(name))
    assert [type(part) for part in end.reply.message.parts] == [
        type(part) for part in expected.message.parts
    ]
    assert isinstance(events[-2], UsageUpdate)
    assert events[-2].usage == end.reply.usage
    ended = {e.index: e.part for e in events if isinstance(e, PartEnd)}
    assert [ended[index] for index in sorted(ended)] == list(end.reply.message.parts)


def test_stream_events() -> None:
    events = events_of(stream("everything"))
    begun = [(e.index, e.kind, e.item, e.id, e.name) for e in events if isinstance(e, PartStart)]
    assert begun == [
        (0, "thinking", "rs_1", None, None),
        (1, "opaque", "ws_1", None, None),
        (2, "text", "msg_1", None, None),
        (3, "refusal", "msg_1", None, None),
        (4, "tool_call", "fc_1", "call_1", "look_up"),
    ]
    encoded: dict[int, str] = {}
    for event in events:
        if isinstance(event, PartDelta):
            encoded[event.index] = encoded.get(event.index, "") + event.delta
    assert encoded == {
        0: "Look it up.\n\nThen say.",
        2: "Zürich 🌧️",
        3: "Not more.",
        4: '{"city": "Zürich"}',
    }
    assert events[0] == ReplyStart("resp_1", "gpt-5.6-sol")


def test_stream_is_written_as_received() -> None:
    """Relayed event by event, every item keeps its id."""
    for name in NAMES:
        events = events_of(stream(name))
        writer = wire.writer()
        again = events_of(b"".join(writer.write(event) for event in events))
        assert again[-1] == events[-1]


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def test_error_as_text() -> None:
    error = wire.read_error(429, {"retry-after": "7"}, b'{"error":"slow down"}')
    assert (type(error), str(error), error.retry_after) == (errors.RateLimited, "slow down", 7.0)
