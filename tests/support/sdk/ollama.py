"""Ollama's own SDK."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import ollama as sdk
from ollama import _types
from support.sdk.case import (
    ALL_SEGMENTS,
    EVERYTHING,
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

MODEL = "qwen3"

#: Fields that the server's own types have and this version of the SDK does not.
NEWER: dict[str, tuple[str, type]] = {
    "ToolCall": ("id", str),
    "Function": ("index", int),
    "Message": ("tool_call_id", str),
}


def closed(schema: Any, name: str = "") -> Any:
    """A JSON schema that takes no field it does not name; a tool's parameters are a schema of
    their own, and stay open."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(item, key) for key, item in schema.items()}
    if "properties" in schema and name not in ("Parameters", "Property", "properties"):
        found["additionalProperties"] = False
    return found


@functools.cache
def validator(kind: str) -> Any:
    return jsonschema_rs.validator_for(closed(getattr(_types, kind).model_json_schema()))


def without_newer(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the fields that are newer than the SDK, each of the right type."""
    message = copy.deepcopy(message)
    holders = [("Message", message)]
    for call in message.get("tool_calls", ()):
        holders += [("ToolCall", call), ("Function", call["function"])]
    for kind, holder in holders:
        field, type_ = NEWER[kind]
        assert isinstance(holder.pop(field, type_()), type_)
    return message


def problems(body: dict[str, Any]) -> list[str]:
    """The request fits `ChatRequest`; its messages, which that leaves open, fit `Message`."""
    found = problems_of(validator("ChatRequest"), {**body, "messages": []})
    for message in body["messages"]:
        try:
            plain = without_newer(message)
        except AssertionError as problem:
            return [str(problem)]
        # The SDK's picture is a wrapper that it writes as its base64 text.
        pictures = plain.pop("images", [])
        found += [f"not base64: {p!r}" for p in pictures if not isinstance(p, str)]
        found += problems_of(validator("Message"), plain)
    if not found:
        _types.ChatRequest(**body)
    return found


MESSAGES = (
    Message.user(
        "hello",
        Image(PNG, "low"),
        "and",
        Image(Url("https://x.test/a.png")),
        Document(Bytes(b"%PDF", "application/pdf"), "title.pdf"),
        Audio(Bytes(b"RIFF", "audio/wav")),
        Opaque("anthropic", "search_result", "{}"),
        id="ask",
    ),
    Message.assistant(
        Thinking("hm", "sig", provider="anthropic"),
        Thinking("hm", provider="ollama"),
        Text("text"),
        Refusal("not that"),
        ToolCall("c1", "search", '{"q": "x"}'),
        ToolCall("c2", "search", "cut off {"),
        ToolCall("c3", "bare", "{}", {"ollama.form": '{"missing":["id"],"index":2}'}),
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
    ProviderTool("anthropic", "web_search", '{"type":"web_search_20250305"}'),
)


def call(*, messages: Sequence[Message] = MESSAGES, **fields: Any) -> Call:
    return call_of(MODEL, messages, **fields)


def with_params(**params: Any) -> Call:
    return call_with(MODEL, **params)


CALLS: dict[str, Call] = {
    EVERYTHING: call(tools=TOOLS),
    "system as text": call(system="You are terse."),
    "system alone": call(messages=(), system="You are terse."),
    "smallest": call(messages=[Message.user("u")], system=()),
    "only loads": call(messages=(), system=()),
    "marks": call(cache=PromptCachePlan(marks=(BlockMark(2), PartMark("ask", (1,))), key="k")),
    "a state turn": call(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="qwen3"),
    "tool choice": with_params(tool_choice=ToolChoice("tool", "search")),
    "thinking": with_params(reasoning=Reasoning("enabled")),
    "no thinking": with_params(reasoning=Reasoning("disabled")),
    "effort": with_params(reasoning=Reasoning("adaptive", "max", None, "summarized")),
    "an output schema": with_params(output=OutputSchema(SCHEMA, "n", "d", True)),
    "JSON without a schema": with_params(output="json"),
    "sampling": with_params(temperature=0.5, top_p=0.9, top_k=5, stop=("END",), seed=1),
    "penalties": with_params(frequency_penalty=0.5, presence_penalty=0.5, n=2, max_tokens=7),
    "metadata": with_params(metadata={"a": "1"}, user="8", service_tier="flex", store=True),
    "a stream": with_params(stream=True),
    "extras": call(
        extras={"ollama": '{"format":"json","keep_alive":"5m","options":{"num_ctx":9}}'}
    ),
}


REPLY = Reply(
    id="",
    model="qwen3",
    message=Message(
        role="assistant",
        parts=(
            Thinking("hm\nhm", provider="ollama"),
            Text("Zürich is 🌧️."),
            ToolCall("call_1", "look_up", '{"city": "Zürich",\n "days": [1, 2]}'),
            ToolCall("call_2", "look_up", "{}"),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=428, output=50),
    extras={
        "ollama": '{"created_at":"2026-01-01T00:00:00Z","total_duration":5,'
        '"logprobs":[{"token":"Z","logprob":-0.5}]}'
    },
)
CUT = Reply(
    id="msg_1",
    model="claude",
    message=Message.assistant(Refusal("I wo")),
    stop_reason="length",
    usage=Usage(uncached=3, read=4, written={"5m": 2}, output=5),
)
ASK: dict[str, Any] = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}]}


def ask(address: str) -> Any:
    with sdk.Client(address) as client:
        return client.chat(**ASK)


def ask_for_stream(address: str) -> list[Any]:
    with sdk.Client(address) as client:
        return list(client.chat(**ASK, stream=True))


def check_end(read: Any, reply: Reply) -> None:
    assert (read.model, read.done) == (reply.model, True)
    assert read.done_reason == ("length" if reply is CUT else "stop")
    assert (read.prompt_eval_count, read.eval_count) == (reply.usage.input, reply.usage.output)
    if reply is REPLY:
        assert (read.created_at, read.total_duration) == ("2026-01-01T00:00:00Z", 5)
        assert read.logprobs[0].token == "Z"


def check_content(content: str, thinking: str, calls: list[Any], reply: Reply) -> None:
    parts = reply.message.parts
    assert content == "".join(p.text for p in parts if isinstance(p, Text | Refusal))
    assert thinking == "".join(p.text for p in parts if isinstance(p, Thinking))
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.name, json.loads(c.arguments)) for c in reply.tool_calls
    ]


def check_reply(read: Any, reply: Reply) -> None:
    message = read.message
    check_content(message.content, message.thinking or "", message.tool_calls or [], reply)
    check_end(read, reply)


def check_stream(read: list[Any], reply: Reply) -> None:
    messages = [part.message for part in read]
    content = "".join(message.content or "" for message in messages)
    thinking = "".join(message.thinking or "" for message in messages)
    calls = [call for message in messages for call in message.tool_calls or ()]
    check_content(content, thinking, calls, reply)
    assert [part.done for part in read] == [False] * (len(read) - 1) + [True]
    check_end(read[-1], reply)


def check_error(caught: Any, error: errors.Upstream, status: int) -> None:
    assert isinstance(caught, sdk.ResponseError)
    assert (caught.error, caught.status_code) == (str(error), status)


CASE = SdkCase(
    name="ollama",
    provider="ollama",
    calls=CALLS,
    problems=problems,
    spoils=[
        lambda body: body.update(temprature=1),
        lambda body: body.update(stream="maybe"),
        lambda body: body["messages"][1].update(content=["a"]),
        lambda body: body["messages"][1].update(label="identity"),
        lambda body: body["messages"][2].update(cache_control={"type": "ephemeral"}),
        lambda body: body["messages"][3]["tool_calls"][0]["function"].update(arguments="{}"),
        lambda body: body["messages"][3]["tool_calls"][0].update(id=7),
        lambda body: body["tools"][0].update(cache="1h"),
        lambda body: body["tools"][0]["function"].update(strict=True),
    ],
    replies={"tools": REPLY, "cut off": CUT},
    ask=ask,
    ask_for_stream=ask_for_stream,
    check_reply=check_reply,
    check_stream=check_stream,
    content_type="application/x-ndjson",
    stream_error=sdk.ResponseError,
    errors=[
        errors.RequestRejected("m"),
        errors.Unauthenticated("m"),
        errors.Forbidden("m"),
        errors.NotFound("m"),
        errors.RateLimited("m", retry_after=3),
        errors.Overloaded("m"),
    ],
    check_error=check_error,
)
