"""Laws 7, 11 and 12 on the Anthropic wire, and the way back in detail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some

from anaphora import catalog
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.prompt import Call, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Conversation,
    Message,
    Opaque,
    PartDelta,
    ProviderTool,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    SegmentRole,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from anaphora.wire import anthropic
from anaphora.wire.replies import reply_events


def render(call: Call) -> Rendered:
    return anthropic.render(call, catalog.profile("anthropic", call.model))


def said(call: Call) -> bytes:
    """The request with the caller's own marks and no others."""
    rendered = render(call)
    legal = rendered.marks[:4]
    return anthropic.assemble(rendered, Plan(marks=legal, automatic=rendered.automatic)).body.join()


@given(some.frames(), some.turns, st.none() | some.texts)
def test_law_11_parse_and_render_round_trip_bytes(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    talk = Conversation([Message.user("hello"), *(m for turn in turns for m in turn)])
    body = said(frame.call(talk, state))
    call = anthropic.parse(body)
    assert said(call) == body
    assert anthropic.parse(said(call)) == call


@given(some.frames(), some.turns, st.none() | some.texts)
def test_split_gives_the_chunks_of_render(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    talk = Conversation([Message.user("hello"), *(m for turn in turns for m in turn)])
    rendered = render(frame.call(talk, state))
    plan = Plan(marks=rendered.marks[:4], automatic=rendered.automatic)
    body = anthropic.assemble(rendered, plan).body.join()
    cut = anthropic.split(body)
    assert [chunk.data for chunk in cut] == [chunk.data for chunk in rendered]
    assert [chunk.path for chunk in cut] == [chunk.path for chunk in rendered]
    assert [chunk.splice for chunk in cut] == [chunk.splice for chunk in rendered]
    assert cut.marks == plan.marks
    assert dict(cut.envelope.cache_params) == dict(rendered.envelope.cache_params)


REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 10,
    "system": "Be terse.",
    "tools": [
        {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "future": [1]}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [
                        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "b"},
                    ],
                    "cache_control": {"type": "ephemeral", "ttl": "1h"},
                },
                {"type": "search_result", "source": "s", "title": "t", "content": []},
                {"type": "text", "text": "and?", "citations": {"enabled": True}},
            ],
        },
    ],
    "cache_control": {"type": "ephemeral"},
    "diagnostics": {"previous_message_id": None},
    "container": {"id": "c"},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "future": True},
}


def test_unknown_fields_and_blocks_come_back_unchanged() -> None:
    call = anthropic.parse(json.dumps(REQUEST).encode())
    again = json.loads(said(call))
    expected: dict[str, Any] = json.loads(json.dumps(REQUEST))
    expected["system"] = [{"type": "text", "text": "Be terse."}]
    expected["messages"][0]["content"] = [{"type": "text", "text": "hi"}]
    assert again == expected


def test_parse_reads_all_documented_fields() -> None:
    call = anthropic.parse(json.dumps(REQUEST).encode())
    assert isinstance(call.tools[1], ProviderTool)
    assert call.tools[1].name == "web_search"
    talk = call.ir.run(SegmentRole.CONVERSATION)
    assert [message.id for message in talk] == ["m0", "m1", "m2"]
    assert isinstance(talk[1].parts[0], Opaque)
    marks = [(mark.path, mark.ttl) for mark in call.ir.cache.marks if hasattr(mark, "path")]
    assert marks == [((0, 0), "5m"), ((0,), "1h")]
    assert call.ir.cache.automatic == "5m"
    assert call.ir.cache.diagnose
    assert call.params.reasoning == Reasoning("enabled", budget_tokens=2048)
    assert json.loads((call.extras or {})["anthropic"]) == {
        "container": {"id": "c"},
        "thinking": {"future": True},
    }


def test_split_keeps_key_order() -> None:
    one = b'{"max_tokens":1,"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%b]}'
    a = anthropic.split(one % b'{"name":"f","input_schema":{"type":"object","properties":{}}}')
    b = anthropic.split(one % b'{"name":"f","input_schema":{"properties":{},"type":"object"}}')
    assert a.data() != b.data()


@pytest.mark.parametrize(
    "body, path",
    [
        (b"[]", "$"),
        (b"{}", "$.model"),
        (b'{"model":"m","max_tokens":1}', "$.messages"),
        (b'{"model":"m","messages":[]}', "$.max_tokens"),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"king","content":"x"}]}',
            "$.messages[0].role",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text"}]}]}',
            "$.messages[0].content[0].text",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text",'
            b'"text":"x","cache_control":{"type":"ephemeral","ttl":"2h"}}]}]}',
            "$.messages[0].content[0].cache_control.ttl",
        ),
    ],
)
def test_invalid_request_names_its_field(body: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.parse(body)
    assert caught.value.path == path


counts = st.none() | st.integers(0, 10**6)
usages = st.builds(
    Usage,
    uncached=st.integers(0, 10**6),
    read=counts,
    written=st.none()
    | st.fixed_dictionaries({}, optional={"5m": st.integers(1, 99), "1h": st.integers(1, 99)})
    | st.just({"unsplit": 7}),
    output=st.integers(0, 10**6),
    reasoning=counts,
)
answers = st.lists(
    st.one_of(
        st.builds(Text, some.texts.filter(lambda t: bool(t.strip()))),
        st.builds(ToolCall, some.words, some.words, st.sampled_from(['{"a": 1}', "{}"])),
        st.builds(Thinking, some.texts, some.texts, st.none(), st.just("anthropic")),
        st.builds(lambda data: Thinking(data=data, provider="anthropic"), some.texts),
        st.just(Opaque("anthropic", "server_tool_use", '{"type":"server_tool_use","id":"x"}')),
    ),
    max_size=5,
).map(tuple)
replies = st.builds(
    lambda parts, usage, stop: Reply(
        id="msg_1",
        model="claude-sonnet-4-5",
        message=Message(id="msg_1", role="assistant", parts=parts),
        stop_reason=stop,
        usage=usage,
    ),
    answers,
    usages,
    st.sampled_from(["end", "length", "tool_calls", "refusal", "pause"]),
)


def counted(usage: Usage) -> tuple[Any, ...]:
    return usage.uncached, usage.read, usage.written, usage.output, usage.reasoning


@given(replies)
def test_law_7_stream_and_single_answer_agree_and_add_up(reply: Reply) -> None:
    single = anthropic.read_reply(anthropic.write_reply(reply))
    writer, reader = anthropic.writer(), anthropic.reader()
    events = reader.feed(b"".join(writer.write(event) for event in reply_events(reply)))
    assert reader.close() == []
    (end,) = events[-1:]
    assert isinstance(end, ReplyEnd)
    for read in (single, end.reply):
        assert read.message == reply.message
        assert read.stop_reason == reply.stop_reason
        assert counted(read.usage) == counted(reply.usage)
    usage = single.usage
    written = usage.written_total or 0
    assert usage.input == (usage.uncached or 0) + (usage.read or 0) + written


@given(replies, st.data())
def test_law_12_stream_events_are_independent_of_chunking(
    reply: Reply, data: st.DataObject
) -> None:
    writer = anthropic.writer()
    stream = b"".join(writer.write(event) for event in reply_events(reply))
    ending = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + stream.replace(b"\n", ending)
    whole = anthropic.reader()
    expected = whole.feed(stream) + whole.close()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = anthropic.reader()
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.close()
    assert events == expected
    bytewise = anthropic.reader()
    one_by_one = [e for at in range(len(stream)) for e in bytewise.feed(stream[at : at + 1])]
    assert one_by_one + bytewise.close() == expected


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type role content text model max_tokens messages tools system id name input usage"
                " index delta content_block message error source cache_control stop_reason".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_input_raises_only_our_errors(data: bytes) -> None:
    for read in (anthropic.parse, anthropic.split, anthropic.read_reply):
        try:
            read(data)
        except AnaphoraError:
            pass
    anthropic.read_error(500, {}, data)
    for name in (b"", b"event: content_block_start\n", b"event: message_start\n"):
        reader = anthropic.reader()
        events = reader.feed(name + b"data: " + data + b"\n\n") + reader.close()
        assert isinstance(events[-1], ReplyEnd | ReplyFail)


def test_nested_marker_keeps_field_order() -> None:
    block = '{"type":"text","text":"a"%s}'
    result = '{"type":"tool_result","tool_use_id":"t","content":[%s],"is_error":true}'
    request = '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[%s]}]}'
    marker = ',"cache_control":{"type":"ephemeral"}'
    one, other = (
        anthropic.split((request % (result % (block % said))).encode()) for said in ("", marker)
    )
    assert one.data() == other.data()
    (mark,) = other.marks
    assert mark.splice is not None
    assert other.chunk(mark.chunk).data[mark.splice :].startswith(b'}],"is_error":true}')
