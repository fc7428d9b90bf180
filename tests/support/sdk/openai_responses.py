"""OpenAI's own SDK, on Responses."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
from pydantic import ConfigDict, TypeAdapter
from support.sdk.case import (
    ALL_SEGMENTS,
    EVERYTHING,
    PDF,
    PNG,
    SCHEMA,
    SYSTEM,
    SdkCase,
    call_of,
    call_with,
    problems_of,
)
from support.sdk.openai_chat import check_error, client

from anaphora import errors
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    Earlier,
    OutputSchema,
    PartMark,
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
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Refusal,
    Reply,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Url,
    Usage,
)

MODEL = "gpt-5.6"
WIRE, ITEM = "openai_responses", "openai_responses.item"


@functools.cache
def schema() -> Any:
    from openai.types.responses.response_create_params import ResponseCreateParams

    types: TypeAdapter[Any] = TypeAdapter(ResponseCreateParams, config=ConfigDict(extra="forbid"))
    return jsonschema_rs.validator_for(types.json_schema())


def problems(body: dict[str, Any]) -> list[str]:
    return problems_of(schema(), body)


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
MESSAGES = (
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


def call(model: str = MODEL, *, messages: Sequence[Message] = MESSAGES, **fields: Any) -> Call:
    return call_of(model, messages, **fields)


def with_params(**params: Any) -> Call:
    return call_with(MODEL, **params)


CALLS: dict[str, Call] = {
    EVERYTHING: call(tools=TOOLS),
    "the same without breakpoints": call("gpt-4o", tools=TOOLS),
    "system as text": call("gpt-5", system="You are terse."),
    "smallest": call(messages=[Message.user("u")], system=()),
    "a mark on everything that takes one": call(
        cache=PromptCachePlan(
            marks=(
                BlockMark(0, "12h"),
                PartMark("ask", (1,), "12h"),
                PartMark("r1", (0, 0), "30m"),
                PartMark("r1", (0, 3), "30m"),
            ),
            mode="explicit",
        )
    ),
    "a frozen boundary": call(cache=PromptCachePlan(frozen_through="calls", message_ttl="1h")),
    "every cache option": call(
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
    "a state turn": call(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="gpt-5.6"),
    "a stored response": Call(
        ir=PromptIR(
            system_blocks=SYSTEM,
            segments=(Segment(SegmentRole.CONVERSATION, Conversation(MESSAGES)),),
            continuation=Continuation("resp_1", "calls"),
        ),
        model="gpt-5.6",
    ),
    "tool choice auto": with_params(tool_choice=ToolChoice("auto", parallel=False)),
    "tool choice required": with_params(tool_choice=ToolChoice("required", parallel=True)),
    "tool choice none": with_params(tool_choice=ToolChoice("none")),
    "tool choice tool": with_params(tool_choice=ToolChoice("tool", "search", False)),
    "reasoning": with_params(reasoning=Reasoning(effort="xhigh", summary="detailed")),
    "JSON without a schema": with_params(output="json"),
    "an output schema": with_params(
        output=OutputSchema(SCHEMA, "a", "An a.", True), verbosity="low"
    ),
    "sampling": with_params(temperature=0.5, top_p=0.9, max_tokens=64),
    "metadata": with_params(metadata={"a": "7"}, user="u", service_tier="flex"),
    "policy": with_params(store=False, truncation="auto", include=("reasoning.encrypted_content",)),
    "a stream": with_params(stream=True),
    "extras": call(extras={WIRE: '{"background":true,"max_tool_calls":3,"safety_identifier":"s"}'}),
}


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


ASK: dict[str, Any] = {"model": MODEL, "input": "hi"}


def ask(address: str) -> Any:
    with client(address) as api:
        return api.responses.create(**ASK)


def ask_for_stream(address: str) -> list[Any]:
    with client(address) as api:
        return list(api.responses.create(**ASK, stream=True))


def check_reply(found: Any, written: Reply) -> None:
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
    summaries = [
        summary.text
        for item in found.output
        if item.type == "reasoning"
        for summary in item.summary
    ]
    thoughts = [p.text for p in written.message.parts if isinstance(p, Thinking) and p.text]
    assert summaries == thoughts
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


def check_stream(events: list[Any], written: Reply) -> None:
    for number, event in enumerate(events):
        assert event.sequence_number == number
        type(event).model_validate(json.loads(event.to_json()))
    check_reply(events[-1].response, written)
    encoded = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(encoded) == written.text
    items = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.to_dict() for item in items] == [
        item.to_dict() for item in events[-1].response.output
    ]
    added = [e.output_index for e in events if e.type == "response.output_item.added"]
    assert added == list(range(len(items)))


CASE = SdkCase(
    name=WIRE,
    provider="openai",
    calls=CALLS,
    problems=problems,
    spoils=[
        lambda body: body.update(temprature=1),
        lambda body: body.update(max_output_tokens="many"),
        lambda body: body["input"][1].update(role="tool"),
        lambda body: body["input"][1]["content"][0].update(label="identity"),
        lambda body: body["input"][1]["content"][0].update(
            prompt_cache_breakpoint={"mode": "explicit", "ttl": "5m"}
        ),
        lambda body: body["tools"][0].update(cache="1h"),
    ],
    replies=REPLIES,
    ask=ask,
    ask_for_stream=ask_for_stream,
    check_reply=check_reply,
    check_stream=check_stream,
    overload_code="server_error",
    stream_error=None,
    errors=[
        errors.RequestRejected("no", param="input[0]"),
        errors.Unauthenticated("who?"),
        errors.Forbidden("no"),
        errors.NotFound("where?"),
        errors.RateLimited("slow", retry_after=2.0, request_id="req_1"),
        errors.QuotaExhausted("broke"),
        errors.Overloaded("busy"),
        errors.ContextOverflow("long"),
    ],
    check_error=check_error,
)
