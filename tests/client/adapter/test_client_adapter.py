"""SPEC E1, E2 and E4 over the client: every wire and Ollama as an adapter, against real
servers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from blake3 import blake3
from support.byte_server import byte_server
from support.emulated_client import AT_ONCE
from support.tables import each_row

from anaphora import emulator, errors
from anaphora.client.adapter import ClientAdapter, LlmMessage, LlmRequest, StreamChunk, TokenUsage
from anaphora.client.client import AsyncClient
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.values import Reply

pytestmark = pytest.mark.usefixtures("more_faults")

T = TypeVar("T")

KEY = "key-canary-51c7"
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5-mini",
    "openai_responses": "gpt-5-mini",
    "gemini": "gemini-2.5-flash",
    "ollama": "llama3.2",
}
SCRIPT = """
replies:
  - match: {text: think}
    reply: {thinking: Hm., text: Two words.}
  - match: {text: short}
    reply: {text: Cut, stop: length}
  - match: {text: refuse}
    reply: {refusal: No.}
  - match: {text: wrong}
    reply: {text: '{"name":"canary-7f3a","age":"old"}'}
  - match: {text: fenced}
    reply: {text: "Here:\\n```json\\n{\\"name\\":\\"Ada\\",\\"age\\":36}\\n```"}
  - match: {text: greet}
    reply: {text: Good morning to you.}
"""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url() -> Any:
    with emulator.running(
        EmulatorOptions(latency=AT_ONCE, script=Script.decode(SCRIPT, "script.yaml"))
    ) as running:
        yield running.url


def request(text: str, wire: str = "anthropic", **changes: Any) -> LlmRequest:
    fields: dict[str, Any] = {
        "model": MODELS[wire],
        "system": "Be kind.",
        "messages": (LlmMessage("user", text),),
        "temperature": 1.0,
        "max_tokens": 500,
        "timeout_ms": 20_000,
    }
    return LlmRequest(**{**fields, **changes})


def over(
    url: str,
    use: Callable[[ClientAdapter], Awaitable[T]],
    wire: str = "anthropic",
    fault: str | None = None,
    name: str = "one",
) -> T:
    """The result of an adapter over a client of one provider; no task is left running."""
    provider = {
        "wire": wire,
        "base_url": f"{url}/ollama" if wire == "ollama" else url,
        "key": {"env": "KEY"},
        "headers": {"x-emulator-fault": fault} if fault else {},
        "retry": {"max_attempts": 1},
    }

    async def main() -> T:
        config = {"providers": {"one": provider}}
        async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
            found = await use(ClientAdapter(client, name, "tested"))
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return found

    return asyncio.run(main())


async def gathered(adapter: ClientAdapter, llm_request: LlmRequest) -> list[StreamChunk]:
    return [chunk async for chunk in adapter.stream(llm_request)]


# ── E1: complete and stream ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wire", MODELS)
def test_e1_every_wire_completes(url: str, wire: str) -> None:
    llm_request = request("greet me", wire)
    response = over(url, lambda adapter: adapter.complete(llm_request), wire)
    assert response.text == "Good morning to you."
    assert response.parsed_json is None
    assert response.model.startswith(MODELS[wire])
    assert response.usage is not None
    assert response.usage.prompt_tokens > 0
    assert response.usage.completion_tokens > 0
    assert len(response.raw_hash) == 64


@pytest.mark.parametrize("wire", MODELS)
def test_e1_every_wire_streams(url: str, wire: str) -> None:
    chunks = over(url, lambda adapter: gathered(adapter, request("greet me", wire)), wire)
    assert "".join(chunk.delta for chunk in chunks) == "Good morning to you."
    assert len(chunks) > 2, "in pieces, as they came"
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize(
    "text, expected, reason",
    [
        ("think first", "Two words.", "stop"),
        ("be short", "Cut", "max_tokens"),
        ("refuse", "No.", "refusal"),
    ],
)
def test_e1_stream_is_text_and_finish_reason(
    url: str, text: str, expected: str, reason: str
) -> None:
    """Thinking is no text."""
    chunks = over(url, lambda adapter: gathered(adapter, request(text)))
    assert "".join(chunk.delta for chunk in chunks) == expected
    assert chunks[-1].finish_reason == reason


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
def test_e1_refusals_are_text(url: str, wire: str) -> None:
    """On wires with a refusal part."""

    async def both(adapter: ClientAdapter) -> list[str]:
        llm_request = request("refuse", wire)
        chunks = await gathered(adapter, llm_request)
        return [
            (await adapter.complete(llm_request)).text,
            "".join(chunk.delta for chunk in chunks),
        ]

    assert over(url, both, wire) == ["No.", "No."]


def test_e1_abandoned_stream_is_closed(url: str) -> None:
    async def first(adapter: ClientAdapter) -> StreamChunk:
        async with aclosing(adapter.stream(request("greet me"))) as chunks:
            return await anext(chunks)

    assert over(url, first, fault="slow-drip; seconds=0.1").delta


@each_row("name", ["", "Claude", "1st", "a b", "é", "a\n"])
def test_e1_id_is_lower_case(name: str) -> None:
    async def main() -> None:
        config = {"providers": {"one": {"wire": "ollama"}}}
        async with AsyncClient.from_config(config, environ={}) as client:
            with pytest.raises(errors.InvalidRequest, match="adapter_id"):
                ClientAdapter(client, "one", name)
            assert ClientAdapter(client, "one", "claude-1.a_b").adapter_id == "claude-1.a_b"

    asyncio.run(main())


# ── E2: requests and responses ─────────────────────────────────────────────────────────────────

ANSWER = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-that-answered",
        "content": [{"type": "text", "text": '{"name":"Ada","age":36}'}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_read_input_tokens": 20,
            "cache_creation_input_tokens": 5,
            "output_tokens": 3,
        },
    },
    indent=1,
).encode()


def test_e2_response_has_model_usage_and_raw_hash() -> None:
    """The raw hash is of the provider's own bytes, white space and all."""
    with byte_server(ANSWER, "application/json") as url:
        response = over(url, lambda adapter: adapter.complete(request("who?", json_schema=PERSON)))
    assert response.raw_hash == blake3(ANSWER).hexdigest()
    assert response.model == "claude-that-answered"
    assert response.usage == TokenUsage(32, 3)
    assert response.text == '{"name":"Ada","age":36}'
    assert response.parsed_json == {"name": "Ada", "age": 36}


def test_e2_unreported_usage_is_none() -> None:
    body = json.loads(ANSWER)
    body["usage"] = {"output_tokens": 3}
    with byte_server(json.dumps(body).encode(), "application/json") as url:
        assert over(url, lambda adapter: adapter.complete(request("who?"))).usage is None


def test_e2_all_fields_of_a_request_are_sent() -> None:
    seen: list[tuple[str, str, bytes]] = []
    llm_request = request(
        "First.",
        messages=(
            LlmMessage("user", "First."),
            LlmMessage("assistant", "Second."),
            LlmMessage("tool", "42"),
        ),
        temperature=0.7000000000001,
        max_tokens=123,
        json_schema=PERSON,
    )
    with byte_server(ANSWER, "application/json", seen=seen) as url:
        over(url, lambda adapter: adapter.complete(llm_request))
    body = json.loads(seen[0][2])
    assert body["model"] == MODELS["anthropic"]
    assert [block["text"] for block in body["system"]] == ["Be kind."]
    assert (body["temperature"], body["max_tokens"]) == (0.7, 123)
    assert body["output_config"]["format"]["schema"] == PERSON
    sent = [(m["role"], [b["text"] for b in m["content"]]) for m in body["messages"]]
    # A tool message without a call id is sent as a user message.
    assert sent == [("user", ["First."]), ("assistant", ["Second."]), ("user", ["42"])]


@pytest.mark.parametrize("wire", MODELS)
def test_e2_reply_with_a_schema_is_parsed_on_every_wire(url: str, wire: str) -> None:
    """The emulator keeps to the schema, as the providers do."""
    llm_request = request("who is it?", wire, json_schema=PERSON)
    response = over(url, lambda adapter: adapter.complete(llm_request), wire)
    assert response.parsed_json == json.loads(response.text)
    assert isinstance(response.parsed_json["age"], int)


def test_e2_fenced_reply_is_parsed(url: str) -> None:
    llm_request = request("fenced", json_schema=PERSON)
    response = over(url, lambda adapter: adapter.complete(llm_request))
    assert response.parsed_json == {"name": "Ada", "age": 36}
    assert response.text.startswith("Here:")


# ── E4: errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text, path, reason",
    [
        ("wrong", "$.age", "expected integer"),
        ("greet", "$", "not JSON"),
        ("short", "$", "cut off at max_tokens"),
    ],
)
def test_e4_mismatching_reply_is_a_parse_error(url: str, text: str, path: str, reason: str) -> None:
    async def both(adapter: ClientAdapter) -> list[errors.Parse]:
        llm_request = request(text, json_schema=PERSON)
        with pytest.raises(errors.Parse) as single:
            await adapter.complete(llm_request)
        with pytest.raises(errors.Parse) as streamed:
            await gathered(adapter, llm_request)
        return [single.value, streamed.value]

    for found in over(url, both):
        assert found.path == path
        assert isinstance(found.partial, Reply), "the answer was paid for"
        assert reason in str(found)
        assert "canary" not in str(found)


@pytest.mark.parametrize("fault", ["timeout", "slow-drip; seconds=5"])
@pytest.mark.parametrize("ms", [0, 150])
def test_e4_timeout_ms_bounds_the_call(url: str, ms: int, fault: str) -> None:
    async def both(adapter: ClientAdapter) -> list[errors.Timeout]:
        llm_request = request("greet me", timeout_ms=ms)
        found = []
        if fault == "timeout":
            with pytest.raises(errors.Timeout) as single:
                await adapter.complete(llm_request)
            found.append(single.value)
        with pytest.raises(errors.Timeout) as streamed:
            await gathered(adapter, llm_request)
        return [*found, streamed.value]

    assert {error.timeout_ms for error in over(url, both, fault=fault)} == {ms}


@pytest.mark.parametrize(
    "fault, kind",
    [
        ("529", errors.Overloaded),
        ("spend-cap", errors.QuotaExhausted),
        ("rate-limit", errors.RateLimited),
        ("cut", errors.Transport),
    ],
)
def test_e4_provider_failures_keep_their_class(
    url: str, fault: str, kind: type[errors.AnaphoraError]
) -> None:
    async def both(adapter: ClientAdapter) -> list[errors.AnaphoraError]:
        with pytest.raises(kind) as single:
            await adapter.complete(request("greet me"))
        with pytest.raises(kind) as streamed:
            await gathered(adapter, request("greet me"))
        return [single.value, streamed.value]

    for found in over(url, both, fault=fault):
        assert KEY not in str(found)


def test_e4_unreachable_host_is_a_transport_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.Transport):
            over(nowhere, lambda adapter: adapter.complete(request("hello")))


@pytest.mark.parametrize(
    "changes, path",
    [
        ({"model": " "}, "model"),
        ({"messages": ()}, "messages"),
        ({"messages": (LlmMessage("system", "x"),)}, "messages[0].role"),  # type: ignore[arg-type]
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"timeout_ms": 1.5}, "timeout_ms"),
        ({"json_schema": [1]}, "json_schema"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema"),
        ({"json_schema": {"default": float("inf")}}, "json_schema.default"),
    ],
)
def test_e4_invalid_field_is_named_and_nothing_is_sent(changes: dict[str, Any], path: str) -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def both(adapter: ClientAdapter) -> list[errors.InvalidRequest]:
        with pytest.raises(errors.InvalidRequest) as single:
            await adapter.complete(request("hello", **changes))
        with pytest.raises(errors.InvalidRequest) as streamed:
            await gathered(adapter, request("hello", **changes))
        return [single.value, streamed.value]

    with byte_server(ANSWER, "application/json", seen=seen) as url:
        found = over(url, both)
    assert [error.path for error in found] == [path, path]
    assert not seen


def test_e4_refused_parameter_is_named_by_the_requests_field(url: str) -> None:
    async def both(adapter: ClientAdapter) -> list[errors.InvalidRequest]:
        llm_request = request("greet me", "openai_chat", temperature=0.5)
        with pytest.raises(errors.InvalidRequest) as single:
            await adapter.complete(llm_request)
        with pytest.raises(errors.InvalidRequest) as streamed:
            await gathered(adapter, llm_request)
        return [single.value, streamed.value]

    found = over(url, both, "openai_chat")
    assert [error.path for error in found] == ["temperature", "temperature"]


def test_e4_unknown_provider_is_an_invalid_request(url: str) -> None:
    async def fails(adapter: ClientAdapter) -> None:
        with pytest.raises(errors.InvalidRequest):
            await adapter.complete(request("hello"))
        with pytest.raises(errors.InvalidRequest):
            await gathered(adapter, request("hello"))

    over(url, fails, name="missing")
