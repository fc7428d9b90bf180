"""Every recorded exchange of Bedrock: requests keep their meaning, answers, streams and errors are
read without loss, usage to the token; streams however they are cut."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.clouds import Json, needs_clouds, records, stream_of
from support.roundtrip import RecordedExchange, rules
from support.tables import Row, check_rows

from anaphora import errors, wire
from anaphora.rendered import Mark, Plan
from anaphora.values import Event, Reply, ReplyEnd, Thinking, Usage
from anaphora.wire.cutting import cut
from anaphora.wire.eventstream import FrameDecoder

CONVERSE = list(records("bedrock", "bedrock_converse"))
INVOKE = list(records("bedrock", "anthropic"))
MANTLE = [*records("bedrock-mantle", "openai_responses"), *records("bedrock-mantle", "openai_chat")]
OTHERS = [
    *records("bedrock", "bedrock_invoke_other"),
    *records("bedrock", "bedrock_count_tokens"),
    *records("vertex", "gemini_count_tokens"),
    *records("vertex", "gemini_cached_contents"),
]
FIELDS = {*RecordedExchange.__struct_fields__}


def rows(found: list[Json]) -> list[Row]:
    return [(f"{record['wire']}-{record['id']}", (record,)) for record in found]


def check(record: Json) -> None:
    fields = {name: value for name, value in record.items() if name in FIELDS and value is not None}
    result = rules.check(RecordedExchange(**fields))
    assert result.good, result


@needs_clouds
@pytest.mark.parametrize(
    "found", [CONVERSE, INVOKE, MANTLE, OTHERS], ids=["converse", "invoke", "mantle", "others"]
)
def test_exchanges_round_trip(found: list[Json]) -> None:
    assert found
    check_rows(rows(found), check)


@needs_clouds
def test_other_exchanges_are_compared() -> None:
    """A lost field of a counted request, a broken frame and an answer without a number are found."""
    counted = next(each for each in OTHERS if "count-tokens" in each["path"])
    inner = json.loads(counted["request"])
    inner["input"]["converse"]["inferenceConfig"] = {"maxTokens": 1}
    stream = next(each for each in OTHERS if each["stream"])
    broken = base64.b64encode(stream_of(stream)[:-1]).decode()
    for record in (
        {**counted, "request": json.dumps(inner)},
        {**counted, "response": "{}"},
        {**stream, "response_base64": broken},
    ):
        with pytest.raises(AssertionError):
            check(record)


def check_markers(record: Json) -> None:
    """Each place takes a marker, and nothing else changes."""
    codec, path, body = wire.get("bedrock"), record["path"], record["request"].encode()
    bare = wire.splice(body, Plan(), wire="bedrock", path=path, replace=True).body
    rendered = cut(codec, bare, path)
    assert not rendered.marks
    if not rendered.markers:
        return
    ttl = next(iter(rendered.markers))
    for chunk in rendered:
        if chunk.splice is not None:
            plan = Plan(marks=(Mark(chunk.index, ttl),))
            marked = wire.splice(bare, plan, wire="bedrock", path=path).body
            again = cut(codec, marked, path)
            assert (again.marks, list(again)) == (plan.marks, list(rendered))
            assert marked.replace(rendered.markers[ttl], b"", 1) == bare


@needs_clouds
def test_requests_take_every_marker() -> None:
    sent = [record for record in CONVERSE if json.loads(record["request"]).get("messages")]
    assert len(sent) > 190
    check_rows(rows(sent), check_markers)


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def read(record: Json, *pieces: bytes) -> list[Event]:
    surface = "bedrock" if record["wire"] == "bedrock_converse" else "bedrock/anthropic/invoke"
    reader = wire.get(surface).reader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.close()


def end_of(record: Json) -> Reply:
    if not record["stream"]:
        return wire.get("bedrock").read_reply(record["response"].encode())
    end = read(record, stream_of(record))[-1]
    assert isinstance(end, ReplyEnd)
    return end.reply


def blocks(record: Json) -> Iterator[dict[str, Any]]:
    """The blocks of an answer, read by other means."""
    if not record["stream"]:
        yield from json.loads(record["response"])["output"]["message"]["content"]
        return
    found: dict[int, dict[str, Any]] = {}
    for frame in FrameDecoder().feed(stream_of(record)):
        event = json.loads(frame.payload)
        block = found.setdefault(event.get("contentBlockIndex", -1), {})
        for kind, value in {**event.get("start", {}), **event.get("delta", {})}.items():
            if kind == "text":
                block["text"] = block.get("text", "") + value
            elif kind == "toolUse":
                known = block.setdefault("toolUse", {"arguments": ""})
                known["arguments"] += value.get("input", "")
                known |= {name: each for name, each in value.items() if name != "input"}
            elif kind == "reasoningContent" and "text" in value:
                block["thinking"] = block.get("thinking", "") + value["text"]
    del found[-1]
    yield from (found[index] for index in sorted(found))


def check_answer(record: Json) -> None:
    reply = end_of(record)
    texts, calls, thoughts = [], [], []
    for block in blocks(record):
        if "text" in block or "citationsContent" in block:
            cited = block.get("citationsContent", {}).get("content", [])
            texts.append(block.get("text", "") + "".join(each["text"] for each in cited))
        call = block.get("toolUse", {})
        if call and call.get("type") != "server_tool_use":
            given = call["input"] if "input" in call else json.loads(call["arguments"] or "{}")
            calls.append((call["toolUseId"], call["name"], given))
        whole = block.get("reasoningContent", {}).get("reasoningText", {}).get("text", "")
        thoughts.append(block.get("thinking", "") + whole)
    assert reply.text == "".join(texts)
    found = [(each.id, each.name, json.loads(each.arguments)) for each in reply.tool_calls]
    assert found == calls
    read_back = [part.text for part in reply.message.parts if isinstance(part, Thinking)]
    assert "".join(read_back) == "".join(thoughts)
    check_usage(record, reply.usage)


def check_usage(record: Json, usage: Usage) -> None:
    if record["stream"]:
        payloads = [json.loads(frame.payload) for frame in FrameDecoder().feed(stream_of(record))]
        counts = next(each["usage"] for each in payloads if "usage" in each)
    else:
        counts = json.loads(record["response"])["usage"]
    assert usage.uncached == counts["inputTokens"]
    assert usage.output == counts["outputTokens"]
    assert (usage.read or 0) == counts.get("cacheReadInputTokens", 0)
    assert (usage.written_total or 0) == counts.get("cacheWriteInputTokens", 0)
    assert (usage.input or 0) + (usage.output or 0) == counts["totalTokens"]


@needs_clouds
def test_answers_and_streams_are_read_to_the_token() -> None:
    answered = [record for record in CONVERSE if record["status"] == 200]
    assert len(answered) > 190
    check_rows(rows(answered), check_answer)


def check_cuts(record: Json) -> None:
    data = stream_of(record)
    expected = read(record, data)
    assert isinstance(expected[-1], ReplyEnd)
    for at in range(len(data)):
        assert read(record, data[:at], data[at:]) == expected
    assert read(record, *(data[at : at + 1] for at in range(len(data)))) == expected


@needs_clouds
@pytest.mark.long
def test_law_12_recorded_streams_cut_at_every_offset() -> None:
    """Five of the shortest that differ: text, calls, reasoning, citations, InvokeModel."""
    chosen = []
    for kind in ("toolUse", "reasoningContent", "citation", "contentBlockStop"):
        holding = [
            record
            for record in CONVERSE
            if record["stream"] and record["status"] == 200 and kind.encode() in stream_of(record)
        ]
        chosen.append(min(holding, key=lambda record: len(stream_of(record))))
    streams = [record for record in INVOKE if record["stream"]]
    chosen.append(min(streams, key=lambda record: len(stream_of(record))))
    check_rows(rows(chosen), check_cuts)


@needs_clouds
def test_errors_have_their_class() -> None:
    found = {}
    for record in CONVERSE:
        if record["status"] == 200:
            continue
        body, headers = record["response"].encode(), record["response_headers"]
        error = wire.get("bedrock").read_error(record["status"], headers, body)
        found[json.loads(record["response"])["message"][:60]] = type(error), error.param
    assert found["The provided model identifier is invalid."] == (errors.NotFound, None)
    assert found["The security token included in the request is invalid."] == (
        errors.Unauthenticated,
        None,
    )
    assert (errors.ContextOverflow, None) in found.values()
    assert (errors.RequestRejected, "messages[2].content[0]") in found.values()
