"""Single replies, streams and errors, read and written."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from anaphora import errors
from anaphora.errors import Parse, Upstream
from anaphora.values import (
    Event,
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
    from_json,
    to_json,
)
from anaphora.wire import openai_chat, replies
from anaphora.wire.replies import reply_events

FIXTURES = Path(__file__).parent / "fixtures"
ANSWERS = sorted(FIXTURES.glob("*.json"))
STREAMS = sorted(FIXTURES.glob("*.chunks.txt"))


def reasoned(field: str) -> dict[str, str]:
    return {"openai_chat": f'{{"field":"{field}"}}'}


def minimal(message: Any = None, **changes: Any) -> bytes:
    """A small reply with some fields changed; `...` removes one."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi", **(message or {})},
        "finish_reason": changes.pop("finish_reason", "stop"),
    }
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        **changes,
    }
    return json.dumps({k: v for k, v in whole.items() if v is not ...}).encode()


# ── Single answers ───────────────────────────────────────────────────────────────────────────────

PARTS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({}, (Text("hi"),)),
    ({"content": None}, ()),
    ({"content": ""}, ()),
    ({"content": None, "refusal": "no"}, (Refusal("no"),)),
    ({"annotations": []}, (Text("hi"),)),
    (
        {"annotations": [{"type": "url_citation"}]},
        (
            Text("hi"),
            Opaque("openai_chat", "message", '{"annotations":[{"type": "url_citation"}]}'),
        ),
    ),
    (
        {"reasoning_content": "hm"},
        (Thinking("hm", provider="openai_chat", extras=reasoned("reasoning_content")), Text("hi")),
    ),
    (
        {"reasoning": "hm"},
        (Thinking("hm", provider="openai_chat", extras=reasoned("reasoning")), Text("hi")),
    ),
    (
        {
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
                {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        (
            ToolCall("c", "f", "{bad"),
            Opaque(
                "openai_chat",
                "tool_call",
                '{"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}}',
            ),
        ),
    ),
]


@pytest.mark.parametrize("message, parts", PARTS)
def test_a_message_becomes_parts(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    assert reply.message == Message(id="chatcmpl-1", role="assistant", parts=parts)


@pytest.mark.parametrize("message, parts", PARTS)
def test_parts_become_the_message(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    written = openai_chat.write_reply(reply)
    assert openai_chat.read_reply(written) == reply
    assert from_json(to_json(reply), Reply) == reply


def test_further_choices_and_choice_fields_are_kept() -> None:
    body = json.loads(minimal(service_tier="flex"))
    body["choices"][0]["logprobs"] = {"content": []}
    body["choices"].append(
        {"index": 1, "message": {"role": "assistant", "content": "ho"}, "finish_reason": "length"}
    )
    reply = openai_chat.read_reply(json.dumps(body).encode())
    assert reply.extras is not None
    kept = json.loads(reply.extras["openai_chat"])
    assert kept == {
        "created": 1,
        "service_tier": "flex",
        "choice": {"logprobs": {"content": []}},
        "choices": [body["choices"][1]],
    }
    again = json.loads(openai_chat.write_reply(reply))
    body["choices"][0]["message"]["refusal"] = None
    assert again == body


@pytest.mark.parametrize(
    "raw, stop",
    [
        ("stop", "end"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "refusal"),
        ("invented_tomorrow", "other"),
        ("", "other"),
        (None, "other"),
    ],
)
def test_stop_reasons(raw: str | None, stop: str) -> None:
    reply = openai_chat.read_reply(minimal(finish_reason=raw))
    assert (reply.stop_reason, reply.stop_reason_raw) == (stop, raw)


@pytest.mark.parametrize(
    "data, path",
    [
        (b"", "$"),
        (b"<html>", "$"),
        (b"[]", "$"),
        (minimal(choices=...), "$.choices"),
        (minimal(choices=[]), "$.choices"),
        (minimal(choices=[{"index": 0}]), "$.choices[0].message"),
        (minimal(choices=[{"message": {"role": "user"}}]), "$.choices[0].message.role"),
        (minimal({"content": 5}), "$.choices[0].message.content"),
        (minimal({"tool_calls": [5]}), "$.choices[0].message.tool_calls[0]"),
        (minimal(usage=[]), "$.usage"),
        (minimal(usage={"prompt_tokens": "many"}), "$.usage"),
    ],
)
def test_a_malformed_answer_names_the_field(data: bytes, path: str) -> None:
    with pytest.raises(Parse) as caught:
        openai_chat.read_reply(data)
    assert caught.value.path.startswith(path)


def test_error_object_with_status_200_is_raised() -> None:
    with pytest.raises(errors.RateLimited):
        openai_chat.read_reply(b'{"error":{"message":"slow down","code":429}}')


def test_reply_of_another_wire_is_written_as_these_bytes() -> None:
    reply = Reply(
        id="msg_1",
        model="claude",
        message=Message.assistant(
            Thinking("hm", "sig", provider="anthropic"), "a", "b", ToolCall("c", "f")
        ),
        stop_reason="stop_sequence",
        stop_reason_raw="stop_sequence",
        usage=Usage(uncached=1, read=2, written={"5m": 3}, output=4, raw='{"input_tokens":1}'),
    )
    notices = json.loads(openai_chat.write_reply(reply))
    message = notices["choices"][0]["message"]
    assert (message["content"], notices["choices"][0]["finish_reason"]) == ("ab", "stop")
    assert notices["usage"]["prompt_tokens"] == 6
    assert "reasoning_content" not in message


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def chunk(delta: Any = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choices = (
        [{"index": index, "delta": delta, "finish_reason": finish}] if delta is not None else []
    )
    body = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(*pieces: bytes) -> list[Event]:
    reader = openai_chat.reader()
    return reader.feed(b"".join(pieces)) + reader.close()


def final(*pieces: bytes) -> Reply:
    last = events(*pieces)[-1]
    assert isinstance(last, ReplyEnd)
    return last.reply


def test_events_of_a_stream() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    notices = events(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "a"}),
        chunk(
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": ""},
                    }
                ]
            }
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        chunk({}, "tool_calls"),
        chunk(usage=usage),
        DONE,
    )
    thought = Thinking("hm", provider="openai_chat", extras=reasoned("reasoning_content"))
    counted = Usage(uncached=3, output=4, raw=json.dumps(usage))
    message = Message(
        id="c1", role="assistant", parts=(thought, Text("a"), ToolCall("c", "f", "{}"))
    )
    assert notices == [
        ReplyStart("c1", "m"),
        PartStart(0, "thinking", None, "reasoning_content"),
        PartDelta(0, "h"),
        PartDelta(0, "m"),
        PartStart(1, "text"),
        PartDelta(1, "a"),
        PartStart(2, "tool_call", "c", "f"),
        PartDelta(2, "{}"),
        UsageUpdate(counted),
        PartEnd(0, thought),
        PartEnd(1, Text("a")),
        PartEnd(2, ToolCall("c", "f", "{}")),
        ReplyEnd(
            Reply(
                id="c1",
                model="m",
                message=message,
                stop_reason="tool_calls",
                stop_reason_raw="tool_calls",
                usage=counted,
            )
        ),
    ]


def test_parallel_calls_however_they_are_numbered() -> None:
    def calls(*entries: Any) -> tuple[ToolCall, ...]:
        deltas = [chunk({"tool_calls": [entry]}) for entry in entries]
        return final(*deltas, chunk({}, "tool_calls"), DONE).tool_calls

    def entry(call_id: str, arguments: str, **index: int) -> Any:
        return {"id": call_id, "function": {"name": "f", "arguments": arguments}, **index}

    two = (ToolCall("a", "f", "1"), ToolCall("b", "f", "2"))
    assert calls(entry("a", "1", index=0), entry("b", "2", index=1)) == two
    assert calls(entry("a", "1", index=0), entry("b", "2", index=0)) == two
    assert calls(entry("a", "1"), entry("b", "2")) == two
    more = {"index": 0, "function": {"arguments": "2"}}
    assert calls(entry("a", "1", index=0), more) == (ToolCall("a", "f", "12"),)


def test_fields_that_hosts_add_are_kept() -> None:
    reply = final(
        chunk({"content": "a", "reasoning_details": [{"i": 0}]}, provider="p"),
        chunk({"reasoning_details": [{"i": 1}], "audio": {"id": "x", "data": "A"}}),
        chunk({"audio": {"data": "B"}, "channel": "final"}, "stop"),
        chunk(usage={"prompt_tokens": 1}, x_groq={"id": "r"}),
        DONE,
    )
    fields = reply.message.parts[-1]
    assert isinstance(fields, Opaque)
    assert json.loads(fields.json) == {
        "reasoning_details": [{"i": 0}, {"i": 1}],
        "audio": {"id": "x", "data": "AB"},
    }
    assert reply.extras is not None
    assert json.loads(reply.extras["openai_chat"]) == {"provider": "p", "x_groq": {"id": "r"}}


def test_further_choices_are_collected() -> None:
    reply = final(
        chunk({"content": "a"}),
        chunk({"content": "x"}, index=1),
        chunk({"content": "y"}, "length", index=1),
        chunk({}, "stop"),
        DONE,
    )
    assert (reply.text, reply.stop_reason) == ("a", "end")
    assert reply.extras is not None
    (other,) = json.loads(reply.extras["openai_chat"])["choices"]
    assert (other["index"], other["message"]["content"], other["finish_reason"]) == (
        1,
        "xy",
        "length",
    )


def test_content_as_a_list_of_parts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    reply = final(
        chunk({"content": [thinking]}),
        chunk({"content": [{"type": "text", "text": "a"}]}, "stop"),
        DONE,
    )
    assert reply.message.parts == (
        Thinking("hm", provider="openai_chat", extras=reasoned("content")),
        Text("a"),
    )


def test_end_without_done_is_accepted_after_a_finish_reason() -> None:
    assert final(chunk({"content": "a"}), chunk({}, "stop")).text == "a"


@pytest.mark.parametrize(
    "body, error",
    [
        (b"", "Transport"),
        (chunk({"content": "a"}), "Transport"),
        (DONE, "Parse"),
        (b"data: {\n\n", "Parse"),
        (b"data: []\n\n", "Parse"),
        (chunk({"content": 7}), "Parse"),
        (chunk({}, usage={"prompt_tokens": "x"}), "Parse"),
        (b'data: {"error":{"message":"m","type":"server_error"}}\n\n', "Overloaded"),
        (b'data: {"error":{"message":"m","code":"rate_limit_exceeded"}}\n\n', "RateLimited"),
        (b'data: {"error":{"message":"m","code":400}}\n\n', "RequestRejected"),
        (b'data: {"error":"m"}\n\n', "Overloaded"),
        (b'event: error\ndata: {"error":{"message":"m"}}\n\n', "Overloaded"),
    ],
)
def test_broken_stream_ends_with_a_failure(body: bytes, error: str) -> None:
    for whole in (
        body,
        body + chunk({"content": "late"}, "stop") + DONE if error != "Transport" else body,
    ):
        *_, last = events(whole)
        assert isinstance(last, ReplyFail)
        assert last.error == error


def test_parts_before_an_error_are_kept() -> None:
    last = events(chunk({"content": "half"}), b'data: {"error":{"message":"m"}}\n\n')[-1]
    assert isinstance(last, ReplyFail)
    assert last.partial is not None
    assert last.partial.text == "half"


def test_unknown_and_late_events_are_ignored() -> None:
    noise = b': ping\n\ndata: {"type":"ping"}\n\nevent: x\ndata: {}\n\ndata:\n\n'
    reply = final(
        noise, chunk({"content": "a"}), noise, chunk({}, "stop"), DONE, chunk({"content": "b"})
    )
    assert reply.text == "a"


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "TEXT_LIMIT", 10)
    monkeypatch.setattr(replies, "ARGUMENTS_LIMIT", 10)
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 11}}
    for delta in ({"content": "x" * 11}, {"tool_calls": [call]}):
        last = events(chunk(delta), chunk({}, "stop"), DONE)[-1]
        assert isinstance(last, ReplyFail)
        assert last.error == "Parse"
    many = [chunk({"content": ""}, index=index) for index in range(200)]
    last = events(*many)[-1]
    assert isinstance(last, ReplyFail)


@pytest.mark.parametrize("file", STREAMS, ids=lambda file: file.name)
def test_stream_events_do_not_depend_on_chunking(file: Path) -> None:
    body = file.read_bytes()
    expected = events(body)
    assert isinstance(expected[-1], ReplyEnd | ReplyFail)
    for cut in range(len(body) + 1):
        reader = openai_chat.reader()
        assert reader.feed(body[:cut]) + reader.feed(body[cut:]) + reader.close() == expected
    reader = openai_chat.reader()
    one_by_one = [e for at in range(len(body)) for e in reader.feed(body[at : at + 1])]
    assert one_by_one + reader.close() == expected


@pytest.mark.parametrize("file", STREAMS, ids=lambda file: file.name)
def test_stream_is_written_as_read(file: Path) -> None:
    notices = events(file.read_bytes())
    writer = openai_chat.writer()
    again = events(b"".join(writer.write(event) for event in notices))
    if isinstance(notices[-1], ReplyEnd):
        assert again[-1] == notices[-1]
    assert [type(e) for e in again] == [type(e) for e in notices]


@pytest.mark.parametrize("message, parts", PARTS)
def test_stream_and_single_reply_agree(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    writer = openai_chat.writer()
    again = final(*(writer.write(event) for event in reply_events(reply)))
    assert again.message.parts == reply.message.parts or any(isinstance(p, Opaque) for p in parts)
    assert (again.stop_reason, again.usage) == (reply.stop_reason, reply.usage)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def error_body(**fields: Any) -> bytes:
    return json.dumps(
        {"error": {"message": "m", "type": None, "param": None, "code": None, **fields}}
    ).encode()


@pytest.mark.parametrize(
    "status, fields, kind",
    [
        (400, {"type": "invalid_request_error"}, errors.RequestRejected),
        (400, {"code": "context_length_exceeded"}, errors.ContextOverflow),
        (400, {"code": "content_policy_violation"}, errors.ContentRefused),
        (400, {"code": "content_filter"}, errors.ContentRefused),
        (401, {"type": "invalid_request_error", "code": "invalid_api_key"}, errors.Unauthenticated),
        (401, {"type": "invalid_request_error"}, errors.Unauthenticated),
        (402, {}, errors.QuotaExhausted),
        (403, {"code": "unsupported_country_region_territory"}, errors.Forbidden),
        (404, {"type": "invalid_request_error", "code": "model_not_found"}, errors.NotFound),
        (413, {}, errors.TooLarge),
        (422, {}, errors.RequestRejected),
        (429, {"type": "insufficient_quota", "code": "insufficient_quota"}, errors.QuotaExhausted),
        (429, {"type": "tokens", "code": "rate_limit_exceeded"}, errors.RateLimited),
        (429, {}, errors.RateLimited),
        (500, {"type": "server_error"}, errors.Overloaded),
        (503, {}, errors.Overloaded),
        (400, {"code": 400, "param": ["a"]}, errors.RequestRejected),
    ],
)
def test_an_error_by_status_and_code(status: int, fields: Any, kind: type[Upstream]) -> None:
    error = openai_chat.read_error(status, {"x-request-id": "r"}, error_body(**fields))
    assert type(error) is kind
    assert (str(error), error.status, error.request_id) == ("m", status, "r")
    written_status, headers, body = openai_chat.write_error(error)
    again = openai_chat.read_error(written_status, headers, body)
    assert type(again) is kind
    assert (str(again), again.request_id, again.param) == ("m", "r", error.param)


@pytest.mark.parametrize("kind", Upstream.__subclasses__())
def test_every_error_class_survives_a_round_trip(kind: type[Upstream]) -> None:
    """Also an error of another wire, with a status and a code of its own."""
    for error in (
        kind("m"),
        kind("m", code="overloaded_error"),
        kind("m", status=200, retry_after=1.5),
    ):
        status, headers, body = openai_chat.write_error(error)
        again = openai_chat.read_error(status, headers, body)
        assert type(again) is kind
        assert again.retry_after == error.retry_after


def test_the_parameter_and_the_code_are_kept() -> None:
    body = error_body(type="invalid_request_error", code="invalid_value", param="messages[3]")
    error = openai_chat.read_error(400, {}, body)
    assert (error.code, error.param) == ("invalid_value", "messages[3]")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"error":7}', b'{"error":null}']
)
def test_error_without_an_object_is_classified_by_status(body: bytes) -> None:
    assert type(openai_chat.read_error(429, {}, body)) is errors.RateLimited


@pytest.mark.parametrize(
    "body", [b'{"error":"m"}', b'{"object":"error","message":"m","type":"x"}', b'{"message":"m"}']
)
def test_other_shapes_of_an_error(body: bytes) -> None:
    assert str(openai_chat.read_error(400, {}, body)) == "m"


@pytest.mark.parametrize(
    "headers, wait",
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Sat, 14 Nov 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_formats(headers: dict[str, str], wait: float | None) -> None:
    now = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)
    assert openai_chat.read_error(429, headers, error_body(), now).retry_after == wait


# ── Where hosts say things in a stream ───────────────────────────────────────────────────────────

COUNTS = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CLOSED = {"type": "thinking", "thinking": [{"type": "text", "text": " so"}], "closed": True}


def beside(delta: Any, finish: str | None = None, **fields: Any) -> bytes:
    """A chunk whose choice has fields beside its delta."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
    return b"data: " + json.dumps({"id": "c1", "choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    "last",
    [
        chunk({}, "stop", usage=COUNTS),
        chunk({}, "stop", x_groq={"id": "r", "usage": COUNTS}),  # Groq, unasked
        beside({}, "stop", usage=COUNTS),  # Kimi
    ],
)
def test_usage_is_found_in_every_known_field(last: bytes) -> None:
    usage = final(chunk({"content": "a"}), last, DONE).usage
    assert (usage.input, usage.output) == (10, 5)


def test_usage_of_the_stream_wins_over_groqs_field() -> None:
    own = {"id": "r", "usage": {"prompt_tokens": 1}}
    last = chunk({}, "stop", usage=COUNTS, x_groq=own)
    assert final(chunk({"content": "a"}), last, DONE).usage.input == 10
    nothing = chunk({}, "stop", x_groq={"id": "r", "usage": None})
    assert final(chunk({"content": "a"}), nothing, DONE).usage == Usage()


def test_calls_without_index_and_id_are_distinguished_by_name() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in "fg"]
    reply = final(chunk({"tool_calls": calls}), chunk({}, "tool_calls"), DONE)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", "{}"), ("g", "{}")]
    more = {"function": {"arguments": "1"}}
    assert final(chunk({"tool_calls": [calls[0], more]}, "stop"), DONE).tool_calls == (
        ToolCall("", "f", "{}1"),
    )


def test_choice_without_index_is_the_first() -> None:
    assert final(beside({"content": "a"}, "stop", index=None), DONE).text == "a"


def test_fields_of_a_delta_are_kept() -> None:
    reply = final(
        b'data: {"id":"","model":"","choices":[],"prompt_filter_results":[1]}\n\n',
        beside({"content": "a"}),
        beside({"content": "b"}, content_filter_results={"hate": 0}),
        chunk({}, "stop"),
        DONE,
    )
    assert reply.text == "ab"
    assert reply.extras is not None
    assert json.loads(reply.extras["openai_chat"]) == {
        "prompt_filter_results": [1],
        "choice": {"content_filter_results": {"hate": 0}},
    }


def test_reasoning_in_the_content_stays_before_the_text() -> None:
    first = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    notices = events(
        chunk({"content": [first]}),
        chunk({"content": [CLOSED]}),
        chunk({"content": "a"}, "stop"),
        DONE,
    )
    assert isinstance(notices[-1], ReplyEnd)
    thinking, text = notices[-1].reply.message.parts
    assert isinstance(thinking, Thinking)
    assert (thinking.text, text) == ("hm so", Text("a"))
    assert thinking.extras is not None
    assert json.loads(thinking.extras["openai_chat"]) == {"field": "content", "closed": True}
    writer = openai_chat.writer()
    again = final(*(writer.write(event) for event in notices))
    assert again.message.parts == (thinking, text)


def test_usage_of_another_provider_is_converted() -> None:
    """A usage object of another provider has no counts for this wire."""
    raw = '{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}'
    usage = Usage(uncached=3, read=4, output=5, raw=raw)
    reply = Reply(
        id="r",
        model="m",
        message=Message.assistant("x"),
        stop_reason="end",
        usage=usage,
    )
    assert json.loads(openai_chat.write_reply(reply))["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
