"""Providers from environment variables: which are set, their addresses, keys and headers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from support.own_addresses import ToNowhere
from support.tables import each_row

from anaphora import AsyncClient, Client, catalog
from anaphora.client.config.environment import (
    Environment,
    default_rows,
    is_local,
    key_variables,
    url_variables,
)
from anaphora.client.transport import HttpRequest
from anaphora.errors import InvalidConfig, InvalidRequest, MissingSecret, Transport

KEY = "sk-canary-4711"


@each_row("provider", default_rows())
def test_a_key_is_enough(provider: str) -> None:
    row = default_rows()[provider]
    found = Environment({key_variables(row)[0]: KEY}).providers
    if is_local(row) or "{" in row.base_url:
        assert not found, "an address is needed"
        return
    one = found[provider]
    assert list(found) == [provider]
    assert (one.base_url, one.system) == (row.base_url, provider)
    assert KEY in one.headers()[one.auth_header]
    assert one.own_models_only == catalog.serves_own_only(provider)
    assert KEY not in repr(one)


def test_makers_come_before_hosts() -> None:
    keys = {key_variables(row)[0]: KEY for row in default_rows().values()}
    names = list(Environment(keys).providers)
    makers = [name for name in names if catalog.is_maker(name)]
    assert names[: len(makers)] == makers
    assert names[:3] == ["openai", "anthropic", "google"]


@each_row(
    "variables, provider, url",
    [
        # The base URL of OpenAI's SDK contains /v1, or what stands for it.
        ({"OPENAI_BASE_URL": "http://proxy/v1"}, "openai", "http://proxy/v1/chat/completions"),
        ({"OPENAI_BASE_URL": "http://proxy/v1/"}, "openai", "http://proxy/v1/chat/completions"),
        ({"OPENAI_BASE_URL": "http://proxy/openai"}, "openai", "http://proxy/openai/chat/completions"),
        ({"OPENAI_BASE_URL": ""}, "openai", "https://api.openai.com/v1/chat/completions"),
        ({"ANTHROPIC_BASE_URL": "http://proxy"}, "anthropic", "http://proxy/v1/messages"),
        ({"ANTHROPIC_BASE_URL": "http://proxy/v1"}, "anthropic", "http://proxy/v1/messages"),
        ({"GOOGLE_GEMINI_BASE_URL": "http://proxy"}, "google", "http://proxy/v1beta/models/m:generateContent"),
        ({"GROQ_BASE_URL": "http://proxy/openai/v1"}, "groq", "http://proxy/openai/v1/chat/completions"),
        ({"AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/"}, "azure", "https://me.openai.azure.com/openai/v1/chat/completions"),
        ({"OLLAMA_HOST": "gpu"}, "ollama", "http://gpu:11434/v1/chat/completions"),
        ({"OLLAMA_HOST": "gpu:1234"}, "ollama", "http://gpu:1234/v1/chat/completions"),
        ({"OLLAMA_HOST": ":1234"}, "ollama", "http://127.0.0.1:1234/v1/chat/completions"),
        ({"OLLAMA_HOST": "0.0.0.0"}, "ollama", "http://127.0.0.1:11434/v1/chat/completions"),
        ({"OLLAMA_HOST": "https://ollama.example/"}, "ollama", "https://ollama.example/v1/chat/completions"),
        ({"OLLAMA_HOST": "https://me.example/ollama/v1/"}, "ollama", "https://me.example/ollama/v1/chat/completions"),
        ({"VLLM_BASE_URL": "http://gpu:8000/v1"}, "vllm", "http://gpu:8000/v1/chat/completions"),
        ({}, "llamacpp", "http://localhost:8080/v1/chat/completions"),
    ],
)  # fmt: skip
def test_addresses(variables: dict[str, str], provider: str, url: str) -> None:
    key = key_variables(default_rows()[provider])[0]
    assert sent({key: KEY} | variables, provider).url == url


@each_row(
    "variables, provider, headers",
    [
        ({"ANTHROPIC_API_KEY": KEY}, "anthropic", {"x-api-key": KEY}),
        ({"ANTHROPIC_AUTH_TOKEN": KEY}, "anthropic", {"authorization": f"Bearer {KEY}"}),
        (
            {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": "other"},
            "anthropic",
            {"x-api-key": KEY, "authorization": None},
        ),
        ({"GOOGLE_API_KEY": KEY}, "google", {"x-goog-api-key": KEY}),
        ({"GEMINI_API_KEY": KEY, "GOOGLE_API_KEY": "b"}, "google", {"x-goog-api-key": KEY}),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj_1"},
            "openai",
            {"openai-organization": "org-1", "openai-project": "proj_1"},
        ),
        ({"OLLAMA_HOST": "gpu"}, "ollama", {"authorization": None}),
        (
            {"OLLAMA_HOST": "gpu", "OLLAMA_API_KEY": KEY},
            "ollama",
            {"authorization": f"Bearer {KEY}"},
        ),
        (
            {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com"},
            "azure",
            {"api-key": KEY},
        ),
    ],
)
def test_headers(variables: dict[str, str], provider: str, headers: dict[str, str | None]) -> None:
    request = sent(variables, provider)
    assert {name: request.headers.get(name) for name in headers} == headers


def sent(variables: dict[str, str], provider: str) -> HttpRequest:
    """The request of a call, which is not answered."""

    async def main() -> HttpRequest:
        transport = ToNowhere()
        client = AsyncClient.of_environment(Environment(variables), transport=transport)
        with pytest.raises(Transport, match="refused"):
            await client.complete("Hi", provider, model="m")
        (request,) = transport.sent
        return request

    return asyncio.run(main())


@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_no_key_at_all(kind: type[AsyncClient] | type[Client]) -> None:
    with pytest.raises(MissingSecret, match=r"\(OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY"):
        kind.from_env({})


def test_misspelled_option() -> None:
    with pytest.raises(InvalidRequest, match="did you mean `on_wait`"):
        AsyncClient.from_env({"OPENAI_API_KEY": KEY}, onwait=print)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "variables, problem",
    [
        ({"OPENAI_API_KEY": f"{KEY} "}, "$OPENAI_API_KEY is not a key"),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "proxy"},
            "$OPENAI_BASE_URL: does not begin with https:// or http://",
        ),
        ({}, "no key for openai in the environment: set OPENAI_API_KEY"),
    ],
)
def test_problems_of_one_provider_are_errors_of_its_calls_only(
    variables: dict[str, str], problem: str
) -> None:
    async def main() -> None:
        transport = ToNowhere()
        environ = {"ANTHROPIC_API_KEY": KEY} | variables
        client = AsyncClient.from_env(environ, transport=transport)
        for _ in range(2):
            with pytest.raises(InvalidConfig) as raised:
                await client.complete("Hi", "openai", model="gpt-5.2")
            assert problem in str(raised.value)
            assert KEY not in str(raised.value)
        with pytest.raises(Transport, match="refused"):
            await client.complete("Hi", model="claude-sonnet-5-5")
        assert len(transport.sent) == 1

    asyncio.run(main())


def test_bedrock_without_a_region_says_how_to_name_one() -> None:
    environ = {"AWS_BEARER_TOKEN_BEDROCK": KEY, "AWS_CONFIG_FILE": "/nowhere"}
    client = Client.from_env({"ANTHROPIC_API_KEY": KEY} | environ, transport=ToNowhere())
    with pytest.raises(MissingSecret, match="set AWS_REGION, or `region`") as raised:
        client.complete("Hi", "bedrock", model="us.anthropic.claude-sonnet-5")
    assert KEY not in str(raised.value)


def test_the_page_lists_every_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "config.md").read_text()
    section = page.partition("## Environment variables")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (\w+) \| (.*`.*) \|$", section, re.MULTILINE)
    expected = {
        name: {*key_variables(row), *url_variables(row)}
        for name, row in default_rows().items()
        if "{" not in row.base_url or row.url_variables
    }
    assert {name: set(re.findall(r"`(\w+)`", cells)) for name, cells in listed} == expected
    assert [name for name, _ in listed] == list(expected)
