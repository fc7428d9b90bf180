"""Mistral's own SDK as judge of the dialect: what we send fits its types, and it reads what we
write, over real HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import jsonschema_rs
import pytest
from mistralai import client as sdk
from pydantic import BaseModel
from support import feature_calls
from support.byte_server import byte_server
from support.features import FEATURES
from support.outcomes import Sent, Target, send
from support.sdk.mistral import ASK, CASE, REPLY, THOUGHT, check_reply, check_stream, client
from support.tables import each_row

from anaphora import errors, wire
from anaphora.prompt import Call, ToolChoice
from anaphora.values import Image, Message, Reply, Text, Url, Usage

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


def sent_for(call: Call, model: str = MODELS[0]) -> Sent:
    return send(Target("mistral", "mistral", model), call)


#: What we send and the types do not have, with the reason. Each is checked to be there still.
GAPS = {
    "fields with no name here, its own": "sent unchanged: the caller's own affair",
    "part fields (citations), its own": "sent unchanged: the caller's own affair",
    "unknown block, its own": "sent unchanged: the caller's own affair",
    "provider tools, its own": "a tool of OpenAI's Chat Completions, sent unchanged",
    "PDF bytes": "the wire says a file; Mistral takes a document_url",
    "document title": "the wire says a file; Mistral takes a document_url",
    "document context": "the wire says a file; Mistral takes a document_url",
    "audio bytes": "the wire says an object with a format; Mistral takes the data alone",
    "refusal replayed": "the wire says a refusal part; Mistral has none",
}


@each_row("model", MODELS)
@each_row("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_request_fits_the_types(feature: Any, model: str) -> None:
    found = problems(sent_for(feature.make("openai_chat"), model))
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
    messages = [
        Message.user("What is it?", Image(feature_calls.PNG), look),
        reply.message,
        Message.tool("call_0001", "a cat", name="look"),
        Message.tool("call_0002", (Text("a"), Text("dog")), error=True),
        Message.system("In French."),
        Message.user("And now?"),
    ]
    sent = sent_for(feature_calls.base(messages=messages, tools=(feature_calls.LOOK,)))
    assert not problems(sent)
    again = json.loads(sent.body)["messages"][2]
    assert again["content"] == given["choices"][0]["message"]["content"]  # type: ignore[index]


@each_row(
    "spoil",
    [
        lambda body: body.update(seed=1),
        lambda body: body.update(stream_options={}),
        lambda body: body.update(max_tokens="many"),
        lambda body: body.update(tool_choice="sometimes"),
        lambda body: body["messages"][0].update(role="developer"),
        lambda body: body["messages"][0].update(content=[{"type": "text", "text": 1}]),
        lambda body: body["tools"][0]["function"].update(cache="1h"),
    ],
)
def test_the_check_can_fail(spoil: Any) -> None:
    """A field too many, a value or a word that is none, at any depth."""
    sent = sent_for(feature_calls.base(tools=(feature_calls.LOOK,)))
    assert not problems(sent)
    body = json.loads(sent.body)
    spoil(body)
    assert problems(sent._replace(body=json.dumps(body).encode()))


# ── What the SDK reads ───────────────────────────────────────────────────────────────────────────

replies = pytest.mark.parametrize("reply", [REPLY, THOUGHT], ids=["tools", "thoughts"])


@replies
def test_the_async_client_reads_a_single_answer(reply: Reply) -> None:
    async def answer(address: str) -> Any:
        async with client(address) as api:
            return await api.chat.complete_async(**ASK)

    with byte_server(MISTRAL.write_reply(reply), "application/json") as address:
        check_reply(asyncio.run(answer(address)), reply)


@replies
def test_the_async_client_reads_a_stream(reply: Reply) -> None:
    async def answer(address: str) -> list[Any]:
        async with client(address) as api, await api.chat.stream_async(**ASK) as events:
            return [event.data async for event in events]

    with byte_server(CASE.stream(reply), "text/event-stream") as address:
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
    body = MISTRAL.write_reply(reply)
    with byte_server(body, "application/json") as address, client(address) as api:
        read = api.chat.parse(Weather, **ASK)
    assert read.choices[0].message.parsed == Weather(city="Zürich", rain=True)


def test_sdk_request_round_trips() -> None:
    """What the client sends, with Mistral's own words, is read, and rendered again it is the same."""
    import httpx2 as httpx

    bodies: list[bytes] = []

    def answer(request: Any) -> Any:
        bodies.append(request.content)
        content = MISTRAL.write_reply(REPLY)
        return httpx.Response(200, content=content, headers={"content-type": "application/json"})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with sdk.Mistral(api_key="not-a-key", client=http) as api:
        api.chat.complete(
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
    again = json.loads(sent_for(call).body)
    first = json.loads(bodies[0])
    first.pop("stream", None)  # false, which is what leaving it out says
    assert call.params.tool_choice == ToolChoice("required")
    first["tool_choice"] = "required"  # another word for any, which Mistral has as well
    assert again == first


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@each_row(
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
            errors.NotFound,
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
