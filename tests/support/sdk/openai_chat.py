"""OpenAI's own SDK, on Chat Completions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import openai as sdk
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import ConfigDict, TypeAdapter
from support.sdk.case import (
    ALL_SEGMENTS,
    EVERYTHING,
    PDF,
    PNG,
    SCHEMA,
    SdkCase,
    call_of,
    call_with,
    problems_of,
)

from anaphora import errors
from anaphora.prompt import (
    BlockMark,
    Call,
    OutputSchema,
    PartMark,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.values import (
    Audio,
    Bytes,
    CachePolicy,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Refusal,
    Reply,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)

MODEL = "gpt-5.6"


@functools.cache
def schema() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParams

    types: TypeAdapter[Any] = TypeAdapter(CompletionCreateParams, config=ConfigDict(extra="forbid"))
    return jsonschema_rs.validator_for(types.json_schema())


def problems(body: dict[str, Any]) -> list[str]:
    return problems_of(schema(), body)


CUSTOM = '{"id":"c3","type":"custom","custom":{"name":"g","input":"x"}}'

MESSAGES = (
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


def call(model: str = MODEL, *, messages: Sequence[Message] = MESSAGES, **fields: Any) -> Call:
    return call_of(model, messages, **fields)


def with_params(model: str = MODEL, **params: Any) -> Call:
    return call_with(model, **params)


CALLS: dict[str, Call] = {
    EVERYTHING: call(tools=TOOLS),
    "without breakpoints": call("gpt-5", tools=TOOLS),
    "an older model": call("gpt-4o", tools=TOOLS),
    "system as text": call(system="You are terse."),
    "system alone": call(messages=(), system="You are terse."),
    "smallest": call(messages=[Message.user("u")], system=()),
    "marks": call(
        cache=PromptCachePlan(
            marks=(BlockMark(2, "12h"), PartMark("ask", (1,)), PartMark("r1", (0, 2), "30m")),
            mode="explicit",
            key="k",
            message_ttl="30m",
        )
    ),
    "a frozen boundary": call(cache=PromptCachePlan(frozen_through="calls", message_ttl="1h")),
    "retention": call("gpt-5", cache=PromptCachePlan(retention="24h")),
    "a state turn": call(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="gpt-5.6"),
    "tool choice auto": with_params(tool_choice=ToolChoice("auto", parallel=False)),
    "tool choice required": with_params(tool_choice=ToolChoice("required", parallel=True)),
    "tool choice none": with_params(tool_choice=ToolChoice("none")),
    "tool choice tool": with_params(tool_choice=ToolChoice("tool", "search")),
    "effort": with_params(reasoning=Reasoning("adaptive", "max", None, "summarized")),
    "an output schema": with_params(output=OutputSchema(SCHEMA, "n", "d", True)),
    "JSON without a schema": with_params(output="json"),
    "sampling": with_params("gpt-4o", temperature=0.5, top_p=0.9, top_k=5, stop=("END",), seed=1),
    "penalties": with_params("gpt-4o", frequency_penalty=0.5, presence_penalty=0.5, n=2),
    "metadata": with_params(metadata={"a": "1"}, user="8", service_tier="flex", store=True),
    "verbosity": with_params(verbosity="low", max_tokens=7),
    "a stream": with_params(stream=True),
    "extras": call(extras={"openai_chat": '{"logprobs":true,"top_logprobs":2}'}),
}


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


ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def ask(address: str) -> Any:
    with client(address) as api:
        return api.chat.completions.create(**ASK)


def ask_for_stream(address: str) -> list[Any]:
    """The completion that the SDK accumulates."""
    state = ChatCompletionStreamState()
    with client(address) as api:
        for chunk in api.chat.completions.create(**ASK, stream=True):
            state.handle_chunk(chunk)
    return [state.current_completion_snapshot]


def check_content(read: Any, reply: Reply) -> None:
    assert (read.id, read.model) == (reply.id, reply.model)
    message = read.choices[0].message
    assert (message.content or "") == reply.text
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        (c.id, c.name, c.arguments) for c in reply.tool_calls
    ]
    refused = [part.text for part in reply.message.parts if isinstance(part, Refusal)]
    assert [message.refusal] * len(refused) == refused
    assert read.usage.prompt_tokens == reply.usage.input
    assert read.usage.completion_tokens == reply.usage.output
    if reply.usage.read is not None:
        assert read.usage.prompt_tokens_details.cached_tokens == reply.usage.read
        assert read.usage.prompt_tokens_details.cache_write_tokens == reply.usage.written_total


def check_reply(read: Any, reply: Reply) -> None:
    check_content(read, reply)
    if reply is REPLY:
        assert read.choices[1].message.content == "ho"
        assert read.choices[0].finish_reason == "tool_calls"
        assert (read.created, read.service_tier) == (5, "flex")
        assert read.choices[0].message.reasoning == "hm"


ERRORS: dict[type[errors.Upstream], str] = {
    errors.RequestRejected: "BadRequestError",
    errors.Unauthenticated: "AuthenticationError",
    errors.Forbidden: "PermissionDeniedError",
    errors.NotFound: "NotFoundError",
    errors.RateLimited: "RateLimitError",
    errors.QuotaExhausted: "RateLimitError",
    errors.Overloaded: "InternalServerError",
    errors.ContextOverflow: "BadRequestError",
}


def check_error(caught: Any, error: errors.Upstream, status: int) -> None:
    assert type(caught) is getattr(sdk, ERRORS[type(error)])
    assert caught.param == error.param
    assert str(error) in str(caught)
    if error.request_id is not None:
        assert caught.request_id == error.request_id


CASE = SdkCase(
    name="openai_chat",
    provider="openai",
    calls=CALLS,
    problems=problems,
    spoils=[
        lambda body: body.update(temprature=1),
        lambda body: body.update(max_completion_tokens="many"),
        lambda body: body["messages"][0].update(role="narrator"),
        lambda body: body["messages"][1]["content"][0].update(label="identity"),
        lambda body: body["messages"][0]["content"][0].update(cache_control={"type": "ephemeral"}),
        lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments={}),
        lambda body: body["tools"][0].update(cache="1h"),
    ],
    replies={"tools": REPLY, "refused": REFUSED},
    ask=ask,
    ask_for_stream=ask_for_stream,
    check_reply=check_reply,
    check_stream=lambda read, reply: check_content(read[-1], reply),
    overload_code="server_error",
    stream_error=sdk.APIError,
    errors=[
        errors.RequestRejected("m", param="messages[0]"),
        errors.Unauthenticated("m"),
        errors.Forbidden("m"),
        errors.NotFound("m"),
        errors.RateLimited("m", retry_after=3),
        errors.QuotaExhausted("m"),
        errors.Overloaded("m"),
    ],
    check_error=check_error,
)
