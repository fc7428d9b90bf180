"""Answers and streams, both ways: bytes on one side, what they mean on the other."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.replies.ollama import DATE, answer, called, line
from support.tables import each_row

from anaphora.values import (
    Bytes,
    Event,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    PartDelta,
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
)
from anaphora.wire import ollama
from anaphora.wire.ollama.messages import sort_parts
from anaphora.wire.replies import reply_events

PNG = Bytes(b"\x89PNG\r\n\x1a\n", "image/png")
B64 = base64.b64encode(PNG.data).decode()


def notices_of(reply: Reply) -> list[Notice]:
    notices: list[Notice] = []
    sort_parts(reply.message, notices, answer=True)
    return notices


def read(body: dict[str, Any]) -> Reply:
    return ollama.read_reply(json.dumps(body).encode())


MADE_UP = {"ollama.form": f'{{"missing":["id"],"created_at":"{DATE}"}}'}

PARTS: list[tuple[dict[str, Any], tuple[Part, ...]]] = [
    ({}, ()),
    ({"content": "hi"}, (Text("hi"),)),
    (
        {"content": "hi", "thinking": "hm"},
        (Thinking("hm", provider="ollama"), Text("hi")),
    ),
    ({"images": [B64, "?"]}, (Image(PNG), Opaque("ollama", "image", '{"data":"?"}'))),
    (
        {"tool_calls": [called("f", id="c1"), called("g", id="c2")]},
        (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", '{"a": 1}')),
    ),
    (
        {"tool_calls": [called("f"), called("g", id="c2")]},
        (
            ToolCall("call_20260102T030405678Z_0", "f", '{"a": 1}', MADE_UP),
            ToolCall("c2", "g", '{"a": 1}'),
        ),
    ),
    (
        {
            "tool_calls": [
                {"id": "c", "x": 1, "function": {"index": 0, "name": "f", "arguments": {}}}
            ]
        },
        (ToolCall("c", "f", "{}", {"ollama": '{"x":1}', "ollama.form": '{"index":0}'}),),
    ),
    (
        {"content": "hi", "unknown_field": [1]},
        (Text("hi"), Opaque("ollama", "message", '{"unknown_field":[1]}')),
    ),
]


@each_row("message, parts", PARTS)
def test_a_message_both_ways(message: dict[str, Any], parts: tuple[Part, ...]) -> None:
    body = answer(message, done_reason="stop")
    reply = read(body)
    assert reply.message.parts == parts
    assert json.loads(ollama.write_reply(reply)) == body
    assert notices_of(reply) == []


@each_row("message, parts", PARTS)
def test_a_stream_of_one_line_is_equal(message: dict[str, Any], parts: tuple[Part, ...]) -> None:
    events = stream(answer(message, done_reason="stop"))
    assert isinstance(events[-1], ReplyEnd)
    assert events[-1].reply.message.parts == parts
    assert events[-1].reply == read(answer(message, done_reason="stop"))
    assert stream_again(events)[-1] == events[-1]


@pytest.mark.parametrize(
    "body, parts",
    [
        ({"images": None, "tool_calls": [], "thinking": "", "content": None}, ()),
        ({"tool_calls": [{"id": "c", "function": {"name": "f"}}]}, (ToolCall("c", "f"),)),
        (
            {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]},
            (ToolCall("c", "f", '{"a":1}'),),
        ),
    ],
)
def test_equivalent_forms(body: dict[str, Any], parts: tuple[Part, ...]) -> None:
    assert read(answer(body)).message.parts == parts


@each_row(
    "stop, reason",
    [
        ("end", "stop"),
        ("tool_calls", "stop"),
        ("stop_sequence", "stop"),
        ("refusal", "stop"),
        ("pause", "stop"),
        ("length", "length"),
        ("context_overflow", "length"),
    ],
)
def test_stop_reasons_of_other_wires(stop: Any, reason: str) -> None:
    message = (
        Message.assistant(ToolCall("c", "f")) if stop == "tool_calls" else Message.assistant("x")
    )
    reply = Reply(id="r", model="m", message=message, stop_reason=stop, stop_reason_raw="end_turn")
    assert json.loads(ollama.write_reply(reply))["done_reason"] == reason


def test_counts_and_extras() -> None:
    body = answer(
        {"content": "x"},
        done_reason="stop",
        prompt_eval_count=26,
        eval_count=298,
        total_duration=5,
        load_duration=1,
        remote_host="https://x.test",
        logprobs=[{"token": "x", "logprob": -0.1}],
    )
    reply = read(body)
    assert reply.usage == Usage(
        uncached=26, output=298, raw='{"prompt_eval_count":26,"eval_count":298}'
    )
    assert reply.usage.input == 26
    assert (reply.usage.read, reply.usage.written) == (None, None)
    assert (reply.id, reply.model) == ("", "m")
    assert reply.extras is not None
    assert set(json.loads(reply.extras["ollama"])) == {
        "created_at",
        "total_duration",
        "load_duration",
        "remote_host",
        "logprobs",
    }
    assert json.loads(ollama.write_reply(reply)) == body


def test_replies_of_other_wires_are_written_as_far_as_possible() -> None:
    parts = (
        Thinking("hm", "sig", provider="anthropic"),
        Text("a"),
        Refusal("b"),
        ToolCall("c", "f", "{cut"),
        Opaque("anthropic", "search_result", "{}"),
    )
    usage = Usage(uncached=3, read=4, written={"5m": 2}, output=5)
    reply = Reply(
        id="msg_1",
        model="m",
        message=Message(role="assistant", parts=parts),
        stop_reason="tool_calls",
        usage=usage,
    )
    written = json.loads(ollama.write_reply(reply))
    assert written["message"] == {
        "role": "assistant",
        "content": "ab",
        "thinking": "hm",
        "tool_calls": [
            {"id": "c", "function": {"name": "f", "arguments": {"invalid_arguments": "{cut"}}}
        ],
    }
    assert (written["prompt_eval_count"], written["eval_count"]) == (9, 5)
    assert written["created_at"] == "1970-01-01T00:00:00Z"
    assert [notice.code for notice in notices_of(reply)] == [
        "signature_left_out",
        "refusal_as_text",
        "arguments_not_an_object",
        "foreign_block",
        "texts_joined",
    ]


def test_an_answer_in_a_conversation_goes_back_as_it_came() -> None:
    """The id that was made up is not sent, neither with the call nor with its answer."""
    from anaphora import catalog
    from anaphora.prompt import Call, PromptIR
    from anaphora.rendered import Plan

    reply = read(answer({"thinking": "hm", "tool_calls": [called("f")]}))
    (call,) = reply.tool_calls
    conversation = [Message.user("hi"), reply.message, Message.tool(call.id, "ok")]
    rendered = ollama.render(
        Call(ir=PromptIR.chat(conversation), model="m"), catalog.profile("ollama", "m")
    )
    body = json.loads(ollama.assemble(rendered, Plan()).body.join())
    assert body["messages"][1:] == [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [called("f")]},
        {"role": "tool", "tool_name": "f", "content": "ok"},
    ]
    assert rendered.notices == ()


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def stream(*lines: dict[str, Any], rest: bytes = b"") -> list[Event]:
    reader = ollama.reader()
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return reader.feed(body + rest) + reader.close()


def stream_again(events: Sequence[Event]) -> list[Event]:
    writer, reader = ollama.writer(), ollama.reader()
    return reader.feed(b"".join(map(writer.write, events))) + reader.close()


def test_a_recorded_stream() -> None:
    events = stream(
        line({"thinking": "h"}),
        line({"thinking": "m"}),
        line({"content": "It "}, logprobs=[{"token": "It "}]),
        line({"content": "rains"}),
        line({"content": "."}, logprobs=[{"token": "."}]),
        line({"tool_calls": [called("f", id="c")]}),
        answer(done_reason="stop", prompt_eval_count=3, eval_count=4, total_duration=9),
    )
    thought, text = Thinking("hm", provider="ollama"), Text("It rains.")
    call = ToolCall("c", "f", '{"a": 1}')
    usage = Usage(uncached=3, output=4, raw='{"prompt_eval_count":3,"eval_count":4}')
    extras = {
        "created_at": DATE,
        "total_duration": 9,
        "logprobs": [{"token": "It "}, {"token": "."}],
    }
    assert events[:-1] == [
        ReplyStart("", "m"),
        PartStart(0, "thinking"),
        ThinkingDelta(0, "h"),
        ThinkingDelta(0, "m"),
        PartStart(1, "text"),
        TextDelta(1, "It "),
        TextDelta(1, "rains"),
        TextDelta(1, "."),
        PartStart(2, "tool_call", "c", "f"),
        ToolArgumentsDelta(2, '{"a": 1}', "c", "f"),
        PartEnd(2, call),
        PartEnd(0, thought),
        PartEnd(1, text),
        UsageUpdate(usage),
    ]
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    assert end.reply.message.parts == (thought, text, call)
    assert (end.reply.stop_reason, end.reply.usage) == ("tool_calls", usage)
    assert end.reply.extras is not None
    assert json.loads(end.reply.extras["ollama"]) == extras
    assert stream_again(events)[-1] == end


def test_calls_of_a_stream_are_numbered() -> None:
    events = stream(
        line({"tool_calls": [called("f")]}), line({"tool_calls": [called("g")]}), answer()
    )
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    ids = [call.id for call in end.reply.tool_calls]
    assert ids == ["call_20260102T030405678Z_0", "call_20260102T030405678Z_1"]
    assert end.reply.stop_reason == "tool_calls"
    assert [call.id for call in stream_again(events)[-1].reply.tool_calls] == ids  # type: ignore[union-attr]


def parts_of(events: list[Event]) -> tuple[Part, ...]:
    end = events[-1]
    reply = end.reply if isinstance(end, ReplyEnd) else getattr(end, "partial", None)
    assert reply is not None
    parts: tuple[Part, ...] = reply.message.parts
    return parts


def test_a_reply_with_whole_parts_is_streamed() -> None:
    """Events of other wires bring parts without deltas."""
    reply = Reply(
        id="r",
        model="m",
        message=Message.assistant(Text("a"), Image(PNG), ToolCall("c", "f")),
        stop_reason="tool_calls",
        usage=Usage(uncached=1, output=2),
    )
    events = [event for event in reply_events(reply) if not isinstance(event, PartDelta)]
    last = stream_again(events)[-1]
    assert isinstance(last, ReplyEnd)
    assert last.reply.message.parts == reply.message.parts
    assert (last.reply.usage.input, last.reply.usage.output) == (1, 2)
