"""Recorded exchanges of real services, rendered with the same meaning and read without loss.

The recordings live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes. Every difference between a request
and what we say again is one of the normalisations below, by name; the last test prints how often
each was needed.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from support.exchanges import Exchanges, needs_exchanges, records

from anaphora import catalog
from anaphora.errors import RequestRejected
from anaphora.prompt import Call, PromptIR
from anaphora.rendered import Plan
from anaphora.values import (
    Event,
    Message,
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
    Thinking,
    ToolCall,
    from_json,
    to_json,
)
from anaphora.wire import openai_responses as wire
from anaphora.wire.cutting import cut

every = Exchanges("openai_responses")
RECORDS = list(records("openai_responses"))


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


def said_again(body: bytes) -> tuple[dict[str, Any], Call]:
    call = wire.parse(body)
    # Gateways put a provider's name before a model's.
    profile = catalog.profile("openai", call.model.rpartition("/")[2])
    rendered = wire.render(call, profile)
    notices = {notice.code for notice in rendered.notices}
    assert notices <= {"system_in_instructions"}
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = wire.assemble(rendered, plan)
    return json.loads(request.body.join()), call


class Normal:
    """The normalisations, each counted where it changes something."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def __call__(self, notices: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(notices)
        for name in [name for name, value in body.items() if value is None]:
            self.used["null at the top level left out"] += 1
            del body[name]
        for name, value in (body.get("reasoning") or {}).copy().items():
            if value is None:
                self.used["null among the reasoning options left out"] += 1
                del body["reasoning"][name]
        if "parallel_tool_calls" in body and "tool_choice" not in body:
            self.used["tool_choice auto is encoded with parallel_tool_calls"] += 1
            body["tool_choice"] = "auto"
        if body.get("stream") is False:
            self.used["stream: false left out"] += 1
            del body["stream"]
        if isinstance(body.get("input"), str):
            self.used["text input becomes a message"] += 1
            body["input"] = [{"role": "user", "content": body["input"]}]
        for tool in body.get("tools", []):
            if tool["type"] == "function" and not tool.get("description", "x"):
                self.used["a tool's empty description left out"] += 1
                del tool["description"]
        if "input" in body:
            body["input"] = [self.item(item) for item in body["input"]]
        if not body.get("instructions", "x").strip():
            self.used["blank instructions left out"] += 1
            del body["instructions"]
        ttl = body.get("prompt_cache_options", {}).get("ttl", "30m")
        for item in body.get("input", []):
            self.ttls(item, ttl)
        return body

    def item(self, item: dict[str, Any]) -> dict[str, Any]:
        if "type" not in item:
            self.used["an item without a type is a message"] += 1
            item = {"type": "message", **item}
        plain = item["type"] == "message" and isinstance(item["content"], str)
        if plain and item["role"] != "assistant":
            self.used["text content becomes a list"] += 1
            item["content"] = [{"type": "input_text", "text": item["content"]}]
        if item["type"] == "function_call_output" and isinstance(item["output"], str):
            self.used["a tool's text output becomes a list"] += 1
            item["output"] = [{"type": "input_text", "text": item["output"]}]
        return item

    def ttls(self, item: dict[str, Any], ttl: str) -> None:
        for part in item.get("content") or ():
            marker = part.get("prompt_cache_breakpoint") if isinstance(part, dict) else None
            if marker is not None and "ttl" not in marker:
                self.used["a breakpoint without a TTL gets the request's"] += 1
                marker["ttl"] = ttl


@every.request
def test_request_is_parsed_and_rendered_again(record: dict[str, Any]) -> None:
    notices = json.loads(record["request"])
    again, call = said_again(record["request"].encode())
    assert again == Normal()(notices)
    # Once more, nothing changes any more: what is encoded is what was read.
    once_more, read = said_again(json.dumps(again).encode())
    assert once_more == again
    assert [m.role for m in read.ir.body_chat()] == [m.role for m in call.ir.body_chat()]


@every.request
def test_split_request_loses_nothing(record: dict[str, Any]) -> None:
    notices = json.loads(record["request"])
    made = cut(wire, record["request"].encode())
    plan = Plan(marks=made.marks, automatic=made.automatic)
    again = json.loads(wire.assemble(made, plan).body.join())
    normal = Normal()
    again_too, expected = normal(again), normal(notices)
    assert again_too == expected


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def named(part: Part) -> dict[str, Any]:
    """The OpenAI item of a part, from the part's fields alone."""
    encoded: dict[str, Any]
    match part:
        case Text():
            encoded = {"type": "output_text", "text": part.text}
        case Refusal():
            encoded = {"type": "refusal", "refusal": part.text}
        case ToolCall():
            encoded = {
                "type": "function_call",
                "call_id": part.id,
                "name": part.name,
                "arguments": part.arguments,
            }
        case Thinking():
            encoded = {"type": "reasoning"}
            if part.data is not None:
                encoded["encrypted_content"] = part.data
        case Opaque():
            encoded = json.loads(part.json)
            assert encoded["type"] == part.kind
        case _:
            raise AssertionError(f"no answer of OpenAI's holds a {type(part).__name__}")
    extras = getattr(part, "extras", None) or {}
    encoded.update(json.loads(extras.get("openai_responses", "{}")))
    return encoded


def expected_parts(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in output:
        found += item["content"] if item["type"] == "message" else [item]
    return found


def stop_of(notices: dict[str, Any]) -> str:
    reason = (notices["incomplete_details"] or {}).get("reason")
    if reason is not None:
        return {"max_output_tokens": "length", "content_filter": "refusal"}.get(reason, "other")
    if notices["status"] != "completed":
        return "other"
    called = any(item["type"] == "function_call" for item in notices["output"])
    return "tool_calls" if called else "end"


def check_reply(reply: Reply, notices: dict[str, Any]) -> None:
    """No field of the reply is missing."""
    assert (reply.id, reply.model, reply.message.role) == (
        notices["id"],
        notices["model"],
        "assistant",
    )
    assert [named(part) for part in reply.message.parts] == expected_parts(notices["output"])
    texts = [p["text"] for p in expected_parts(notices["output"]) if p["type"] == "output_text"]
    assert reply.text == "".join(texts)
    assert reply.stop_reason == stop_of(notices)
    check_usage(reply, notices["usage"])
    assert json.loads(wire.write_reply(reply)) == notices


def check_usage(reply: Reply, notices: dict[str, Any]) -> None:
    usage = reply.usage
    details = notices["input_tokens_details"]
    written = details.get("cache_write_tokens")
    assert usage.read == details["cached_tokens"]
    assert usage.written_total == written
    assert usage.input == notices["input_tokens"]
    assert usage.output == notices["output_tokens"]
    assert usage.reasoning == notices["output_tokens_details"]["reasoning_tokens"]
    assert usage.total == notices["total_tokens"]
    assert usage.raw is not None
    assert json.loads(usage.raw) == notices


@every.reply
def test_reply_is_read_without_loss(record: dict[str, Any]) -> None:
    body = record["response"].encode()
    check_reply(wire.read_reply(body), json.loads(body))


@every.reply
def test_reply_becomes_history_unchanged(record: dict[str, Any]) -> None:
    """Law 9: replayed, live or from storage, it gives the items that were received."""
    body = record["response"].encode()
    message = wire.read_reply(body).message
    for answer in (message, from_json(to_json(message), Message)):
        call = Call(
            ir=PromptIR.chat([Message.user("u"), answer, Message.user("go on")]), model="gpt-5.6"
        )
        rendered = wire.render(call, catalog.profile("openai", call.model))
        assert rendered.notices == ()
        request = json.loads(wire.assemble(rendered, Plan()).body.join())
        assert request["input"][1:-1] == json.loads(body)["output"]


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def last_response(stream: str) -> bytes:
    """The reply in a stream's last event, byte for byte."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return bytes(msgspec.json.decode(lines[-1], type=dict[str, msgspec.Raw])["response"])


def events_of(stream: bytes) -> list[Event]:
    reader = wire.reader()
    return [*reader.feed(stream), *reader.close()]


@every.stream
def test_a_stream_is_read_without_loss(record: dict[str, Any]) -> None:
    body = last_response(record["response"])
    events = events_of(record["response"].encode())
    assert isinstance(events[0], ReplyStart)
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    check_reply(end.reply, json.loads(body))
    assert end.reply == wire.read_reply(body)


@every.stream
def test_stream_and_reply_have_the_same_parts(record: dict[str, Any]) -> None:
    events = events_of(record["response"].encode())
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    begun = [event.index for event in events if isinstance(event, PartStart)]
    ended = {event.index: event.part for event in events if isinstance(event, PartEnd)}
    assert begun == sorted(ended) == list(range(len(begun)))
    encoded = [named(ended[index]) for index in begun]
    final = [named(part) for part in end.reply.message.parts]
    assert [part["type"] for part in encoded] == [part["type"] for part in final]
    for index, part in ended.items():
        if isinstance(part, Text | ToolCall | Refusal):
            deltas = (e.delta for e in events if isinstance(e, PartDelta) and e.index == index)
            whole = part.arguments if isinstance(part, ToolCall) else part.text
            assert "".join(deltas) == whole
            assert named(part) == named(end.reply.message.parts[index])


@every.stream
def test_a_stream_is_written_again_without_loss(record: dict[str, Any]) -> None:
    events = events_of(record["response"].encode())
    writer = wire.writer()
    again = events_of(b"".join(writer.write(event) for event in events))
    assert again[-1] == events[-1]


@every.stream
@pytest.mark.long
def test_events_do_not_depend_on_chunking(record: dict[str, Any]) -> None:
    stream = record["response"].encode()
    expected = events_of(stream)
    for size in (1, 7, 4096):
        reader = wire.reader()
        found = []
        for at in range(0, len(stream), size):
            found += reader.feed(stream[at : at + size])
        assert found + reader.close() == expected


# ── Errors, and the table ────────────────────────────────────────────────────────────────────────


@every.error
def test_an_error_is_read_without_loss(record: dict[str, Any]) -> None:
    notices = json.loads(record["response"])["error"]
    error = wire.read_error(record["status"], {}, record["response"].encode())
    assert type(error) is RequestRejected
    assert (str(error), error.param) == (notices["message"], notices["param"])
    assert error.code == (notices["code"] or notices["type"])
    status, _, body = wire.write_error(error)
    assert (status, json.loads(body)["error"]["message"]) == (400, notices["message"])


@needs_exchanges
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    used: Counter[str] = Counter()
    for record in RECORDS:
        notices = json.loads(record["request"])
        normal = Normal()
        normal(notices)
        used += normal.used
    with capsys.disabled():
        print(f"\nopenai_responses: {len(RECORDS)} exchanges, normalised:")
        for name, count in used.most_common():
            print(f"{count:6}  {name}")
    assert used
