"""Requests fit the types of the official SDK, and the SDK reads our replies, over real HTTP.

The request types are TypedDicts; pydantic turns them into one JSON schema that forbids fields they
do not name, and every rendered body has to fit it.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema_rs
import pytest
from support.byte_server import byte_server

from anaphora import catalog, errors
from anaphora.cache.plan import plan_once
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    Earlier,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    Segment,
    ToolChoice,
)
from anaphora.values import (
    Audio,
    Bytes,
    CachePolicy,
    Conversation,
    Document,
    Event,
    FileId,
    Image,
    Message,
    Opaque,
    PartDelta,
    ProviderTool,
    Refusal,
    Reply,
    ReplyFail,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Url,
    Usage,
)
from anaphora.wire import openai_responses as wire
from anaphora.wire.replies import reply_events

openai = pytest.importorskip("openai", reason="the official SDK is not installed")
pydantic = pytest.importorskip("pydantic")

WIRE, ITEM = "openai_responses", "openai_responses.item"


@functools.cache
def schema() -> Any:
    from openai.types.responses.response_create_params import (
        ResponseCreateParams,
    )

    types = pydantic.TypeAdapter(ResponseCreateParams, config=pydantic.ConfigDict(extra="forbid"))
    return jsonschema_rs.validator_for(types.json_schema())


def check(body: dict[str, Any]) -> None:
    problems = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in schema().iter_errors(body)
    ]
    assert not problems


def body_of(call: Call) -> dict[str, Any]:
    rendered = wire.render(call, catalog.profile("openai", call.model))
    planned = plan_once(rendered, catalog.rules("openai", call.model), reuse_expected=True)
    body: dict[str, Any] = json.loads(wire.assemble(rendered, planned).body.join())
    return body


PNG, PDF = Bytes(b"\x89PNG", "image/png"), Bytes(b"%PDF", "application/pdf")
SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'
SEARCHED = '{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}}'
CITED = '{"annotations":[{"type":"url_citation","start_index":0,"end_index":1,"title":"t","url":"u"}],"logprobs":[]}'
THOUGHT = '{"id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]}'
ANSWER = Message.assistant(
    Thinking("hm", data="gAAA", provider=WIRE, extras={WIRE: THOUGHT}),
    Opaque(WIRE, "web_search_call", SEARCHED),
    Text("cited", {WIRE: CITED, ITEM: '{"id":"msg_1","status":"completed","phase":"commentary"}'}),
    Text("and", {WIRE: '{"annotations":[]}'}),
    Refusal("not that"),
    Refusal("nor that", {ITEM: '{"id":"msg_2","status":"completed"}'}),
    ToolCall("c1", "search", '{"q": "x"}', {WIRE: '{"id":"fc_1","status":"completed"}'}),
    ToolCall("c2", "search", "cut off {"),
    id="calls",
)
TALK = (
    Message.user(
        "hello",
        Image(PNG),
        Image(Url("https://x.test/a.png"), "high"),
        Image(FileId("openai", "file-1")),
        Document(PDF, "title.pdf", "context"),
        Document(Bytes(b"plain", "text/plain")),
        Document(Url("https://x.test/a.pdf")),
        Document(FileId("openai", "file-2"), extras={WIRE: '{"detail":"low"}'}),
        Audio(Url("https://x.test/a.wav")),
        id="ask",
    ),
    ANSWER,
    Message.tool("c1", (Text("one"), Image(PNG), Document(PDF), Text("two")), id="r1"),
    Message.tool("c2", "failed", error=True, name="search", id="r2"),
    Message.assistant(
        "plain", "and more", Refusal("no"), Thinking("t", "sig", provider="anthropic")
    ),
    Message.user(Opaque(WIRE, "item_reference", '{"type":"item_reference","id":"x"}')),
    Message.system("from now on: in French"),
    Message.user("go on", id="last"),
)
TOOLS = (
    Tool("search", "Searches.", SCHEMA, True, CachePolicy.EPHEMERAL_1H),
    Tool("bare"),
    Tool("deferred", schema=SCHEMA, extras={WIRE: '{"defer_loading":true}'}),
    ProviderTool(WIRE, "web_search", '{"type":"web_search"}'),
)
SYSTEM = (
    PromptBlock.cached_long("identity", "You are terse.", "base"),
    PromptBlock.plain("empty", ""),
    PromptBlock.cached_short("knowledge", "Facts."),
)
ALL_SEGMENTS = tuple(
    Segment.of(role, Message.user(role.value), Message.assistant("fine")) for role in SegmentRole
)


def chat(model: str = "gpt-5.6", *, talk: Any = TALK, tail: Any = (), **fields: Any) -> Call:
    cache, system = fields.pop("cache", None), fields.pop("system", SYSTEM)
    ir = PromptIR.chat(Conversation(talk), system=system, tail=tail, cache=cache)
    return Call(ir=ir, model=model, **fields)


def with_params(**params: Any) -> Call:
    return chat(talk=[Message.user("u")], params=Params(**params))


CALLS: dict[str, Call] = {
    "every part, every tool": chat(tools=TOOLS),
    "the same without breakpoints": chat("gpt-4o", tools=TOOLS),
    "system as text": chat("gpt-5", system="You are terse."),
    "smallest": chat(talk=[Message.user("u")], system=()),
    "a mark on everything that takes one": chat(
        cache=PromptCachePlan(
            marks=(
                BlockMark(0, "12h"),
                PartMark("ask", (1,), "12h"),
                PartMark("r1", (0, 0), "30m"),
                PartMark("r1", (0, 3), "30m"),
            ),
            mode="explicit",
        ),
    ),
    "a frozen boundary": chat(cache=PromptCachePlan(frozen_through="calls", message_ttl="1h")),
    "every cache option": chat(
        cache=PromptCachePlan(
            key="k",
            mode="implicit",
            automatic="12h",
            prewarm=True,
            diagnose=True,
            compare_with=Earlier("openai", "resp_1"),
            retention="24h",
        )
    ),
    "a state turn": chat(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="gpt-5.6"),
    "a stored response": Call(
        ir=PromptIR(
            system_blocks=SYSTEM,
            segments=(Segment(SegmentRole.CONVERSATION, Conversation(TALK)),),
            continuation=Continuation("resp_1", "calls"),
        ),
        model="gpt-5.6",
    ),
    "tool choice auto": with_params(tool_choice=ToolChoice("auto", parallel=False)),
    "tool choice required": with_params(tool_choice=ToolChoice("required", parallel=True)),
    "tool choice none": with_params(tool_choice=ToolChoice("none")),
    "tool choice tool": with_params(tool_choice=ToolChoice("tool", "search", False)),
    "reasoning": with_params(reasoning=Reasoning(effort="xhigh", summary="detailed")),
    "an output schema": with_params(
        output=OutputSchema(SCHEMA, "a", "An a.", True), verbosity="low"
    ),
    "sampling": with_params(temperature=0.5, top_p=0.9, max_tokens=64),
    "metadata": with_params(metadata={"a": "7"}, user="u", service_tier="flex"),
    "policy": with_params(store=False, truncation="auto", include=("reasoning.encrypted_content",)),
    "a stream": with_params(stream=True),
    "extras": chat(extras={WIRE: '{"background":true,"max_tool_calls":3,"safety_identifier":"s"}'}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_body_fits_the_types(name: str) -> None:
    check(body_of(CALLS[name]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(temprature=1),
        lambda body: body.update(max_output_tokens="many"),
        lambda body: body["input"][1].update(role="tool"),
        lambda body: body["input"][1]["content"][0].update(label="identity"),
        lambda body: body["input"][1]["content"][0].update(
            prompt_cache_breakpoint={"mode": "explicit", "ttl": "5m"}
        ),
        lambda body: body["tools"][0].update(cache="1h"),
    ],
)
def test_comparison_detects_a_difference(spoil: Any) -> None:
    """An extra field or a value out of range, at any depth."""
    body = body_of(CALLS["every part, every tool"])
    spoil(body)
    with pytest.raises(AssertionError):
        check(body)


# ── The SDK reads what we write ──────────────────────────────────────────────────────────────────


def reply(*parts: Any, stop_reason: Any = "tool_calls", **fields: Any) -> Reply:
    usage = Usage(uncached=3, read=400, written={"30m": 20, "12h": 5}, output=50, reasoning=11)
    return Reply(
        id="resp_7",
        model="gpt-5.6",
        message=Message(id="resp_7", role="assistant", parts=parts),
        stop_reason=stop_reason,
        usage=usage,
        **fields,
    )


REPLIES = {
    "ours": reply(*ANSWER.parts),
    "another provider's": reply(
        Thinking("Let me see.", "sig==", provider="anthropic"),
        Thinking(data="redacted", provider="anthropic"),
        Text("Zürich is 🌧️."),
        Text("So it says.", {"anthropic": '{"citations":[]}'}),
        Opaque("anthropic", "server_tool_use", '{"type":"server_tool_use"}'),
        ToolCall("toolu_1", "look_up", '{"city": "Zürich", "days": [1, 2]}'),
    ),
    "cut off": reply(Text("So"), stop_reason="length"),
    "refused": reply(Refusal("No."), stop_reason="refusal"),
    "nothing": reply(stop_reason="end"),
}


def client(address: str) -> Any:
    return openai.OpenAI(base_url=address, api_key="not-a-key", max_retries=0)


def check_read(found: Any, written: Reply) -> None:
    """The SDK's object equals the reply."""
    texts = [p.text for p in written.message.parts if isinstance(p, Text)]
    assert found.output_text == "".join(texts)
    calls = [item for item in found.output if item.type == "function_call"]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        (c.id, c.name, c.arguments) for c in written.tool_calls
    ]
    refusals = [
        part.refusal
        for item in found.output
        if item.type == "message"
        for part in item.content
        if part.type == "refusal"
    ]
    assert refusals == [p.text for p in written.message.parts if isinstance(p, Refusal)]
    notices = [
        summary.text
        for item in found.output
        if item.type == "reasoning"
        for summary in item.summary
    ]
    thoughts = [p.text for p in written.message.parts if isinstance(p, Thinking) and p.text]
    assert notices == thoughts
    assert (found.id, found.model) == (written.id, written.model)
    details = found.usage.input_tokens_details
    assert (found.usage.input_tokens, details.cached_tokens) == (428, 400)
    assert (details.cache_write_tokens, found.usage.output_tokens) == (25, 50)
    assert details.cache_write_tokens_details.ttl_12h_tokens == 5
    assert found.usage.output_tokens_details.reasoning_tokens == 11
    reasons = {"length": "max_output_tokens", "refusal": "content_filter"}
    reason = found.incomplete_details.reason if found.incomplete_details else None
    assert reason == reasons.get(written.stop_reason)
    assert found.status == ("incomplete" if reason else "completed")
    # The SDK builds its objects without checking them: check them.
    type(found).model_validate(json.loads(found.to_json()))


@pytest.mark.parametrize("name", REPLIES)
def test_the_sdk_reads_an_answer(name: str) -> None:
    body = wire.write_reply(REPLIES[name])
    with byte_server(body, "application/json") as address, client(address) as api:
        check_read(api.responses.create(model="gpt-5.6", input="hi"), REPLIES[name])


@pytest.mark.parametrize("name", REPLIES)
def test_the_sdk_reads_a_stream(name: str) -> None:
    writer, written = wire.writer(), REPLIES[name]
    stream = b"".join(writer.write(event) for event in reply_events(written))
    with byte_server(stream, "text/event-stream") as address, client(address) as api:
        events = list(api.responses.create(model="gpt-5.6", input="hi", stream=True))
    for number, event in enumerate(events):
        assert event.sequence_number == number
        type(event).model_validate(json.loads(event.to_json()))
    check_read(events[-1].response, written)
    encoded = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(encoded) == written.text
    items = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.to_dict() for item in items] == [
        item.to_dict() for item in events[-1].response.output
    ]
    added = [e.output_index for e in events if e.type == "response.output_item.added"]
    assert added == list(range(len(items)))


def put_together(stream: bytes) -> Any:
    with (
        byte_server(stream, "text/event-stream") as address,
        client(address) as api,
        api.responses.stream(model="gpt-5.6", input="hi") as events,
    ):
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize(
    "name", [n for n, r in REPLIES.items() if r.stop_reason in ("end", "tool_calls")]
)
def test_sdk_accumulates_a_stream(name: str) -> None:
    """Its own accumulator comes to the same content, from the pieces. (It knows no other end than
    `response.completed`.)"""
    writer, written = wire.writer(), REPLIES[name]
    stream = b"".join(writer.write(event) for event in reply_events(written))
    check_read(put_together(stream), written)


def slowly(events: list[Event]) -> list[Event]:
    """The same in small pieces, as a model sends them."""
    return [
        piece
        for event in events
        for piece in (
            [PartDelta(event.index, char) for char in event.delta]
            if isinstance(event, PartDelta)
            else [event]
        )
    ]


@pytest.mark.parametrize("name", ["ours", "another provider's", "nothing"])
def test_sdk_accumulates_a_slow_stream(name: str) -> None:
    writer, written = wire.writer(), REPLIES[name]
    pieces = [writer.write(event) for event in slowly(reply_events(written))]
    assert sum(bool(piece) for piece in pieces) >= (10 if name != "nothing" else 2)
    check_read(put_together(b"".join(pieces)), written)


def test_the_sdk_reads_an_error_in_a_stream() -> None:
    writer = wire.writer()
    first, *_ = reply_events(REPLIES["cut off"])
    stream = writer.write(first) + writer.write(ReplyFail("Overloaded", "busy", "server_error"))
    with byte_server(stream, "text/event-stream") as address, client(address) as api:
        *_, last = api.responses.create(model="gpt-5.6", input="hi", stream=True)
    type(last).model_validate(json.loads(last.to_json()))
    assert (last.type, last.message, last.code) == ("error", "busy", "server_error")


@pytest.mark.parametrize(
    "error, raised",
    [
        (errors.RequestRejected("no", param="input[0]"), "BadRequestError"),
        (errors.Unauthenticated("who?"), "AuthenticationError"),
        (errors.Forbidden("no"), "PermissionDeniedError"),
        (errors.NotFound("where?"), "NotFoundError"),
        (errors.RateLimited("slow", retry_after=2.0, request_id="req_1"), "RateLimitError"),
        (errors.QuotaExhausted("broke"), "RateLimitError"),
        (errors.Overloaded("busy"), "InternalServerError"),
        (errors.ContextOverflow("long"), "BadRequestError"),
    ],
)
def test_the_sdk_reads_an_error(error: errors.Upstream, raised: str) -> None:
    status, headers, body = wire.write_error(error)
    kind = headers.pop("content-type")
    with (
        byte_server(body, kind, status, headers) as address,
        client(address) as api,
        pytest.raises(getattr(openai, raised)) as caught,
    ):
        api.responses.create(model="gpt-5.6", input="hi")
    assert str(error) in str(caught.value)
    assert caught.value.param == error.param
    if error.request_id is not None:
        assert caught.value.request_id == error.request_id
    again = wire.read_error(status, {**headers}, body)
    assert type(again) is type(error)
