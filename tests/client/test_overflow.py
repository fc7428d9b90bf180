"""A prompt that exceeds the context window is `ContextOverflow` from every provider."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.emulated_client import AT_ONCE, KEY, RecordingTransport, settings
from support.raw_server import answering, raw_server, reply
from support.tables import each_row

from anaphora import AsyncClient, catalog, emulator, errors, wire
from anaphora.catalog import Dialect
from anaphora.catalog.load import SHIPPED, decode_overflows, error_kind
from anaphora.client.session import Session
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.errors import Upstream

ROWS = {row.name: row for row in catalog.dialects().rows}
#: The model with the smallest window of each dialect whose windows are known and not huge.
SMALLEST: dict[str, tuple[str, int]] = {}
for _row in ROWS.values():
    windows = [
        (max(model.context_tokens.published), model.id)
        for model in catalog.models(_row.provider)
        if model.context_tokens is not None and model.context_tokens.verified
    ]
    if windows and min(windows)[0] <= 300_000 and not _row.surface:
        SMALLEST[_row.name] = (min(windows)[1], min(windows)[0])

both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(latency=AT_ONCE, any_model=True)) as running:
        yield running


def provider(emu: Emulator, row: Dialect, model: str) -> dict[str, object]:
    path = row.base_url.partition("//")[2].partition("/")[2]
    path = path.replace("{project}", "p").replace("{location}", "l")
    url = f"{emu.url}/{row.known_as or row.provider}" + (f"/{path}" if path else "")
    account = {
        name: "a" for name in re.findall(r"\{(\w+)\}", row.path) if name in ("project", "workspace")
    }
    return {
        "dialect": row.name,
        "base_url": url,
        "model": model,
        "key": {"env": "KEY"},
        **({"account": account} if account else {}),
    }


async def overflows_with(chat: Session, text: str, *, stream: bool) -> errors.ContextOverflow:
    turn = chat.send(text)
    try:
        if stream:
            async for _ in turn:
                pass
        else:
            await turn
    except errors.ContextOverflow as error:
        return error
    pytest.fail("the prompt was answered")


def overflow(
    emu: Emulator, name: str, model: str, text: str, *, stream: bool, fault: str = ""
) -> errors.ContextOverflow:
    async def main() -> errors.ContextOverflow:
        transport = RecordingTransport()
        transport.faults = [fault] if fault else []
        config = {"providers": {"one": provider(emu, ROWS[name], model)}}
        try:
            async with AsyncClient.from_config(
                config, environ={"KEY": KEY}, transport=transport
            ) as client:
                return await overflows_with(client.session("one"), text, stream=stream)
        finally:
            await transport.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "stream, fault",
    [
        (False, "context-overflow"),
        (True, "context-overflow; after=1"),
        pytest.param(True, "context-overflow", marks=pytest.mark.soak),
        pytest.param(False, "context-overflow; after=1", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("name", ROWS)
def test_every_dialect_reports_an_overflow(
    emu: Emulator, name: str, stream: bool, fault: str
) -> None:
    """As an error status, and as an error event in a stream that has begun."""
    error = overflow(emu, name, "a-model", "Hello", stream=stream, fault=fault)
    # Of a stream that has begun, only Google's events name a status.
    named = not (stream and ";" in fault) or "gemini" in name
    assert error.status == (400 if named else None)
    assert not error.retryable


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SMALLEST)
def test_long_prompt_overflows(emu: Emulator, name: str, stream: bool) -> None:
    """The emulator itself compares the prompt with the model's window."""
    model, window = SMALLEST[name]
    error = overflow(emu, name, model, "word " * (window + 1000), stream=stream)
    provider, _, message = str(error).partition(": ")
    assert provider == "one"
    assert error_kind(message) == "context_overflow"
    # OpenAI tells it inside the stream.
    assert error.status == (None if stream and name == "openai/openai_responses" else 400)


def test_responses_stream_that_fails_in_its_last_event() -> None:
    """OpenAI takes the request, and `response.failed` is the first word of the overflow."""
    message = "Your input exceeds the context window of this model."
    failed = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5.6",
        "status": "failed",
        "output": [],
        "error": {"code": "context_length_exceeded", "message": message},
    }
    event = {"type": "response.failed", "sequence_number": 0, "response": failed}
    body = b"data: " + msgspec.json.encode(event) + b"\n\n"

    async def main() -> None:
        answer = reply(body, "200 OK", "Content-Type: text/event-stream")
        async with raw_server(answering(answer)) as server:
            config = {"providers": settings(server.url, ["openai_responses"])}
            async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
                chat = client.session("openai_responses")
                error = await overflows_with(chat, "Hello", stream=True)
                assert str(error) == f"openai_responses: {message}"

    asyncio.run(main())


# ── The table ────────────────────────────────────────────────────────────────────────────────────


def test_every_row_recognises_its_own_message() -> None:
    for row in SHIPPED.overflows:
        assert error_kind(row.write(208_310, 200_000, output=4096)) == row.kind, row.message
        assert row.source


OTHERS = [
    "",
    "max_tokens: 128001 > 128000, which is the maximum allowed number of output tokens for m",
    "messages.0: prompt is too long: 5 tokens > 4 maximum, wrote the user",
    "prompt is too long: a lot of tokens > 200000 maximum",
    "prompt is too long",
    "the context window of this model is 200000 tokens",
    "Invalid value: this model's maximum context length is 8192 tokens.",
    "Unsupported value: 'input token count' exceeds the maximum number of tokens allowed (3).",
    "Range of input length should be [1, 2, 3]",
    "context_length_exceeded",
    "Too many tokens, please wait before trying again.",
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
    "Request exceeds the maximum size",
    "prompt is too long: " + "9" * 1_000_000,
    "This model's maximum context length is " * 100_000,
]


@each_row("message", OTHERS, ids=range(len(OTHERS)))
def test_other_message_about_tokens_is_no_overflow(message: str) -> None:
    assert error_kind(message) is None
    for name in wire.WIRES:
        body = b'{"error":{"type":"invalid_request_error","message":%b}}'
        error = wire.get(name).read_error(400, {}, body % msgspec.json.encode(message))
        assert type(error) is errors.RequestRejected


def test_rate_limit_and_too_large_body_keep_their_class() -> None:
    """413 `request_too_large` is about bytes; 429 about tokens in a minute."""
    codec = wire.get("anthropic")
    body = b'{"error":{"type":"%b","message":"%b"}}'
    large = codec.read_error(413, {}, body % (b"request_too_large", b"Request too large"))
    assert type(large) is errors.TooLarge
    overflowing = b"prompt is too long: 3 tokens > 2 maximum"
    limited = codec.read_error(429, {}, body % (b"rate_limit_error", overflowing))
    assert type(limited) is errors.RateLimited


def test_row_with_an_unknown_number_is_rejected() -> None:
    text = '[[overflow]]\nprovider="x"\nmessage="{many} tokens"\nsource="s"\ndate=2026-11-15\n'
    with pytest.raises(errors.InvalidCatalog, match=r"overflow\[0\] \(x\)"):
        decode_overflows(text)


#: Of hosts whose code or status says another thing: provider, status, body, class.
BY_MESSAGE = [
    (
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "Incorrect API key provided: na***ys. You can obtain an API key from https://console.x.ai.",
        },
        errors.Unauthenticated,
    ),
    (
        "xai",
        429,
        {
            "code": "Some resource has been exhausted",
            "error": "Your team 16f2-4a40 has either used all available credits or reached its monthly spending limit. To continue making API requests, please purchase more credits or raise your spending limit.",
        },
        errors.QuotaExhausted,
    ),
    (
        "xai",
        403,
        {
            "code": "permission-denied",
            "error": "Your newly created team doesn't have any credits or licenses yet. You can purchase those on https://console.x.ai/team/4.",
        },
        errors.QuotaExhausted,
    ),
    (
        "xai",
        400,
        {"code": "c", "error": "The model expects a single `text` element per message."},
        errors.RequestRejected,
    ),
    (
        "xai",
        404,
        {
            "code": "Some requested entity was not found",
            "error": "The model grok-beta does not exist or your team b does not have access to it.",
        },
        errors.NotFound,
    ),
    (
        "ollama",
        429,
        {
            "error": "you (ada) have reached your session usage limit, upgrade for higher limits: https://ollama.com/upgrade"
        },
        errors.QuotaExhausted,
    ),
    ("ollama", 429, {"error": "too many concurrent requests"}, errors.RateLimited),
    ("ollama", 401, {"error": "unauthorized"}, errors.Unauthenticated),
    (
        "ollama",
        403,
        {
            "error": "this model requires a subscription, upgrade for access: https://ollama.com/upgrade"
        },
        errors.Forbidden,
    ),
    (
        "openai_chat",
        400,
        {
            "error": {
                "message": "Invalid model 'perplexity/sonar'. Permitted models can be found in the documentation at https://docs.perplexity.ai/docs/getting-started/models.",
                "type": "invalid_model",
                "code": 400,
            }
        },
        errors.NotFound,
    ),
    (
        "openai_chat",
        401,
        {
            "error": {
                "message": "You exceeded your current quota",
                "type": "insufficient_quota",
                "code": 401,
            }
        },
        errors.QuotaExhausted,
    ),
    (
        "deepseek",
        400,
        {
            "error": {
                "message": "Model Not Exist",
                "type": "invalid_request_error",
                "code": "invalid_request_error",
            }
        },
        errors.NotFound,
    ),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Invalid model: ministral-9",
            "type": "invalid_model",
            "code": "1500",
        },
        errors.NotFound,
    ),
    (
        "openrouter",
        400,
        {"error": {"message": "no-such is not a valid model ID", "code": 400}},
        errors.NotFound,
    ),
]


@each_row("provider, status, body, expected", BY_MESSAGE)
def test_error_that_only_the_message_tells_has_its_class(
    provider: str, status: int, body: dict[str, Any], expected: type[Upstream]
) -> None:
    row = wire.get(provider)
    data = json.dumps(body).encode()
    error = row.read_error(status, {}, data)
    assert type(error) is expected
    assert error.retryable == (expected is errors.RateLimited)
    if provider != "ollama":
        responses = wire.get("openai_responses").read_error(status, {}, data)
        assert type(responses) is expected


def test_account_without_credits_is_not_asked_again() -> None:
    body = json.dumps(BY_MESSAGE[1][2]).encode()

    async def main() -> None:
        answer = reply(body, "429 Too Many Requests", "Content-Type: application/json")
        async with raw_server(answering(answer)) as server:
            one = {"dialect": "xai/openai_chat", "model": "grok-4", "base_url": server.url}
            config = {"providers": {"one": {**one, "key": {"env": "KEY"}}}}
            async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
                with pytest.raises(errors.QuotaExhausted, match="monthly spending limit"):
                    await client.session("one").send("Hello")
            assert len(server.requests) == 1

    asyncio.run(main())
