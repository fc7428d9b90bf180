"""The official SDK and we agree: what we send fits its types, and it reads what we write."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from support.byte_server import byte_server

from anaphora import catalog, errors
from anaphora.analysis.roundtrip import RecordedExchange, check
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
from anaphora.wire import ollama
from anaphora.wire.replies import reply_events

sdk = pytest.importorskip("ollama")

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
    types = __import__("ollama._types", fromlist=[kind])
    return jsonschema_rs.validator_for(closed(getattr(types, kind).model_json_schema()))


def problems(kind: str, value: Any) -> list[str]:
    return [
        f"{kind}.{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in validator(kind).iter_errors(value)
    ]


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


def fits(body: dict[str, Any]) -> None:
    """The request fits `ChatRequest`; its messages, which that leaves open, fit `Message`."""
    found = problems("ChatRequest", {**body, "messages": []})
    for message in body["messages"]:
        plain = without_newer(message)
        # The SDK's picture is a wrapper that it writes as its base64 text.
        pictures = plain.pop("images", [])
        assert all(isinstance(picture, str) for picture in pictures)
        found += problems("Message", plain)
    assert not found
    sdk._types.ChatRequest(**body)


def body_of(call: Call) -> dict[str, Any]:
    rendered = ollama.render(call, catalog.profile("ollama", call.model))
    planned = plan_once(rendered, catalog.rules("ollama", call.model), reuse_expected=True)
    body: dict[str, Any] = json.loads(ollama.assemble(rendered, planned).body.join())
    return body


PNG = Bytes(b"\x89PNG\r\n\x1a\n", "image/png")
SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'

TALK = (
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
SYSTEM = (
    PromptBlock.cached_long("identity", "You are terse.", "base"),
    PromptBlock.plain("empty", ""),
    PromptBlock.cached_short("knowledge", "Facts."),
)
ALL_SEGMENTS = tuple(
    Segment.of(role, Message.user(role.value), Message.assistant("fine")) for role in SegmentRole
)


def chat(*, talk: Any = TALK, tail: Any = (), **fields: Any) -> Call:
    cache, system = fields.pop("cache", None), fields.pop("system", SYSTEM)
    ir = PromptIR.chat(Conversation(talk), system=system, tail=tail, cache=cache)
    return Call(ir=ir, model="qwen3", **fields)


def with_params(**params: Any) -> Call:
    return chat(talk=[Message.user("u")], params=Params(**params))


CALLS: dict[str, Call] = {
    "every part, every tool": chat(tools=TOOLS),
    "system as text": chat(system="You are terse."),
    "system alone": chat(talk=(), system="You are terse."),
    "smallest": chat(talk=[Message.user("u")], system=()),
    "only loads": chat(talk=(), system=()),
    "marks": chat(cache=PromptCachePlan(marks=(BlockMark(2), PartMark("ask", (1,))), key="k")),
    "a state turn": chat(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model="qwen3"),
    "tool choice": with_params(tool_choice=ToolChoice("tool", "search")),
    "thinking": with_params(reasoning=Reasoning("enabled")),
    "no thinking": with_params(reasoning=Reasoning("disabled")),
    "effort": with_params(reasoning=Reasoning("adaptive", "max", None, "summarized")),
    "an output schema": with_params(output=OutputSchema(SCHEMA, "n", "d", True)),
    "sampling": with_params(temperature=0.5, top_p=0.9, top_k=5, stop=("END",), seed=1),
    "penalties": with_params(frequency_penalty=0.5, presence_penalty=0.5, n=2, max_tokens=7),
    "metadata": with_params(metadata={"a": "1"}, user="8", service_tier="flex", store=True),
    "a stream": with_params(stream=True),
    "extras": chat(
        extras={"ollama": '{"format":"json","keep_alive":"5m","options":{"num_ctx":9}}'}
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_body_fits_the_types(name: str) -> None:
    fits(body_of(CALLS[name]))


@pytest.mark.parametrize(
    "spoil",
    [
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
)
def test_the_check_can_fail(spoil: Callable[[Any], None]) -> None:
    """A field too many or a value out of range, at any depth."""
    body = body_of(CALLS["every part, every tool"])
    fits(body)
    spoil(body)
    with pytest.raises(AssertionError):
        fits(body)


# ── What the SDK sends ───────────────────────────────────────────────────────────────────────────


def add(a: int, b: int) -> int:
    """Adds.

    Args:
      a: one number
      b: another
    """
    return a + b


SENT: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    {"model": "m", "messages": [{"role": "user", "content": "hi", "images": [PNG.data]}]},
    {
        "model": "m",
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "3", "tool_name": "add"},
        ],
        "tools": [add],
        "think": "low",
        "format": {"type": "object"},
        "options": {"temperature": 0, "num_ctx": 10},
        "keep_alive": 3.5,
        "stream": True,
    },
]


@pytest.mark.parametrize("asked", SENT)
def test_requests_of_the_sdk_round_trip(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    class Stop(Exception):
        pass

    def catch(*_: Any, **fields: Any) -> Any:
        sent.append(fields["json"])
        raise Stop

    with sdk.Client() as client:
        monkeypatch.setattr(client, "_request", catch)
        with pytest.raises(Stop):
            client.chat(**asked)
    request = json.dumps(sent[0])
    outcome = check(RecordedExchange(id="", wire="ollama", request=request, response="{}"))
    assert (outcome.unparsed, outcome.changed, outcome.notices) == ("", "", ())


# ── What the SDK reads ───────────────────────────────────────────────────────────────────────────

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


def check_end(told: Any, reply: Reply) -> None:
    assert (told.model, told.done) == (reply.model, True)
    assert told.done_reason == ("length" if reply is CUT else "stop")
    assert (told.prompt_eval_count, told.eval_count) == (reply.usage.input, reply.usage.output)
    if reply is REPLY:
        assert (told.created_at, told.total_duration) == ("2026-01-01T00:00:00Z", 5)
        assert told.logprobs[0].token == "Z"


def check_content(content: str, thinking: str, calls: list[Any], reply: Reply) -> None:
    parts = reply.message.parts
    assert content == "".join(p.text for p in parts if isinstance(p, Text | Refusal))
    assert thinking == "".join(p.text for p in parts if isinstance(p, Thinking))
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.name, json.loads(c.arguments)) for c in reply.tool_calls
    ]


def written(reply: Reply) -> bytes:
    writer = ollama.writer()
    return b"".join(writer.write(event) for event in reply_events(reply))


@pytest.mark.parametrize("reply", [REPLY, CUT])
def test_the_sdk_reads_a_single_answer(reply: Reply) -> None:
    body = ollama.write_reply(reply)
    with byte_server(body, "application/json") as address, sdk.Client(address) as client:
        told = client.chat(**ASK)
    message = told.message
    check_content(message.content, message.thinking or "", message.tool_calls or [], reply)
    check_end(told, reply)


@pytest.mark.parametrize("reply", [REPLY, CUT])
def test_the_sdk_reads_a_stream(reply: Reply) -> None:
    with (
        byte_server(written(reply), "application/x-ndjson") as address,
        sdk.Client(address) as client,
    ):
        told = list(client.chat(**ASK, stream=True))
    check_stream(told, reply)


@pytest.mark.parametrize("reply", [REPLY, CUT])
def test_the_asynchronous_sdk_reads_a_stream(reply: Reply) -> None:
    async def ask(address: str) -> list[Any]:
        async with sdk.AsyncClient(address) as client:
            return [part async for part in await client.chat(**ASK, stream=True)]

    with byte_server(written(reply), "application/x-ndjson") as address:
        check_stream(asyncio.run(ask(address)), reply)


def check_stream(told: list[Any], reply: Reply) -> None:
    messages = [part.message for part in told]
    content = "".join(message.content or "" for message in messages)
    thinking = "".join(message.thinking or "" for message in messages)
    calls = [call for message in messages for call in message.tool_calls or ()]
    check_content(content, thinking, calls, reply)
    assert [part.done for part in told] == [False] * (len(told) - 1) + [True]
    check_end(told[-1], reply)


def test_the_sdk_raises_on_a_failed_stream() -> None:
    writer = ollama.writer()
    body = b"".join(writer.write(event) for event in reply_events(REPLY)[:4])
    body += writer.write(ReplyFail("Overloaded", "try later"))
    with (
        byte_server(body, "application/x-ndjson") as address,
        sdk.Client(address) as client,
        pytest.raises(sdk.ResponseError, match="try later"),
    ):
        list(client.chat(**ASK, stream=True))


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestRejected("m"),
        errors.Unauthenticated("m"),
        errors.Forbidden("m"),
        errors.NotFound("m"),
        errors.RateLimited("m", retry_after=3),
        errors.Overloaded("m"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_reads_an_error(error: errors.Upstream, stream: bool) -> None:
    status, headers, body = ollama.write_error(error)
    content_type = headers.pop("content-type")
    with (
        byte_server(body, content_type, status, headers) as address,
        sdk.Client(address) as client,
        pytest.raises(sdk.ResponseError) as caught,
    ):
        list(client.chat(**ASK, stream=stream))
    assert (caught.value.error, caught.value.status_code) == ("m", status)
