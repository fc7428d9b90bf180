"""Answers, streams and errors in detail. The answers are files beside this one: `name.json` is what
`name.chunks.txt` ends with."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from anaphora import errors
from anaphora.errors import Parse, Upstream
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
from anaphora.wire.replies import reply_events

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


def minimal(**changes: Any) -> bytes:
    """A small reply with some fields changed; `...` removes one."""
    whole = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5.6",
        "status": "completed",
        "output": [],
        **changes,
    }
    return json.dumps({k: v for k, v in whole.items() if v is not ...}).encode()


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


@pytest.mark.parametrize(
    "changes, stop, raw",
    [
        ({}, "end", "completed"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "length", "max_output_tokens"),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "refusal",
            "content_filter",
        ),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
            "other",
            "steered",
        ),
        ({"status": "failed", "error": None}, "other", "failed"),
        ({"status": "queued"}, "other", "queued"),
        ({"status": "in_progress"}, "other", "in_progress"),
        ({"status": "cancelled"}, "other", "cancelled"),
        ({"status": ...}, "other", None),
    ],
)
def test_stop_reason_is_read(changes: dict[str, Any], stop: str, raw: str | None) -> None:
    reply = wire.read_reply(minimal(**changes))
    assert (reply.stop_reason, reply.stop_reason_raw) == (stop, raw)
    assert json.loads(wire.write_reply(reply)) == json.loads(minimal(**changes))


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "data, path",
    [
        (b"nothing", "$"),
        (minimal(id=...), "$.id"),
        (minimal(output=...), "$.output"),
        (minimal(output=[{"type": "message", "role": "assistant"}]), "$.output[0].content"),
        (minimal(object="chat.completion"), "$.object"),
        (minimal(usage={"input_tokens": "many"}), "$.usage"),
    ],
)
def test_invalid_reply_is_rejected_with_its_path(data: bytes, path: str) -> None:
    with pytest.raises(Parse) as caught:
        wire.read_reply(data)
    assert caught.value.path == path


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


@pytest.mark.parametrize("name", NAMES)
def test_stream_events_do_not_depend_on_chunking(name: str) -> None:
    data = stream(name)
    expected = events_of(data)
    for cut in range(len(data) + 1):
        reader = wire.reader()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:]), *reader.close()] == expected


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


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


RESPONSE = {"id": "resp_1", "object": "response", "model": "gpt-5.6", "output": []}
CREATED = {"type": "response.created", "response": {**RESPONSE, "status": "in_progress"}}
ITEM_ADDED = {
    "type": "response.output_item.added",
    "output_index": 0,
    "item": {"type": "message", "id": "msg_1", "role": "assistant", "content": []},
}
PART = {
    "type": "response.content_part.added",
    "output_index": 0,
    "content_index": 0,
    "part": {"type": "output_text", "text": ""},
}
DELTA = {
    "type": "response.output_text.delta",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
}
ENCODED = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi"}],
}
ITEM_DONE = {"type": "response.output_item.done", "output_index": 0, "item": ENCODED}
END = {
    "type": "response.completed",
    "response": {
        **RESPONSE,
        "status": "completed",
        "output": [ENCODED],
        "usage": {"input_tokens": 5, "output_tokens": 9},
    },
}
ERROR = {"type": "error", "code": "server_error", "message": "busy", "param": None}
WHOLE = (CREATED, ITEM_ADDED, PART, DELTA, ITEM_DONE, END)
NO_OUTPUT = {"type": "response.completed", "response": {**END["response"], "output": []}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(WHOLE, id="as it should be"),
        pytest.param((CREATED, *WHOLE), id="a second start"),
        pytest.param((*WHOLE, ERROR, DELTA), id="events after the end"),
        pytest.param((CREATED, {"type": "keepalive"}, {"x": 1}, *WHOLE[1:]), id="unknown events"),
        pytest.param((CREATED, ITEM_ADDED, PART, DELTA, END), id="an item that is never ended"),
        pytest.param((CREATED, ITEM_ADDED, DELTA, ITEM_DONE, END), id="a part without a start"),
        pytest.param((CREATED, DELTA, ITEM_DONE, END), id="an item without a start"),
        pytest.param((*WHOLE[:-1], NO_OUTPUT), id="an end that does not say it again"),
    ],
)
def test_unusual_streams(events: tuple[dict[str, Any], ...]) -> None:
    found = events_of(sse(*events) + b"data: [DONE]\n\n")
    assert found[0] == ReplyStart("resp_1", "gpt-5.6")
    assert [e for e in found if isinstance(e, PartDelta)] == [PartDelta(0, "Hi")]
    assert sum(isinstance(e, PartStart) for e in found) == 1
    assert sum(isinstance(e, PartEnd) for e in found) == 1
    assert isinstance(found[-1], ReplyEnd)
    assert found[-1].reply.text == "Hi"
    assert (found[-1].reply.usage.output, found[-1].reply.usage.uncached) == (9, 5)


def test_missing_start_event_is_added() -> None:
    found = events_of(sse(*WHOLE[1:]))
    assert found[0] == ReplyStart("", "")
    assert isinstance(found[-1], ReplyEnd)
    assert found[-1].reply.id == "resp_1"


@pytest.mark.parametrize(
    "events, error, code",
    [
        (WHOLE[:4], "Transport", None),
        ((*WHOLE[:4], ERROR, *WHOLE[4:]), "Overloaded", "server_error"),
        (
            (
                *WHOLE[:4],
                {"type": "error", "error": {"code": "insufficient_quota", "message": "x"}},
            ),
            "QuotaExhausted",
            "insufficient_quota",
        ),
        ((CREATED, {**DELTA, "delta": 7}), "Parse", None),
        ((CREATED, {"type": "response.completed"}), "Parse", None),
        ((), "Transport", None),
    ],
)
def test_broken_stream_fails_with_the_parts_so_far(
    events: tuple[dict[str, Any], ...], error: str, code: str | None
) -> None:
    found = events_of(sse(*events))
    assert isinstance(found[-1], ReplyFail)
    assert (found[-1].error, found[-1].code) == (error, code)
    assert sum(isinstance(event, ReplyFail | ReplyEnd) for event in found) == 1
    if DELTA in events:
        assert found[-1].partial is not None
        assert found[-1].partial.text == "Hi"


@pytest.mark.parametrize(
    "item, delta",
    [
        ({"type": "message"}, "response.output_text.delta"),
        ({"type": "function_call"}, "response.function_call_arguments.delta"),
        ({"type": "reasoning"}, "response.reasoning_text.delta"),
    ],
)
def test_endless_reply_is_cut_off_with_a_clear_error(item: dict[str, Any], delta: str) -> None:
    reader = wire.reader()
    reader.feed(sse(CREATED, {**ITEM_ADDED, "item": item}))
    piece = sse({"type": delta, "output_index": 0, "content_index": 0, "delta": "x" * 2**20})
    found: list[Any] = []
    for _ in range(10):
        found += reader.feed(piece)
    assert isinstance(found[-1], ReplyFail)
    assert "more than" in found[-1].message


def test_failure_is_written_as_an_error() -> None:
    writer = wire.writer()
    first, *_ = reply_events(wire.read_reply(body("incomplete")))
    data = writer.write(first) + writer.write(ReplyFail("Overloaded", "busy", "server_error"))
    last = events_of(data)[-1]
    assert (last.error, last.message, last.code) == ("Overloaded", "busy", "server_error")


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def error_body(**fields: Any) -> bytes:
    notices = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return json.dumps({"error": {**notices, **fields}}).encode()


@pytest.mark.parametrize(
    "status, fields, kind",
    [
        (429, {"code": "insufficient_quota", "type": "insufficient_quota"}, errors.QuotaExhausted),
        (429, {"code": "rate_limit_exceeded", "type": "tokens"}, errors.RateLimited),
        (429, {"type": "requests"}, errors.RateLimited),
        (400, {"code": "context_length_exceeded"}, errors.ContextOverflow),
        (400, {"code": "previous_response_not_found"}, errors.NotFound),
        (404, {"code": "model_not_found"}, errors.NotFound),
        (400, {"code": "content_policy_violation"}, errors.ContentRefused),
        (400, {"code": "content_filter"}, errors.ContentRefused),
        (400, {"code": "invalid_prompt"}, errors.ContentRefused),
        (401, {"code": "invalid_api_key"}, errors.Unauthenticated),
        (401, {}, errors.Unauthenticated),
        (403, {"code": "unsupported_country_region_territory"}, errors.Forbidden),
        (403, {}, errors.Forbidden),
        (404, {}, errors.NotFound),
        (413, {}, errors.TooLarge),
        (400, {"code": "unknown_parameter", "param": "x"}, errors.RequestRejected),
        (422, {}, errors.RequestRejected),
        (500, {"type": "server_error"}, errors.Overloaded),
        (503, {"code": "server_is_overloaded"}, errors.Overloaded),
    ],
)
def test_errors_by_code_and_status(status: int, fields: Any, kind: type[Upstream]) -> None:
    headers = {"x-request-id": "req_1", "retry-after-ms": "1500"}
    error = wire.read_error(status, headers, error_body(**fields))
    assert type(error) is kind
    assert (error.status, error.request_id, error.retry_after) == (status, "req_1", 1.5)
    assert error.param == fields.get("param")
    again = wire.read_error(*wire.write_error(error))
    assert type(again) is kind
    assert (str(again), again.param, again.request_id) == ("no", error.param, "req_1")


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"[]", b'{"error":null}', b'{"detail":"x"}', b"\xff"]
)
def test_error_without_an_object_is_classified_by_status(data: bytes) -> None:
    assert type(wire.read_error(502, {}, data)) is errors.Overloaded
    assert type(wire.read_error(401, {}, data)) is errors.Unauthenticated


def test_error_as_text() -> None:
    error = wire.read_error(429, {"retry-after": "7"}, b'{"error":"slow down"}')
    assert (type(error), str(error), error.retry_after) == (errors.RateLimited, "slow down", 7.0)


def test_retry_after_as_a_date() -> None:
    now = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)
    headers = {"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}
    assert wire.read_error(429, headers, b"", now).retry_after == 30.0


@pytest.mark.parametrize("kind", Upstream.__subclasses__())
def test_every_error_class_survives_a_round_trip(kind: type[Upstream]) -> None:
    status, headers, data = wire.write_error(kind("why"))
    assert type(wire.read_error(status, headers, data)) is kind
