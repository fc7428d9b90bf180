"""The official SDK and we agree: what we send fits its types, and it reads what we write."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema_rs
import pytest
from pydantic import ConfigDict, TypeAdapter
from support.byte_server import byte_server

from anaphora import catalog, errors
from anaphora.cache.plan import plan_once
from anaphora.prompt import (
    BlockMark,
    Call,
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
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Refusal,
    Reply,
    ReplyFail,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)
from anaphora.wire import openai_chat
from anaphora.wire.replies import reply_events

sdk = pytest.importorskip("openai")


@functools.cache
def schema() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParams

    types: TypeAdapter[Any] = TypeAdapter(CompletionCreateParams, config=ConfigDict(extra="forbid"))
    return jsonschema_rs.validator_for(types.json_schema())


def check(body: dict[str, Any]) -> None:
    problems = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in schema().iter_errors(body)
    ]
    assert not problems


def body_of(call: Call) -> dict[str, Any]:
    rendered = openai_chat.render(call, catalog.profile("openai", call.model))
    planned = plan_once(rendered, catalog.rules("openai", call.model), reuse_expected=True)
    body: dict[str, Any] = json.loads(openai_chat.assemble(rendered, planned).body.join())
    return body


PNG = Bytes(b"\x89PNG", "image/png")
PDF = Bytes(b"%PDF", "application/pdf")
SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'
CUSTOM = '{"id":"c3","type":"custom","custom":{"name":"g","input":"x"}}'

TALK = (
    Message.user(
        "hello",
        Image(PNG, "low"),
        Image(Url("https://x.test/a.png")),
        Document(PDF, "title.pdf", "context"),
        Document(Bytes(b"plain", "text/plain")),
        Document(Url("https://x.test/a.pdf")),
        Document(FileId("openai", "file-2")),
        Audio(Bytes(b"RIFF", "audio/wav")),
        Opaque("anthropic", "search_result", "{}"),
        id="ask",
    ),
    Message.assistant(
        Thinking("hm", "sig", provider="anthropic"),
        Text("text"),
        Refusal("not that"),
        ToolCall("c1", "search", '{"q": "x"}'),
        ToolCall("c2", "search", "cut off {"),
        Opaque("openai_chat", "tool_call", CUSTOM),
        id="calls",
    ),
    Message.tool("c1", (Text("one"), Image(PNG), Text("two")), id="r1"),
    Message.tool("c2", "failed", error=True, name="search", id="r2"),
    Message.user(ToolResult("c3", ""), "go on", id="last"),
    Message.system("in French"),
)
TOOLS = (
    Tool("search", "Searches.", SCHEMA, True, CachePolicy.EPHEMERAL_1H),
    Tool("bare"),
    ProviderTool("openai_chat", "g", '{"type":"custom","custom":{"name":"g"}}'),
    ProviderTool("anthropic", "web_search", '{"type":"web_search_20250305"}'),
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
    cache = fields.pop("cache", None)
    system = fields.pop("system", SYSTEM)
    ir = PromptIR.chat(Conversation(talk), system=system, tail=tail, cache=cache)
    return Call(ir=ir, model=model, **fields)


def with_params(model: str = "gpt-5.6", **params: Any) -> Call:
    return chat(model, talk=[Message.user("u")], params=Params(**params))


CALLS: dict[str, Call] = {
    "every part, every tool": chat(tools=TOOLS),
    "without breakpoints": chat("gpt-5", tools=TOOLS),
    "an older model": chat("gpt-4o", tools=TOOLS),
    "system as text": chat(system="You are terse."),
    "system alone": chat(talk=(), system="You are terse."),
    "smallest": chat(talk=[Message.user("u")], system=()),
    "marks": chat(
        cache=PromptCachePlan(
            marks=(BlockMark(2, "12h"), PartMark("ask", (1,)), PartMark("r1", (0, 2), "30m")),
            mode="explicit",
            key="k",
            message_ttl="30m",
        )
    ),
    "a frozen boundary": chat(cache=PromptCachePlan(frozen_through="calls", message_ttl="1h")),
    "retention": chat("gpt-5", cache=PromptCachePlan(retention="24h")),
    "a state turn": chat(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="gpt-5.6"),
    "tool choice auto": with_params(tool_choice=ToolChoice("auto", parallel=False)),
    "tool choice required": with_params(tool_choice=ToolChoice("required", parallel=True)),
    "tool choice none": with_params(tool_choice=ToolChoice("none")),
    "tool choice tool": with_params(tool_choice=ToolChoice("tool", "search")),
    "effort": with_params(reasoning=Reasoning("adaptive", "max", None, "summarized")),
    "an output schema": with_params(output=OutputSchema(SCHEMA, "n", "d", True)),
    "sampling": with_params("gpt-4o", temperature=0.5, top_p=0.9, top_k=5, stop=("END",), seed=1),
    "penalties": with_params("gpt-4o", frequency_penalty=0.5, presence_penalty=0.5, n=2),
    "metadata": with_params(metadata={"a": "1"}, user="8", service_tier="flex", store=True),
    "verbosity": with_params(verbosity="low", max_tokens=7),
    "a stream": with_params(stream=True),
    "extras": chat(extras={"openai_chat": '{"logprobs":true,"top_logprobs":2}'}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_body_fits_the_types(name: str) -> None:
    check(body_of(CALLS[name]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(temprature=1),
        lambda body: body.update(max_completion_tokens="many"),
        lambda body: body["messages"][0].update(role="narrator"),
        lambda body: body["messages"][1]["content"][0].update(label="identity"),
        lambda body: body["messages"][0]["content"][0].update(cache_control={"type": "ephemeral"}),
        lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments={}),
        lambda body: body["tools"][0].update(cache="1h"),
    ],
)
def test_comparison_detects_a_difference(spoil: Any) -> None:
    """A field too many or a value out of range, at any depth."""
    body = body_of(CALLS["every part, every tool"])
    spoil(body)
    with pytest.raises(AssertionError):
        check(body)


# ── What the SDK reads ───────────────────────────────────────────────────────────────────────────

OTHER = '{"index":1,"message":{"role":"assistant","content":"ho","refusal":null},"finish_reason":"length"}'
REPLY = Reply(
    id="chatcmpl-7",
    model="gpt-5.6",
    message=Message(
        id="chatcmpl-7",
        role="assistant",
        parts=(
            Thinking("hm", provider="openai_chat", extras={"openai_chat": '{"field":"reasoning"}'}),
            Text("Zürich is 🌧️."),
            ToolCall("call_1", "look_up", '{"city": "Zürich", "days": [1, 2]}'),
            ToolCall("call_2", "look_up", "{cut"),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=3, read=400, written={"30m": 25}, output=50, reasoning=11),
    extras={"openai_chat": f'{{"created":5,"service_tier":"flex","choices":[{OTHER}]}}'},
)
REFUSED = Reply(
    id="chatcmpl-8",
    model="gpt-5.6",
    message=Message(id="chatcmpl-8", role="assistant", parts=(Refusal("I won't."),)),
    stop_reason="refusal",
    usage=Usage(uncached=3, output=5),
)


def client(address: str) -> Any:
    return sdk.OpenAI(base_url=address, api_key="not-a-key", max_retries=0)


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "gpt-5.6", "messages": [{"role": "user", "content": "hi"}], **more}


def check_reading(told: Any, reply: Reply) -> None:
    assert (told.id, told.model) == (reply.id, reply.model)
    message = told.choices[0].message
    assert (message.content or "") == reply.text
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        (c.id, c.name, c.arguments) for c in reply.tool_calls
    ]
    refused = [part.text for part in reply.message.parts if isinstance(part, Refusal)]
    assert [message.refusal] * len(refused) == refused
    assert told.usage.prompt_tokens == reply.usage.input
    assert told.usage.completion_tokens == reply.usage.output
    if reply.usage.read is not None:
        assert told.usage.prompt_tokens_details.cached_tokens == reply.usage.read
        assert told.usage.prompt_tokens_details.cache_write_tokens == reply.usage.written_total


@pytest.mark.parametrize("reply", [REPLY, REFUSED])
def test_the_sdk_reads_a_single_answer(reply: Reply) -> None:
    with byte_server(openai_chat.write_reply(reply), "application/json") as address:
        told = client(address).chat.completions.create(**ask())
    check_reading(told, reply)
    if reply is REPLY:
        assert told.choices[1].message.content == "ho"
        assert told.choices[0].finish_reason == "tool_calls"
        assert (told.created, told.service_tier) == (5, "flex")
        assert told.choices[0].message.reasoning == "hm"


@pytest.mark.parametrize("reply", [REPLY, REFUSED])
def test_the_sdk_reads_a_stream(reply: Reply) -> None:
    from openai.lib.streaming.chat import ChatCompletionStreamState

    writer = openai_chat.writer()
    body = b"".join(writer.write(event) for event in reply_events(reply))
    state = ChatCompletionStreamState()
    with byte_server(body, "text/event-stream") as address:
        for chunk in client(address).chat.completions.create(**ask(stream=True)):
            state.handle_chunk(chunk)
    check_reading(state.current_completion_snapshot, reply)


def test_sdk_raises_on_a_failed_stream() -> None:
    writer = openai_chat.writer()
    body = b"".join(writer.write(event) for event in reply_events(REPLY)[:4])
    body += writer.write(ReplyFail("Overloaded", "try later", code="server_error"))
    with (
        byte_server(body, "text/event-stream") as address,
        pytest.raises(sdk.APIError, match="try later"),
    ):
        list(client(address).chat.completions.create(**ask(stream=True)))


@pytest.mark.parametrize(
    "error, expected",
    [
        (errors.RequestRejected("m", param="messages[0]"), "BadRequestError"),
        (errors.Unauthenticated("m"), "AuthenticationError"),
        (errors.Forbidden("m"), "PermissionDeniedError"),
        (errors.NotFound("m"), "NotFoundError"),
        (errors.RateLimited("m", retry_after=3), "RateLimitError"),
        (errors.QuotaExhausted("m"), "RateLimitError"),
        (errors.Overloaded("m"), "InternalServerError"),
    ],
)
def test_the_sdk_reads_an_error(error: errors.Upstream, expected: str) -> None:
    status, headers, body = openai_chat.write_error(error)
    content_type = headers.pop("content-type")
    with (
        byte_server(body, content_type, status, headers) as address,
        pytest.raises(getattr(sdk, expected)) as caught,
    ):
        client(address).chat.completions.create(**ask())
    assert caught.value.param == error.param
    assert "m" in str(caught.value)
