"""Mistral's own SDK as judge of the dialect: what we send fits its types, and it reads what we
write, over real HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel
from support import feature_calls
from support.byte_server import byte_server
from support.features import FEATURES
from support.outcomes import Sent, Target, send

from anaphora import errors, wire
from anaphora.prompt import Call, ToolChoice
from anaphora.values import (
    Image,
    Message,
    Reply,
    Text,
    Thinking,
    ToolCall,
    Url,
    Usage,
)
from anaphora.wire.replies import reply_events

sdk = pytest.importorskip("mistralai.client")

MISTRAL = wire.get("mistral")
MODELS = ("mistral-large-latest", "magistral-medium-latest")


# ── What the SDK's types say of our requests ─────────────────────────────────────────────────────


def closed(schema: Any) -> Any:
    """The schema without the room that the SDK leaves for what will be invented: a field too many
    fails, and so does a word that is not in a list of words."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    choices = made.get("anyOf", [])
    if any("enum" in choice or "const" in choice for choice in choices):
        made["anyOf"] = [choice for choice in choices if choice != {"type": "string"}]
    return made


@functools.cache
def types() -> Any:
    from mistralai.client.models import ChatCompletionRequest

    return jsonschema_rs.validator_for(closed(ChatCompletionRequest.model_json_schema()))


def problems(sent: Sent) -> list[str]:
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in types().iter_errors(json.loads(sent.body))
    ]


def said(call: Call, model: str = MODELS[0]) -> Sent:
    return send(Target("mistral", "mistral", model), call)


#: What we send and the types do not have, with the reason. Each is checked to be there still.
GAPS = {
    "fields with no name here, its own": "sent as it came: the caller's own affair",
    "part fields (citations), its own": "sent as it came: the caller's own affair",
    "unknown block, its own": "sent as it came: the caller's own affair",
    "provider tools, its own": "a tool of OpenAI's Chat Completions, sent as it came",
    "PDF bytes": "the wire says a file; Mistral takes a document_url",
    "text file": "the wire says a file; Mistral takes a document_url",
    "document title": "the wire says a file; Mistral takes a document_url",
    "document context": "the wire says a file; Mistral takes a document_url",
    "audio bytes": "the wire says an object with a format; Mistral takes the data alone",
    "refusal replayed": "the wire says a refusal part; Mistral has none",
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_request_fits_the_types(feature: Any, model: str) -> None:
    found = problems(said(feature.make("openai_chat"), model))
    if feature.name in GAPS:
        assert found, f"this fits now; take it off the list: {feature.name}"
    else:
        assert not found


def test_a_whole_conversation_fits_the_types() -> None:
    """With reasoning that Mistral gave, in its own form, and the answers of two tools."""
    given = {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "magistral-medium-latest",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                        {"type": "text", "text": "Let me look."},
                    ],
                    "tool_calls": [
                        {"id": f"call_000{n}", "function": {"name": "look", "arguments": "{}"}}
                        for n in (1, 2)
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }
    reply = MISTRAL.read_reply(json.dumps(given).encode())
    look = Image(Url("https://example.invalid/a.png"), "low")
    talk = [
        Message.user("What is it?", Image(feature_calls.PNG), look),
        reply.message,
        Message.tool("call_0001", "a cat", name="look"),
        Message.tool("call_0002", (Text("a"), Text("dog")), error=True),
        Message.system("In French."),
        Message.user("And now?"),
    ]
    sent = said(feature_calls.base(messages=talk, tools=(feature_calls.LOOK,)))
    assert not problems(sent)
    again = json.loads(sent.body)["messages"][2]
    assert again["content"] == given["choices"][0]["message"]["content"]  # type: ignore[index]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(seed=1),
        lambda body: body.update(stream_options={}),
        lambda body: body.update(max_tokens="many"),
        lambda body: body.update(tool_choice="sometimes"),
        lambda body: body["messages"][0].update(role="developer"),
        lambda body: body["messages"][0]["content"][0].update(cache_control={}),
        lambda body: body["tools"][0]["function"].update(cache="1h"),
    ],
)
def test_the_check_can_fail(spoil: Any) -> None:
    """A field too many, a value or a word that is none, at any depth."""
    sent = said(feature_calls.base(tools=(feature_calls.LOOK,)))
    assert not problems(sent)
    body = json.loads(sent.body)
    spoil(body)
    assert problems(sent._replace(body=json.dumps(body).encode()))


# ── What the SDK reads ───────────────────────────────────────────────────────────────────────────

REPLY = Reply(
    id="cmpl-7",
    model="mistral-large-latest",
    message=Message(
        id="cmpl-7",
        role="assistant",
        parts=(
            Text("Zürich is 🌧️."),
            ToolCall("call_0001", "look", '{"city": "Zürich", "days": [1, 2]}'),
            ToolCall("call_0002", "look", "{}"),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=3, read=400, output=50),
)
#: As Mistral's reasoning models answer: the thoughts are chunks of the content.
IN_CONTENT = {"openai_chat": '{"field":"content"}'}
THOUGHT = Reply(
    id="cmpl-8",
    model="magistral-medium-latest",
    message=Message(
        id="cmpl-8",
        role="assistant",
        parts=(Thinking("hm", provider="openai_chat", extras=IN_CONTENT), Text("42")),
    ),
    stop_reason="end",
    usage=Usage(uncached=3, output=5),
)


@contextmanager
def asked(body: bytes, kind: str = "application/json", **more: Any) -> Iterator[Any]:
    """The SDK's client, talking to a server that gives this answer."""
    with (
        byte_server(body, kind, **more) as address,
        sdk.Mistral(api_key="not-a-key", server_url=address) as client,
    ):
        yield client


ASK: dict[str, Any] = {
    "model": "mistral-large-latest",
    "messages": [{"role": "user", "content": "hi"}],
}


def streamed(reply: Reply) -> bytes:
    writer = MISTRAL.writer()
    return b"".join(writer.write(event) for event in reply_events(reply))


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(chunk.text for chunk in content or () if chunk.type == "text")


def thoughts_of(content: Any) -> str:
    if isinstance(content, str):
        return ""
    chunks = [chunk for chunk in content or () if chunk.type == "thinking"]
    return "".join(inner.text for chunk in chunks for inner in chunk.thinking)


def check_answer(told: Any, reply: Reply) -> None:
    assert (told.id, told.model) == (reply.id, reply.model)
    choice = told.choices[0]
    assert choice.finish_reason == {"tool_calls": "tool_calls", "end": "stop"}[reply.stop_reason]
    assert text_of(choice.message.content) == reply.text
    calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    assert calls == [(call.id, call.name, call.arguments) for call in reply.tool_calls]
    check_usage(told.usage, reply)
    if reply is THOUGHT:
        assert thoughts_of(choice.message.content) == "hm"


def check_usage(told: Any, reply: Reply) -> None:
    assert told.prompt_tokens == reply.usage.input
    assert told.completion_tokens == reply.usage.output
    if reply.usage.read is not None:
        details = told.additional_properties["prompt_tokens_details"]
        assert details["cached_tokens"] == reply.usage.read


def check_stream(chunks: list[Any], reply: Reply) -> None:
    assert {chunk.id for chunk in chunks} == {reply.id}
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(text_of(delta.content) for delta in deltas) == reply.text
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            known = calls.setdefault(call.index, ["", "", ""])
            if call.id != "null":  # what the SDK says where nothing is
                known[0] = call.id
            known[1] += call.function.name
            known[2] += call.function.arguments
    said = [[call.id, call.name, call.arguments] for call in reply.tool_calls]
    assert list(calls.values()) == said
    counted = [chunk.usage for chunk in chunks if chunk.usage is not None]
    check_usage(counted[-1], reply)
    if reply is THOUGHT:
        assert "".join(thoughts_of(delta.content) for delta in deltas) == "hm"


replies = pytest.mark.parametrize("reply", [REPLY, THOUGHT], ids=["tools", "thoughts"])


@replies
def test_the_sdk_reads_a_single_answer(reply: Reply) -> None:
    with asked(MISTRAL.write_reply(reply)) as client:
        check_answer(client.chat.complete(**ASK), reply)


@replies
def test_the_async_client_reads_a_single_answer(reply: Reply) -> None:
    async def answer(address: str) -> Any:
        async with sdk.Mistral(api_key="not-a-key", server_url=address) as client:
            return await client.chat.complete_async(**ASK)

    with byte_server(MISTRAL.write_reply(reply), "application/json") as address:
        check_answer(asyncio.run(answer(address)), reply)


@replies
def test_the_sdk_reads_a_stream(reply: Reply) -> None:
    with (
        asked(streamed(reply), "text/event-stream") as client,
        client.chat.stream(**ASK) as events,
    ):
        chunks = [event.data for event in events]
    check_stream(chunks, reply)


@replies
def test_the_async_client_reads_a_stream(reply: Reply) -> None:
    async def answer(address: str) -> list[Any]:
        async with (
            sdk.Mistral(api_key="not-a-key", server_url=address) as client,
            await client.chat.stream_async(**ASK) as events,
        ):
            return [event.data async for event in events]

    with byte_server(streamed(reply), "text/event-stream") as address:
        check_stream(asyncio.run(answer(address)), reply)


def test_the_sdk_reads_structured_output() -> None:
    class Weather(BaseModel):
        city: str
        rain: bool

    text = Text('{"city":"Zürich","rain":true}')
    message = Message(id="r", role="assistant", parts=(text,))
    reply = Reply(
        id="r", model="m", message=message, stop_reason="end", usage=Usage(uncached=1, output=2)
    )
    with asked(MISTRAL.write_reply(reply)) as client:
        told = client.chat.parse(Weather, **ASK)
    assert told.choices[0].message.parsed == Weather(city="Zürich", rain=True)


def test_sdk_request_round_trips() -> None:
    """What the client sends, with Mistral's own words, is heard; and said again it is the same."""
    import httpx2 as httpx

    bodies: list[bytes] = []

    def answer(request: Any) -> Any:
        bodies.append(request.content)
        content = MISTRAL.write_reply(REPLY)
        return httpx.Response(200, content=content, headers={"content-type": "application/json"})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with sdk.Mistral(api_key="not-a-key", client=http) as client:
        client.chat.complete(
            **ASK,
            random_seed=7,
            top_k=5,
            tools=[tool],
            tool_choice="any",
            prompt_cache_key="k",
            safe_prompt=True,
        )
    call = MISTRAL.parse(bodies[0])
    assert (call.params.seed, call.params.top_k, call.ir.cache.key) == (7, 5, "k")
    again = json.loads(said(call).body)
    first = json.loads(bodies[0])
    first.pop("stream", None)  # false, which is what leaving it out says
    assert call.params.tool_choice == ToolChoice("required")
    first["tool_choice"] = "required"  # another word for any, and Mistral's, too
    first["messages"][0]["content"] = [{"type": "text", "text": "hi"}]
    assert again == first


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestRejected("no such thing", param="messages"),
        errors.Unauthenticated("no such key"),
        errors.Forbidden("not yours"),
        errors.NotFound("no such model"),
        errors.RateLimited("slow down", retry_after=3),
        errors.QuotaExhausted("spent"),
        errors.Overloaded("busy"),
        errors.RequestRejected("one field too many", status=422),
    ],
    ids=lambda error: f"{type(error).__name__} {error.status or ''}",
)
def test_the_sdk_reads_an_error(error: errors.Upstream) -> None:
    status, headers, body = MISTRAL.write_error(error)
    content_type = headers.pop("content-type")
    with (
        asked(body, content_type, status=status, headers=headers) as client,
        pytest.raises(sdk.errors.MistralError) as caught,
    ):
        client.chat.complete(**ASK, retries=None)
    told = caught.value
    assert told.status_code == status
    # What the SDK was told is what we would have been told.
    again = MISTRAL.read_error(told.status_code, dict(told.headers), told.body.encode())
    assert type(again) is type(error)
    assert (str(again), again.param) == (str(error), error.param)
    assert again.retry_after == error.retry_after


@pytest.mark.parametrize(
    "status, body, kind, message, param",
    [
        (
            422,
            '{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"not permitted"}]}',
            errors.RequestRejected,
            "seed: not permitted",
            "seed",
        ),
        (401, '{"detail":"Unauthorized"}', errors.Unauthenticated, "Unauthorized", None),
        (
            400,
            '{"object":"error","message":"Invalid model: x","type":"invalid_model","code":"1500"}',
            errors.RequestRejected,
            "Invalid model: x",
            None,
        ),
        (429, '{"message":"Requests rate limit exceeded"}', errors.RateLimited, "Requests", None),
        (422, '{"detail":[]}', errors.RequestRejected, "HTTP 422", None),
    ],
)
def test_errors_in_other_forms_than_openais(
    status: int, body: str, kind: type[errors.Upstream], message: str, param: str | None
) -> None:
    """The SDK's types have the first: problems by field. No error of Mistral's is among the
    recordings, so the other bodies are made up: forms that the reader should bear with."""
    error = MISTRAL.read_error(status, {}, body.encode())
    assert type(error) is kind
    assert str(error).startswith(message)
    assert error.param == param
