"""Paths and models that a provider does not have, and options of the replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from support.tables import each_row

from anaphora import catalog, emulator
from anaphora.emulator import EmulatorOptions, Script
from anaphora.emulator.server import Emulator

HELLO: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {"name": "look_up", "input_schema": {"type": "object", "properties": {}}}
SCHEMA: Any = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running() as running:
        yield running


@pytest.fixture
def claude(emu: Emulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(emu: Emulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        yield client


# ── Models ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["claude-nope", "claude-sonet-5-5", "gpt-4o", "x"])
def test_unknown_claude_is_not_found(claude: anthropic.Anthropic, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match=f"model: {model}.*--any-model") as raised:
        claude.messages.create(model=model, max_tokens=9, messages=HELLO)
    body: Any = raised.value.body
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model=model, messages=HELLO)


@pytest.mark.parametrize("model", ["gpt-nope", "claude-opus-5-5", "llama-3"])
def test_unknown_gpt_is_not_found(gpt: openai.OpenAI, model: str) -> None:
    """Chat has a 404 for it, Responses a 400."""
    with pytest.raises(openai.NotFoundError) as raised:
        gpt.chat.completions.create(model=model, messages=HELLO)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.responses.create(model=model, input="Hello")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_only_own_models_can_be_deleted(gpt: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist") as raised:
        gpt.models.delete("ft:gpt-4o-mini:acme:suffix:abc123")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.PermissionDeniedError, match="not a fine-tuned model"):
        gpt.models.delete("gpt-4o")


@pytest.mark.parametrize(
    ("headers", "field"),
    [({"anthropic-version": "2023-06-01"}, "request_id"), ({"x-goog-api-key": "k"}, "status")],
)
def test_missing_method_of_models_is_answered_in_the_format_of_the_caller(
    emu: Emulator, headers: dict[str, str], field: str
) -> None:
    """Neither Anthropic nor Google deletes models."""
    response = httpx.delete(f"{emu.url}/v1/models/gpt-4o", headers=headers)
    assert response.status_code == 404
    assert "Not found: DELETE /v1/models/gpt-4o" in response.text
    body = response.json()
    assert field in {**body, **body["error"]}


def test_unknown_gemini_is_not_found(emu: Emulator) -> None:
    with genai.Client(api_key="k", http_options={"base_url": emu.url}) as client:
        with pytest.raises(genai_errors.ClientError) as raised:
            client.models.generate_content(model="no-such-model", contents="Hello")
        assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
        assert client.models.generate_content(model="gemma-3-27b-it", contents="Hello").text


@each_row(
    ("provider", "model", "served"),
    [
        ("anthropic", "claude-opus-9", True),
        ("anthropic", "claude-3-5-haiku-latest", True),
        ("anthropic", "claude-latest", False),
        ("openai", "gpt-9-sol", True),
        ("openai", "ft:gpt-4o:org::id", True),
        ("openai", "gpt-oss-120b", False),
        ("openai", "", False),
        ("groq", "anything", True),
        ("ollama", "anything", True),
        ("openrouter", "any/thing", True),
        ("google", "models/gemini-9-pro", True),
        ("google", "gemini-4-pro", True),
        ("google", "gemini-2.5-flash-image", True),
        ("google", "gemini-2.5-flsh", False),
        ("openai", "gpt-5-mini-high", True),
        ("openai", "gpt-5-nanoo", False),
        ("anthropic", "claude-opus-5-5-fast", True),
        ("anthropic", "claude-5-5-opus", False),
        ("deepseek", "deepseek-v4-flash-exp", True),
    ],
)
def test_models_that_a_provider_may_have(provider: str, model: str, served: bool) -> None:
    assert catalog.may_serve(provider, model) is served


def test_any_model_is_accepted_on_request() -> None:
    with (
        emulator.running(EmulatorOptions(any_model=True)) as emu,
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
    ):
        assert client.messages.create(model="mine", max_tokens=9, messages=HELLO).content


# ── Paths ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "headers", "error"),
    [
        ("/v1/nope", {"anthropic-version": "2023-06-01"}, ["type", "error", "request_id"]),
        ("/anthropic/v1/nope", {}, ["type", "error", "request_id"]),
        ("/v1/messages/nope", {}, ["type", "error", "request_id"]),
        ("/v1/nope", {}, ["error"]),
        ("/groq/nope", {}, ["error"]),
        ("/v1beta/nope", {}, ["error"]),
    ],
)
def test_unknown_path_is_answered_in_the_wire_of_its_caller(
    emu: Emulator, path: str, headers: dict[str, str], error: list[str]
) -> None:
    response = httpx.post(emu.url + path, headers=headers, json={})
    assert response.status_code == 404
    body = response.json()
    assert list(body) == error
    if path.startswith("/v1beta"):
        assert body["error"]["status"] == "NOT_FOUND"
    elif "type" not in body:
        assert body["error"]["type"] == "invalid_request_error"


def test_messages_without_a_version_in_the_path(emu: Emulator) -> None:
    body = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": HELLO}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert httpx.post(f"{emu.url}/messages", headers=headers, json=body).status_code == 200
    body.pop("max_tokens")
    counted = httpx.post(f"{emu.url}/messages/count_tokens", headers=headers, json=body)
    assert counted.json()["input_tokens"] > 0


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def test_tools_are_called_only_where_forced() -> None:
    with (
        emulator.running(EmulatorOptions(tool_calls=False)) as emu,
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
    ):
        ask: Any = {"model": "claude-opus-4-5", "max_tokens": 99, "tools": [TOOL]}
        free = client.messages.create(**ask, messages=HELLO)
        forced = client.messages.create(**ask, messages=HELLO, tool_choice={"type": "any"})
    assert [block.type for block in free.content] == ["text"]
    assert [block.type for block in forced.content] == ["tool_use"]


SCRIPT = """
replies:
  - match: {result_of: "*"}
    reply: {text: Got a result.}
  - match: {tool: "look_*"}
    reply: {tool_calls: [{name: look_up}]}
  - match: {schema: true}
    reply: {text: '{"city": "Oslo"}'}
  - match: {schema: false}
    reply: {text: Plain.}
"""


def test_script_matches_any_tool_and_any_schema() -> None:
    options = EmulatorOptions(script=Script.decode(SCRIPT, "script.yaml"))
    with (
        emulator.running(options) as emu,
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
    ):

        def text(**more: Any) -> str:
            ask: Any = {"model": "claude-opus-5-5", "max_tokens": 99, "messages": HELLO, **more}
            block: Any = client.messages.create(**ask).content[0]
            return str(block.text if block.type == "text" else block.type)

        assert text(tools=[TOOL]) == "tool_use"
        assert text(output_config={"format": SCHEMA}) == '{"city": "Oslo"}'
        assert text() == "Plain."
        call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}
        turns = [
            *HELLO,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        assert text(tools=[TOOL], messages=turns) == "Got a result."
