"""Models that a provider does not have, or has no longer: its status, its code, and the nearest."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
from support.tables import each_row

from anaphora import catalog, emulator
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse
from anaphora.emulator.server import Emulator

HI: list[Any] = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 16, "messages": HI},
    "openai_chat": {"messages": HI},
    "openai_responses": {"input": "Hello"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
}
HEADERS = {
    "authorization": "Bearer k",
    "x-api-key": "k",
    "api-key": "k",
    "x-goog-api-key": "k",
    "anthropic-version": "2023-06-01",
}
RETIRED, DAY = "gpt-4-turbo", datetime.datetime(2026, 10, 23, tzinfo=datetime.UTC)


def ask(
    engine: Engine, path: str, wire: str, model: str, now: datetime.datetime = DAY
) -> EmulatorResponse:
    body = BODIES[wire] if wire == "gemini" else {"model": model, **BODIES[wire]}
    request = EmulatorRequest(
        method="POST",
        path=path.format(model=model),
        headers=HEADERS,
        body=msgspec.json.encode(body),
        now=now.timestamp(),
    )
    return engine.respond(request)


@each_row(
    "wire, path, model, status, code, near",
    [
        (
            "openai_chat",
            "/v1/chat/completions",
            "gpt-5-nanoo",
            404,
            "model_not_found",
            "gpt-5-nano",
        ),
        ("openai_responses", "/v1/responses", "gpt-5-nanoo", 400, "model_not_found", "gpt-5-nano"),
        (
            "anthropic",
            "/v1/messages",
            "claude-sonet-5-5",
            404,
            "not_found_error",
            "claude-sonnet-5-5",
        ),
        (
            "gemini",
            "/v1beta/models/{model}:generateContent",
            "gemini-2.5-flsh",
            404,
            "NOT_FOUND",
            "gemini-2.5-flash",
        ),
        (
            "openai_chat",
            "/deepseek/chat/completions",
            "deepseek-v4-flsh",
            400,
            None,
            "deepseek-v4-flash",
        ),
        (
            "openai_chat",
            "/mistral/v1/chat/completions",
            "mistral-larg-4",
            400,
            "1500",
            "mistral-large-4",
        ),
        (
            "openai_chat",
            "/groq/openai/v1/chat/completions",
            "openai/gpt-os-120b",
            404,
            "model_not_found",
            "openai/gpt-oss-120b",
        ),
        (
            "openai_chat",
            "/openrouter/api/v1/chat/completions",
            "anthropic/claude-opus-5.5.",
            400,
            "400",
            "anthropic/claude-opus-5.5",
        ),
    ],
)
def test_unknown_model_is_refused_as_the_provider_does(
    wire: str, path: str, model: str, status: int, code: str | None, near: str
) -> None:
    response = ask(Engine(), path, wire, model)
    assert response.status == status
    error = msgspec.json.decode(response.body)["error"]
    field = {"anthropic": "type", "gemini": "status"}.get(wire, "code")
    assert error[field] == code
    assert f"Did you mean {near}?" in error["message"]


@each_row(
    "provider, model",
    [
        ("ollama", "my-gpt-oss:20b"),
        ("ollama", "llama3.2"),
        ("groq", "openai/gpt-oss-240b"),
        ("openrouter", "mistralai/mixtral-8x7b-instruct"),
        ("huggingface", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ],
)
def test_hosts_have_models_that_the_catalog_does_not_list(provider: str, model: str) -> None:
    row = catalog.dialects().find(provider)
    assert ask(Engine(), f"/{provider}{row.request_path}", row.wire, model).status == 200


def test_model_is_refused_from_the_day_it_retires() -> None:
    engine, chat = Engine(), ("/v1/chat/completions", "openai_chat")
    assert ask(engine, *chat, RETIRED, DAY - datetime.timedelta(seconds=1)).status == 200
    refused = ask(engine, *chat, RETIRED)
    error = msgspec.json.decode(refused.body)["error"]
    assert (refused.status, error["code"]) == (404, "model_not_found")
    assert "has been retired" in error["message"]
    assert "2026-10-23" in error["message"]
    assert ask(engine, "/v1/responses", "openai_responses", RETIRED).status == 400
    assert ask(engine, "/v1/messages", "anthropic", "claude-opus-4").status == 404
    path = "/v1beta/models/{model}:generateContent"
    gemini = ask(engine, path, "gemini", "gemini-3.1-flash-lite-preview")
    assert gemini.status == 404
    assert b"no longer available" in gemini.body


def test_announced_date_counts_when_the_clock_is_moved(emu: Emulator) -> None:
    """Claude Sonnet 4.5 retires after the catalog was made: a suite that uses it goes on."""
    model, later = "claude-sonnet-4-5", datetime.datetime(2027, 6, 1, tzinfo=datetime.UTC)
    retires = catalog.profile("anthropic", model).retires
    assert retires is not None
    assert catalog.models_date("anthropic") < retires.value < later.date()
    engine = Engine()
    for offset in (0.0, 3600.0):  # a cache entry has expired
        engine.offset = offset
        assert ask(engine, "/v1/messages", "anthropic", model, later).status == 200
    body = {"model": model, **BODIES["anthropic"]}
    httpx.post(f"{emu.url}/_emulator/clock", json={"set": later.timestamp()})
    assert httpx.post(f"{emu.url}/v1/messages", json=body, headers=HEADERS).status_code == 404


def test_any_model_takes_retired_ones() -> None:
    engine = Engine(EmulatorOptions(any_model=True))
    assert ask(engine, "/v1/chat/completions", "openai_chat", RETIRED).status == 200


@pytest.fixture
def emu() -> Iterator[Emulator]:
    with emulator.running() as running:
        yield running


def test_retirement_follows_the_emulators_clock(emu: Emulator) -> None:
    """Over the socket, with the clock as its users set it."""
    retires = catalog.profile("openai", RETIRED).retires
    assert retires is not None
    noon = datetime.datetime.combine(retires.value, datetime.time(12), datetime.UTC)
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        listed = {}
        for days in (-1, 0):
            at = noon + datetime.timedelta(days=days)
            clock = httpx.post(f"{emu.url}/_emulator/clock", json={"set": at.timestamp()})
            assert clock.status_code == 200
            listed[days] = RETIRED in {model.id for model in client.models.list()}
            if days < 0:
                assert client.chat.completions.create(model=RETIRED, messages=HI).choices
                assert client.models.retrieve(RETIRED).id == RETIRED
        assert listed == {-1: True, 0: False}
        with pytest.raises(openai.NotFoundError, match="retired on 2026-10-23"):
            client.chat.completions.create(model=RETIRED, messages=HI)
        with pytest.raises(openai.NotFoundError, match="has been retired"):
            client.models.retrieve(RETIRED)


def test_a_refusal_names_the_model_that_was_asked_for(emu: Emulator) -> None:
    body = {"model": "claude-opus-4-20250514", "max_tokens": 9, "messages": HI}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    response = httpx.post(f"{emu.url}/v1/messages", json=body, headers=headers)
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message.startswith("model: claude-opus-4-20250514 (It retired on 2026-06-15.")


# ── Azure's older paths ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("below", ["", "/azure"])
def test_azure_class_of_the_openai_sdk(emu: Emulator, below: str) -> None:
    with openai.AzureOpenAI(
        azure_endpoint=emu.url + below, api_key="k", api_version="2025-04-01-preview"
    ) as client:
        reply = client.chat.completions.create(model="gpt-4o", messages=HI)
        assert (reply.model, bool(reply.choices[0].message.content)) == ("gpt-4o", True)
        stream = client.chat.completions.create(model="my-deployment", messages=HI, stream=True)
        assert {chunk.model for chunk in stream} == {"my-deployment"}
        response = client.responses.create(model="gpt-5.2", input="Hello")
        assert client.responses.retrieve(response.id).output_text == response.output_text
        assert "gpt-4o" in {model.id for model in client.models.list()}
    paths = [(call["provider"], call["status"]) for call in emu.requests()]
    assert paths == [("azure", 200)] * 5


def test_azure_deployment_decides_over_the_body(emu: Emulator) -> None:
    with openai.AzureOpenAI(
        azure_endpoint=emu.url,
        azure_deployment="gpt-4o",
        api_key="k",
        api_version="2025-04-01-preview",
    ) as client:
        assert client.chat.completions.create(model="other", messages=HI).model == "gpt-4o"
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(
                model="other",
                messages=HI,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                },
            )
        assert raised.value.param == "response_format"
    without_key = httpx.post(
        f"{emu.url}/openai/deployments/gpt-4o/chat/completions", json={"messages": HI}
    )
    assert without_key.status_code == 401
