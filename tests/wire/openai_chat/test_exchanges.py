"""Recorded exchanges of many Chat Completions hosts are read and written without loss.

The recordings live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes. What may differ is listed below,
one by one, and counted: `pytest -s` shows the table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from support.exchanges import Exchanges, Json, needs_exchanges, records

from anaphora import catalog
from anaphora.errors import RequestRejected
from anaphora.rendered import Plan
from anaphora.values import Opaque, Reply, ReplyEnd, ReplyFail, Text, Thinking, ToolCall
from anaphora.wire import openai_chat

every = Exchanges("openai_chat")


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


def nulls_are_missing(body: Json) -> None:
    for holder in holders(body):
        for key in [key for key, value in holder.items() if value is None]:
            del holder[key]


def stream_false_is_missing(body: Json) -> None:
    if body.get("stream") is False:
        del body["stream"]


def no_tools_and_no_stops_are_missing(body: Json) -> None:
    for name in ("tools", "stop"):
        if body.get(name) == []:
            del body[name]


def no_content_and_no_calls_are_missing(body: Json) -> None:
    for message in body["messages"]:
        for name in ("content", "tool_calls"):
            if message.get(name) == []:
                del message[name]


def a_lone_text_is_a_string_where_no_mark_may_be(body: Json) -> None:
    breakpoints = profile_for(body).explicit_breakpoints
    marked = breakpoints is not None and breakpoints.value
    for message in body["messages"]:
        content = message.get("content")
        if marked and message["role"] != "assistant":
            if isinstance(content, str):
                message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and len(content) == 1 and {*content[0]} == {"type", "text"}:
            message["content"] = content[0]["text"]


def the_profile_names_the_token_limit(body: Json) -> None:
    if "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")


def a_stop_text_is_a_list(body: Json) -> None:
    if isinstance(body.get("stop"), str):
        body["stop"] = [body["stop"]]


def any_is_required(body: Json) -> None:
    if body.get("tool_choice") == "any":
        body["tool_choice"] = "required"


def functions_say_their_type(body: Json) -> None:
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    for function in [*body.get("tools", []), *calls]:
        if "function" in function:
            function.setdefault("type", "function")


def streams_report_usage(body: Json) -> None:
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True, **body.get("stream_options", {})}


def thirty_minutes_go_without_saying(body: Json) -> None:
    for part in parts(body):
        if part.get("prompt_cache_breakpoint", {}).get("ttl") == "30m":
            del part["prompt_cache_breakpoint"]["ttl"]


def an_empty_description_is_missing(body: Json) -> None:
    for tool in body.get("tools", []):
        if tool.get("function", {}).get("description") == "":
            del tool["function"]["description"]


NORMALISATIONS = (
    nulls_are_missing,
    stream_false_is_missing,
    no_tools_and_no_stops_are_missing,
    no_content_and_no_calls_are_missing,
    a_lone_text_is_a_string_where_no_mark_may_be,
    the_profile_names_the_token_limit,
    a_stop_text_is_a_list,
    any_is_required,
    functions_say_their_type,
    streams_report_usage,
    thirty_minutes_go_without_saying,
    an_empty_description_is_missing,
)


def parts(body: Json) -> Iterator[Json]:
    for message in body["messages"]:
        if isinstance(message.get("content"), list):
            yield from message["content"]


def holders(body: Json) -> Iterator[Json]:
    """Every object of a request in which a null means nothing; schemas are not among them."""
    yield body
    yield from parts(body)
    for message in body["messages"]:
        yield message
        yield from message.get("tool_calls") or ()
    for tool in body.get("tools") or ():
        yield tool
        yield tool.get("function", {})


def profile_for(body: Json) -> catalog.Profile:
    return catalog.profile("openai", body["model"])


def normalised(body: Json, counted: Counter[str]) -> Json:
    for normalise in NORMALISATIONS:
        before = json.dumps(body)
        normalise(body)
        counted[normalise.__name__] += json.dumps(body) != before
    return body


def rendered_again(request: str) -> tuple[Json, tuple[Any, ...]]:
    call = openai_chat.parse(request.encode())
    rendered = openai_chat.render(call, catalog.profile("openai", call.model))
    body = openai_chat.assemble(rendered, Plan(marks=rendered.marks)).body.join()
    return json.loads(body), rendered.notices


@every.request
def test_parsed_request_renders_the_same(record: Json) -> None:
    encoded, notices = rendered_again(record["request"])
    assert encoded == normalised(json.loads(record["request"]), Counter())
    assert notices == ()


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def expected_answer(notices: Json) -> Json:
    """The answer as it is written again. What may differ: nulls; `content` and `refusal` that are
    empty are null; no annotations; a call's type and arguments are written out."""
    notices = {key: value for key, value in notices.items() if value is not None}
    notices["object"] = "chat.completion"
    for choice in notices["choices"]:
        message = choice["message"]
        for holder in (choice, message):
            for key in [key for key, value in holder.items() if value is None]:
                del holder[key]
        for name in ("content", "refusal"):
            message[name] = message.get(name) or None
        for name in ("reasoning", "reasoning_content"):
            if message.get(name) == "":
                del message[name]
        if message.get("annotations") == []:
            del message["annotations"]
        for call in message.get("tool_calls", ()):
            call.setdefault("type", "function")
            call["function"].setdefault("arguments", "")
        if message.get("tool_calls") == []:
            del message["tool_calls"]
    return notices


@every.reply
def test_reply_is_read_without_loss(record: Json) -> None:
    body = record["response"].encode()
    written = json.loads(openai_chat.write_reply(openai_chat.read_reply(body)))
    assert written == expected_answer(json.loads(body))


@every.reply
def test_reply_fields_are_read(record: Json) -> None:
    """Text, calls, reasoning, usage and stop are in their fields, not only in extras."""
    notices = json.loads(record["response"])
    reply = openai_chat.read_reply(record["response"].encode())
    message = notices["choices"][0]["message"]
    content = message.get("content") or ""
    if isinstance(content, str):
        assert reply.text == content
        assert thought(reply) == (
            message.get("reasoning_content") or message.get("reasoning") or ""
        )
    else:
        assert reply.text == "".join(p["text"] for p in content if p["type"] == "text")
        assert thought(reply) == "".join(
            encoded["text"] for p in content if p["type"] == "thinking" for encoded in p["thinking"]
        )
    assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [
        (c["id"], c["function"]["name"], c["function"].get("arguments", ""))
        for c in message.get("tool_calls") or ()
    ]
    check_usage(reply, notices["usage"])
    check_stop(reply, notices["choices"][0]["finish_reason"])


def thought(reply: Reply) -> str:
    return "".join(part.text for part in reply.message.parts if isinstance(part, Thinking))


def check_usage(reply: Reply, notices: Json) -> None:
    usage = reply.usage
    details = notices.get("prompt_tokens_details") or {}
    assert usage.input == notices["prompt_tokens"]
    more = notices["total_tokens"] - notices["prompt_tokens"] - notices["completion_tokens"]
    assert usage.output == notices["completion_tokens"] + more
    cached = details.get("cached_tokens")
    for name in ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens"):
        cached = notices.get(name) if cached is None else cached
    assert usage.read == cached
    written = details.get("cache_write_tokens")
    if written is not None:
        # One host counts what it wrote as read, too: no token is in the partition twice.
        written = min(written, notices["prompt_tokens"] - (cached or 0))
    assert usage.written_total == written
    reasoning = (notices.get("completion_tokens_details") or {}).get("reasoning_tokens")
    assert usage.reasoning == (more or reasoning)
    assert json.loads(usage.raw or "null") == notices


def check_stop(reply: Reply, notices: str | None) -> None:
    assert reply.stop_reason_raw == notices
    words = {"stop": "end", "length": "length", "tool_calls": "tool_calls"}
    assert reply.stop_reason == words.get(notices or "", "other")


# ── Streams and errors ───────────────────────────────────────────────────────────────────────────


def chunks(body: str) -> list[Json]:
    lines = [line[5:].strip() for line in body.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@every.stream
def test_a_stream_is_read_without_loss(record: Json) -> None:
    reader = openai_chat.reader()
    last = (reader.feed(record["response"].encode()) + reader.close())[-1]
    notices = chunks(record["response"])
    deltas = [c["delta"] for chunk in notices for c in chunk.get("choices", ()) if c["index"] == 0]
    if any("error" in chunk for chunk in notices):
        assert isinstance(last, ReplyFail)
        reply = last.partial
    else:
        assert isinstance(last, ReplyEnd)
        reply = last.reply
        stops = [
            c["finish_reason"]
            for chunk in notices
            for c in chunk.get("choices", ())
            if c.get("finish_reason")
        ]
        # One host never says why it stopped.
        check_stop(reply, stops[-1] if stops else None)
    assert reply is not None
    assert reply.text == "".join(delta.get("content") or "" for delta in deltas)
    reasoning = [delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas]
    assert thought(reply) == "".join(reasoning)
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.get("tool_calls") or ():
            encoded = calls.setdefault(call["index"], ["", "", ""])
            function = call["function"]
            encoded[0] += call.get("id") or ""
            encoded[1] += function.get("name") or ""
            encoded[2] += function.get("arguments") or ""
    assert [[c.id, c.name, c.arguments] for c in reply.tool_calls] == list(calls.values())
    counts = [chunk["usage"] for chunk in notices if chunk.get("usage")]
    if counts:
        check_usage(reply, counts[-1])


@every.stream
def test_stream_events_do_not_depend_on_chunking(record: Json) -> None:
    body = record["response"].encode()
    whole = openai_chat.reader()
    expected = whole.feed(body) + whole.close()
    for size in (1, 7, 1000):
        reader = openai_chat.reader()
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        events = [event for piece in pieces for event in reader.feed(piece)]
        assert events + reader.close() == expected


@every.stream
def test_a_stream_is_written_again(record: Json) -> None:
    reader, writer, again = openai_chat.reader(), openai_chat.writer(), openai_chat.reader()
    events = reader.feed(record["response"].encode()) + reader.close()
    written = b"".join(writer.write(event) for event in events)
    last, same = events[-1], (again.feed(written) + again.close())[-1]
    if isinstance(last, ReplyFail):
        assert isinstance(same, ReplyFail)
        assert (same.error, same.message) == (last.error, last.message)
        return
    assert isinstance(last, ReplyEnd)
    assert isinstance(same, ReplyEnd)
    one, two = last.reply, same.reply
    assert (one.id, one.model, one.message, one.usage) == (
        two.id,
        two.model,
        two.message,
        two.usage,
    )
    assert two.stop_reason_raw == (one.stop_reason_raw or "stop")
    assert extras(one) == extras(two)


def extras(reply: Reply) -> Any:
    return json.loads((reply.extras or {}).get("openai_chat", "{}"))


@every.error
def test_an_error_is_read(record: Json) -> None:
    notices = json.loads(record["response"])["error"]
    error = openai_chat.read_error(record["status"], {}, record["response"].encode())
    assert isinstance(error, RequestRejected)
    assert (str(error), error.code) == (notices["message"], notices["code"])
    assert (error.param, error.status) == (notices.get("param"), record["status"])


# ── The table ────────────────────────────────────────────────────────────────────────────────────


@needs_exchanges
def test_the_table() -> None:
    """Counts the recordings, and how often each normalisation was applied."""
    counted: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    same = 0
    for record in records("openai_chat"):
        hosts[record["host"]] += 1
        encoded, _ = rendered_again(record["request"])
        same += encoded == normalised(json.loads(record["request"]), counted)
    print(f"\nopenai_chat: {hosts.total()} requests of {len(hosts)} hosts, {same} say the same")
    for name, count in counted.most_common():
        print(f"  {count:4} × {name.replace('_', ' ')}")
    assert same == hosts.total()


@every.reply
def test_reply_becomes_history_unchanged(record: Json) -> None:
    """Law 9: replayed, it is the message that was received."""
    message = openai_chat.read_reply(record["response"].encode()).message
    body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "u"}]}).encode()
    call = openai_chat.parse(body)
    conversation = call.ir.run(call.ir.segments[0].role).append(message)
    ir = type(call.ir).chat(conversation)
    rendered = openai_chat.render(
        type(call)(ir=ir, model="gpt-5"), catalog.profile("openai", "gpt-5")
    )
    encoded = json.loads(openai_chat.assemble(rendered, Plan()).body.join())["messages"][1:]
    notices = expected_answer(json.loads(record["response"]))["choices"][0]["message"]
    expected = {key: value for key, value in notices.items() if value is not None}
    assert encoded == ([expected] if len(expected) > 1 else [])
    assert all(isinstance(p, Text | ToolCall | Thinking | Opaque) for p in message.parts)
