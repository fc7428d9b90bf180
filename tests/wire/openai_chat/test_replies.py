"""Single replies, streams and errors, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.replies.openai_chat import DONE, chunk, error_body, minimal
from support.tables import each_row

from anaphora.errors import Denied, Upstream
from anaphora.values import (
    Event,
    Message,
    Opaque,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
    UsageUpdate,
    from_json,
    to_json,
)
from anaphora.wire import openai_chat
from anaphora.wire.replies import reply_events

PROVIDER_ERRORS = [kind for kind in Upstream.__subclasses__() if kind is not Denied]
FIXTURES = Path(__file__).parent / "fixtures"
ANSWERS = sorted(FIXTURES.glob("*.json"))
STREAMS = sorted(FIXTURES.glob("*.chunks.txt"))


def reasoned(field: str) -> dict[str, str]:
    return {"openai_chat": f'{{"field":"{field}"}}'}


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


@each_row("message, parts", PARTS)
def test_a_message_becomes_parts(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    assert reply.message == Message(id="chatcmpl-1", role="assistant", parts=parts)


@each_row("message, parts", PARTS)
def test_parts_become_the_message(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    written = openai_chat.write_reply(reply)
    assert openai_chat.read_reply(written) == reply
    assert from_json(to_json(reply), Reply) == reply


def test_choice_fields_are_kept_and_further_choices_left_out() -> None:
    body = json.loads(minimal(service_tier="flex"))
    body["choices"][0]["logprobs"] = {"content": []}
    body["choices"].append(
        {"index": 1, "message": {"role": "assistant", "content": "ho"}, "finish_reason": "length"}
    )
    reply = openai_chat.read_reply(json.dumps(body).encode())
    assert reply.extras is not None
    kept = json.loads(reply.extras["openai_chat"])
    assert kept == {"created": 1, "service_tier": "flex", "choice": {"logprobs": {"content": []}}}
    assert [notice.code for notice in reply.notices] == ["choices_left_out"]
    again = json.loads(openai_chat.write_reply(reply))
    body["choices"] = body["choices"][:1]
    body["choices"][0]["message"]["refusal"] = None
    assert again == body


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
        ThinkingDelta(0, "h"),
        ThinkingDelta(0, "m"),
        PartStart(1, "text"),
        TextDelta(1, "a"),
        PartStart(2, "tool_call", "c", "f"),
        ToolArgumentsDelta(2, "{}", "c", "f"),
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


def test_further_choices_of_a_stream_are_left_out_with_a_notice() -> None:
    reply = final(
        chunk({"content": "a"}),
        chunk({"content": "x"}, index=1),
        chunk({"content": "y"}, "length", index=1),
        chunk({}, "stop"),
        DONE,
    )
    assert (reply.text, reply.stop_reason) == ("a", "end")
    assert reply.extras is None
    assert [notice.code for notice in reply.notices] == ["choices_left_out"]


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


@pytest.mark.parametrize("file", STREAMS, ids=lambda file: file.name)
def test_stream_is_written_as_read(file: Path) -> None:
    notices = events(file.read_bytes())
    writer = openai_chat.writer()
    again = events(b"".join(writer.write(event) for event in notices))
    if isinstance(notices[-1], ReplyEnd):
        assert again[-1] == notices[-1]
    assert [type(e) for e in again] == [type(e) for e in notices]


@each_row("message, parts", PARTS)
def test_stream_and_single_reply_agree(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    reply = openai_chat.read_reply(minimal(message))
    writer = openai_chat.writer()
    again = final(*(writer.write(event) for event in reply_events(reply)))
    assert again.message.parts == reply.message.parts or any(isinstance(p, Opaque) for p in parts)
    assert (again.stop_reason, again.usage) == (reply.stop_reason, reply.usage)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@each_row("kind", PROVIDER_ERRORS)
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
    "body", [b'{"error":"m"}', b'{"object":"error","message":"m","type":"x"}', b'{"message":"m"}']
)
def test_other_shapes_of_an_error(body: bytes) -> None:
    assert str(openai_chat.read_error(400, {}, body)) == "m"


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


@pytest.mark.parametrize(
    "sum, details, cached, output, reasoning",
    [
        (112, {"reasoning_tokens": 100}, None, 102, 100),  # xAI
        (112, None, None, 102, 100),  # Google
        (112, None, 4, 102, 100),
        (12, {"reasoning_tokens": 1}, None, 2, 1),  # OpenAI
        (12, None, None, 2, None),
        (16, None, 4, 2, None),  # cached input beside the prompt
        (112, {"reasoning_tokens": 3}, None, 2, 3),
        (11, None, None, 2, None),
    ],
)
def test_reasoning_beside_the_completion_is_output(
    sum: int, details: Any, cached: int | None, output: int, reasoning: int | None
) -> None:
    usage: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": sum}
    usage["completion_tokens_details"] = details
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    read = openai_chat.read_reply(minimal(usage=usage)).usage
    assert (read.input, read.output, read.reasoning) == (10, output, reasoning)


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
    reply = Reply(id="r", model="m", message=Message.assistant("x"), stop_reason="end", usage=usage)
    assert json.loads(openai_chat.write_reply(reply))["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
