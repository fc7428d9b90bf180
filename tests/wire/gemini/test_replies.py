"""Complete and streamed replies: Gemini's bytes on one side, our values on the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies.gemini import answer, chunk, sse
from support.tables import each_row

from anaphora.catalog import profile
from anaphora.errors import Parse
from anaphora.prompt import Call, PromptIR
from anaphora.rendered import Plan
from anaphora.values import (
    Bytes,
    Conversation,
    Event,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
)
from anaphora.wire import gemini
from anaphora.wire.gemini.parts import write_parts
from anaphora.wire.replies import reply_events

MADE = {"gemini.form": '{"id":null}'}


def notices_of(reply: Reply) -> list[Notice]:
    notices: list[Notice] = []
    write_parts(reply.message.parts, notices)
    return notices


def signed(signature: str) -> dict[str, str]:
    return {"gemini": f'{{"thoughtSignature":"{signature}"}}'}


def read(body: Any) -> Reply:
    return gemini.read_reply(json.dumps(body).encode())


def written(reply: Reply) -> Any:
    return json.loads(gemini.write_reply(reply))


# ── Single answers ───────────────────────────────────────────────────────────────────────────────


@each_row(
    "stop, reason",
    [
        ("end", "STOP"),
        ("stop_sequence", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("context_overflow", "MAX_TOKENS"),
        ("refusal", "SAFETY"),
        ("pause", "OTHER"),
    ],
)
def test_stop_reasons_of_other_wires(stop: Any, reason: str) -> None:
    message = Message(role="assistant", parts=(Text("x"),))
    reply = Reply(
        id="r", model="m", message=message, stop_reason=stop, stop_reason_raw="their_word"
    )
    assert written(reply)["candidates"][0]["finishReason"] == reason


def test_a_full_reply_round_trips() -> None:
    body = answer(
        {"text": "hm", "thought": True},
        {"text": "so", "thoughtSignature": "c2ln"},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
        {"executableCode": {"code": "1", "language": "PYTHON"}},
        {"functionCall": {"name": "f", "args": {"a": [1, {"b": None}]}}, "thoughtSignature": "x"},
        groundingMetadata={"webSearchQueries": ["q"]},
        safetyRatings=[{"category": "A", "probability": "LOW"}],
        finishMessage="done",
    )
    body |= {"createTime": "t", "usageMetadata": {"promptTokenCount": 3, "trafficType": "X"}}
    reply = read(body)
    assert reply.message.parts == (
        Thinking("hm", provider="gemini"),
        Text("so", signed("c2ln")),
        Image(Bytes(b"\x89PNG", "image/png")),
        Opaque(
            "gemini", "executableCode", '{"executableCode": {"code": "1", "language": "PYTHON"}}'
        ),
        ToolCall("call_r_4", "f", '{"a": [1, {"b": null}]}', {**signed("x"), **MADE}),
    )
    assert (reply.id, reply.model, reply.text) == ("r", "g", "so")
    assert written(reply) == body
    assert notices_of(reply) == []


def test_a_blocked_prompt_is_an_empty_refusal() -> None:
    body = {
        "promptFeedback": {"blockReason": "OTHER", "safetyRatings": []},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
        "modelVersion": "g",
        "responseId": "r",
    }
    reply = read(body)
    assert (reply.stop_reason, reply.stop_reason_raw, reply.message.parts) == (
        "refusal",
        "OTHER",
        (),
    )
    assert (reply.usage.input, reply.usage.output) == (9, 0)
    assert written(reply) == body


def test_parts_of_other_wires_have_a_notice() -> None:
    parts: tuple[Part, ...] = (
        Thinking("hm", "s", provider="anthropic"),
        Refusal("no"),
        Opaque("anthropic", "x", "{}"),
    )
    reply = Reply(
        id="r", model="m", message=Message(role="assistant", parts=parts), stop_reason="refusal"
    )
    assert written(reply)["candidates"][0]["content"]["parts"] == [{"text": "no"}]
    assert [notice.code for notice in notices_of(reply)] == [
        "foreign_thinking",
        "refusal_as_text",
        "foreign_block",
    ]


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def listen(body: bytes) -> list[Event]:
    reader = gemini.reader()
    return reader.feed(body) + reader.close()


def streamed(body: bytes) -> Reply:
    last = listen(body)[-1]
    assert isinstance(last, ReplyEnd), last
    return last.reply


def test_a_stream_as_events() -> None:
    call = {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}}
    whole = ToolCall("c", "f", '{"a": 1}')
    events = listen(
        sse(
            chunk({"text": "hm", "thought": True}),
            chunk({"text": "so "}),
            chunk({"text": "it is"}, call, stop="STOP"),
        )
    )
    assert [event for event in events if not isinstance(event, ReplyEnd)] == [
        ReplyStart("r", "g"),
        PartStart(0, "thinking"),
        ThinkingDelta(0, "hm"),
        PartEnd(0, Thinking("hm", provider="gemini")),
        PartStart(1, "text"),
        TextDelta(1, "so "),
        TextDelta(1, "it is"),
        PartEnd(1, Text("so it is")),
        PartStart(2, "tool_call", "c", "f"),
        ToolArgumentsDelta(2, '{"a": 1}', "c", "f"),
        PartEnd(2, whole),
    ]
    assert streamed(sse(chunk(call, stop="STOP"))).stop_reason == "tool_calls"


@each_row(
    "parts, expected",
    [
        # Gemini 3 signs with an empty text at the end, Gemini 2.5 with the first piece.
        (
            [{"text": "a"}, {"text": "b"}, {"text": "", "thoughtSignature": "s"}],
            (Text("ab"), Text("", signed("s"))),
        ),
        (
            [{"text": "a", "thoughtSignature": "s"}, {"text": "b"}, {"text": "c"}],
            (Text("a", signed("s")), Text("bc")),
        ),
        (
            [{"text": "a", "thoughtSignature": "s"}, {"text": "b", "thoughtSignature": "t"}],
            (Text("a", signed("s")), Text("b", signed("t"))),
        ),
        (
            [{"text": "a", "thought": True, "thoughtSignature": "s"}, {"text": "b"}],
            (Thinking("a", "s", provider="gemini"), Text("b")),
        ),
        ([{"text": "a"}, {"text": ""}, {"text": "b"}], (Text("ab"),)),
        ([{"text": ""}], ()),
        (
            [{"functionCall": {"name": "f"}}, {"text": "", "thoughtSignature": "s"}],
            (ToolCall("call_r_0", "f", "{}", MADE), Text("", signed("s"))),
        ),
        (
            [{"text": "a"}, {"text": "b", "speechMetadata": {}}],
            (Text("a"), Text("b", {"gemini": '{"speechMetadata":{}}'})),
        ),
    ],
)
def test_pieces_of_text_are_one_part(parts: list[Any], expected: tuple[Part, ...]) -> None:
    chunks = [chunk(part) for part in parts]
    reply = streamed(sse(*chunks, chunk(stop="STOP")))
    assert reply.message.parts == expected


def test_signature_of_a_stream_is_sent_back_on_its_own_part() -> None:
    """Joined, the texts are those of the stream; a part with a signature is the part that had it."""
    sent = [
        {"text": "hm", "thought": True},
        {"text": "It "},
        {"text": "is "},
        {"text": "so", "thoughtSignature": "cw=="},
        {"text": "."},
        {"text": "", "thoughtSignature": "dA=="},
    ]
    reply = streamed(sse(*map(chunk, sent), chunk(stop="STOP")))
    assert reply.text == "It is so."
    ir = PromptIR.chat(Conversation([Message.user("Is it?"), reply.message, Message.user("Sure?")]))
    rendered = gemini.render(Call(ir=ir, model="gemini-3-pro"), profile("google", "gemini-3-pro"))
    contents = json.loads(gemini.assemble(rendered, Plan()).body.join())["contents"]
    texts = [part for part in contents[1]["parts"] if not part.get("thought")]
    assert texts == [{"text": "It is "}, sent[3], sent[4], sent[5]]


def test_a_rewritten_stream_is_equal() -> None:
    parts: tuple[Part, ...] = (
        Thinking("hm", provider="gemini"),
        Thinking("", "dA==", provider="gemini"),
        Text("so"),
        Text("", signed("cw==")),
        ToolCall("call_r_4", "f", '{\n "a": 1 }', {**signed("eA=="), **MADE}),
        Opaque("gemini", "codeExecutionResult", '{"codeExecutionResult":{"outcome":"OUTCOME_OK"}}'),
        Text("", signed("eQ==")),
    )
    reply = Reply(
        id="r",
        model="g",
        message=Message(id="r", role="assistant", parts=parts),
        stop_reason="tool_calls",
        stop_reason_raw="STOP",
        usage=Usage(uncached=3, read=4, output=9, reasoning=2),
        extras={"gemini": '{"createTime":"t","candidate":{"avgLogprobs":-0.5}}'},
    )
    writer = gemini.writer()
    again = streamed(b"".join(writer.write(event) for event in reply_events(reply)))
    assert again.message == reply.message
    assert (again.stop_reason, again.stop_reason_raw) == (reply.stop_reason, reply.stop_reason_raw)
    assert (again.usage.uncached, again.usage.read, again.usage.output) == (3, 4, 9)
    assert json.loads((again.extras or {})["gemini"]) == json.loads((reply.extras or {})["gemini"])


def test_the_last_counts_apply() -> None:
    first, last = (
        {"promptTokenCount": 8, "totalTokenCount": 8},
        {
            "promptTokenCount": 8,
            "cachedContentTokenCount": 5,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 4,
            "totalTokenCount": 15,
        },
    )
    body = sse(
        {**chunk({"text": "a"}), "usageMetadata": first},
        {**chunk(stop="STOP"), "usageMetadata": last},
    )
    usage = streamed(body).usage
    assert (usage.uncached, usage.read, usage.output, usage.reasoning) == (3, 5, 7, 4)


def test_metadata_in_several_chunks_is_merged() -> None:
    def grounds(*titles: str) -> Any:
        return {"groundingChunks": [{"web": {"title": title}} for title in titles]}

    body = sse(
        chunk({"text": "a"}, groundingMetadata=grounds("x"), safetyRatings=[1]),
        chunk({"text": "b"}, groundingMetadata={}, logprobsResult={"chosenCandidates": [1]}),
        chunk(
            groundingMetadata={**grounds("x", "y"), "webSearchQueries": ["q"]},
            logprobsResult={"chosenCandidates": [1]},
            safetyRatings=[2],
            stop="STOP",
        ),
    )
    beside = json.loads((streamed(body).extras or {})["gemini"])["candidate"]
    assert beside == {
        "groundingMetadata": {**grounds("x", "y"), "webSearchQueries": ["q"]},
        "logprobsResult": {"chosenCandidates": [1, 1]},
        "safetyRatings": [2],
    }


def test_further_candidates_are_left_out_with_a_notice() -> None:
    def other(text: str, **more: Any) -> Any:
        return {"content": {"parts": [{"text": text}], "role": "model"}, "index": 1, **more}

    one, two = chunk({"text": "a"}), chunk({"text": "b"}, stop="STOP")
    one["candidates"].append(other("x"))
    two["candidates"].append(other("y", finishReason="MAX_TOKENS", avgLogprobs=-1))
    reply = streamed(sse(one, two))
    assert reply.text == "ab"
    assert not reply.extras
    assert [notice.code for notice in reply.notices] == ["choices_left_out"]


def test_a_blocked_prompt_in_a_stream() -> None:
    reply = streamed(sse({"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r"}))
    assert (reply.id, reply.stop_reason, reply.stop_reason_raw) == ("r", "refusal", "SAFETY")
    writer = gemini.writer()
    again = streamed(b"".join(writer.write(event) for event in reply_events(reply)))
    assert (again.stop_reason, again.stop_reason_raw, again.message) == (
        reply.stop_reason,
        "SAFETY",
        reply.message,
    )


def test_chunks_as_one_json_list_are_read_when_they_are_complete() -> None:
    """What `streamGenerateContent` gives without `alt=sse`."""
    chunks = [chunk({"text": "a"}), chunk({"text": "b"}, stop="STOP")]
    reader = gemini.reader()
    body = json.dumps(chunks, indent=1).encode()
    assert reader.feed(b" " + body[:20]) + reader.feed(body[20:]) == []
    last = reader.close()[-1]
    assert isinstance(last, ReplyEnd)
    assert last.reply.text == "ab"
    (failed,) = [e for e in listen(body[:-5]) if isinstance(e, ReplyFail)]
    assert failed.error == "Transport"


def test_nothing_is_read_after_the_end() -> None:
    reader = gemini.reader()
    reader.feed(sse(chunk({"text": "a"}, stop="STOP")))
    assert isinstance(reader.close()[-1], ReplyEnd)
    assert reader.feed(sse(chunk({"text": "b"}, stop="STOP"))) + reader.close() == []


# ── Arguments in pieces ──────────────────────────────────────────────────────────────────────────


def in_pieces(*pieces: Any, more: bool = True, **named: Any) -> Any:
    call: dict[str, Any] = {**named, "partialArgs": list(pieces)}
    if more:
        call["willContinue"] = True
    return {"functionCall": call}


def test_arguments_in_pieces_are_joined() -> None:
    """Vertex, asked for `streamFunctionCallArguments`."""
    reply = streamed(
        sse(
            chunk({"functionCall": {"id": "c", "name": "f", "willContinue": True}}),
            chunk(in_pieces({"jsonPath": "$.city", "stringValue": "Zü", "willContinue": True})),
            chunk(in_pieces({"jsonPath": "$.city", "stringValue": "rich"})),
            chunk(
                in_pieces(
                    {"jsonPath": "$.days[0].n", "numberValue": 1},
                    {"jsonPath": "$.days[1]['x.y']", "boolValue": False},
                    {"jsonPath": "$.none", "nullValue": "NULL_VALUE"},
                )
            ),
            chunk({"functionCall": {}}),
            chunk(in_pieces(more=False, name="g")),
            chunk({"text": "so"}, stop="STOP"),
        )
    )
    first, second = reply.tool_calls
    assert (first.id, first.name, first.extras) == ("c", "f", None)
    assert json.loads(first.arguments) == {
        "city": "Zürich",
        "days": [{"n": 1}, {"x.y": False}],
        "none": None,
    }
    assert (second.name, second.arguments, reply.text) == ("g", "{}", "so")


def test_strings_in_pieces_may_alternate() -> None:
    pieces = [("$.a", "1"), ("$.b[0]", "x"), ("$.a", "2"), ("$.b[0]", "y"), ("$.a", "3")]
    pieces += [("$.b[1]", "z"), ("$.c", "old"), ("$.c", "er")]
    reply = streamed(
        sse(
            chunk(
                in_pieces(*({"jsonPath": p, "stringValue": text} for p, text in pieces), name="f")
            ),
            chunk(
                in_pieces(
                    {"jsonPath": "$.c", "numberValue": 4}, {"jsonPath": "$.a", "stringValue": "4"}
                )
            ),
            chunk({"functionCall": {}}, stop="STOP"),
        )
    )
    assert json.loads(reply.tool_calls[0].arguments) == {"a": "1234", "b": ["xy", "z"], "c": 4}


@each_row("path", ["", "city", "$", "$.a[5]", "$[0]", "$.a..b", "$.a[*]"])
def test_invalid_argument_paths_fail(path: str) -> None:
    last = listen(sse(chunk(in_pieces({"jsonPath": path, "stringValue": "x"}, name="f"))))[-1]
    assert isinstance(last, ReplyFail)
    assert "partialArgs" in last.message


@each_row("other", [None, 5, "x", [], {"content": 5}, {"finishReason": 7}])
def test_further_candidate_may_be_anything(other: Any) -> None:
    body = answer({"text": "so"})
    body["candidates"].append(other)
    reply = read(body)
    assert reply.text == "so"
    assert len(written(reply)["candidates"]) == 1
    assert [notice.code for notice in reply.notices] == ["choices_left_out"]


@each_row("candidates", [5, "x", [5], [5, 5], {"content": 5}])
def test_first_candidate_must_be_readable(candidates: Any) -> None:
    with pytest.raises(Parse, match="candidates"):
        read({**answer({"text": "so"}), "candidates": candidates})
