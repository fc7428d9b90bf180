"""Each cloud by its own variables, wherever a user meets it: single calls, streams, sessions whose
second turn reads the cache, tools, structured output, counts, fan-outs, the adapter, `ask`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner

import anaphora
from anaphora import AsyncClient, Client, emulator
from anaphora.cli import ask
from anaphora.client.adapter import ClientAdapter, LlmMessage, LlmRequest
from anaphora.client.config import ClientConfig
from anaphora.emulator import EmulatorOptions, Script
from anaphora.emulator.server import Emulator
from anaphora.values import ReplyEnd, TextDelta

LONG = "You are a helpful assistant, and you never guess. " * 400
KEY = "canary-key-5519"
SCRIPT = {
    "replies": [
        {
            "match": {"text": "Look"},
            "reply": {"tool_calls": [{"name": "look", "arguments": {"place": "Rome"}}]},
        },
        {"match": {"result_of": "look"}, "reply": {"text": "It is sunny."}},
    ]
}


class Cloud(NamedTuple):
    model: str
    variables: dict[str, str]
    """`URL` is the emulator's address."""
    counts: bool = True


CLOUDS = {
    "bedrock": Cloud(
        "bedrock/us.anthropic.claude-sonnet-5",
        {
            "AWS_REGION": "us-east-1",
            "AWS_BEARER_TOKEN_BEDROCK": KEY,
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "URL",
        },
    ),
    "vertex claude": Cloud(
        "vertex/claude-sonnet-4-5",
        {
            "ANTHROPIC_VERTEX_PROJECT_ID": "p",
            "CLOUD_ML_REGION": "us-east5",
            "ANTHROPIC_VERTEX_BASE_URL": "URL/v1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": KEY,
        },
    ),
    "vertex gemini": Cloud(
        "vertex/gemini-2.5-flash",
        {
            "GOOGLE_CLOUD_PROJECT": "p",
            "GOOGLE_VERTEX_BASE_URL": "URL",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": KEY,
        },
    ),
    "azure": Cloud(
        "azure/gpt-5.2",
        {"AZURE_OPENAI_ENDPOINT": "URL/azure", "AZURE_OPENAI_API_KEY": KEY},
        counts=False,
    ),
    "azure claude": Cloud(
        "azure/claude-sonnet-4-5",
        {"ANTHROPIC_FOUNDRY_BASE_URL": "URL/azure", "ANTHROPIC_FOUNDRY_API_KEY": KEY},
    ),
}
every_cloud = pytest.mark.parametrize("cloud", CLOUDS)


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    script = Script.decode(json.dumps(SCRIPT), "the script")
    with emulator.running(EmulatorOptions(script=script)) as running:
        yield running


def variables(emu: Emulator, cloud: str) -> dict[str, str]:
    given = CLOUDS[cloud].variables
    return {name: value.replace("URL", emu.url) for name, value in given.items()}


def look(place: str) -> str:
    """Looks at a place."""
    return f"sun over {place}"


class City(msgspec.Struct):
    name: str


@every_cloud
def test_calls_streams_and_counts(emu: Emulator, cloud: str) -> None:
    model = CLOUDS[cloud].model
    with Client.from_env(variables(emu, cloud)) as client:
        answer = client.complete("Hello", model=model)
        *events, end = client.stream("Hello", model=model)
        counted = client.count_tokens("Hello", model=model, system=LONG)
    assert answer.text
    assert answer.usage.output
    assert answer.cost_usd
    assert any(isinstance(event, TextDelta) for event in events)
    assert isinstance(end, ReplyEnd)
    assert counted.exact == CLOUDS[cloud].counts
    assert 2000 < counted.tokens < 9000
    assert KEY not in repr(answer)


@every_cloud
def test_the_cache_is_read_at_turn_two_of_a_tool_loop(emu: Emulator, cloud: str) -> None:
    with Client.from_env(variables(emu, cloud)) as client:
        chat = client.session(model=CLOUDS[cloud].model, system=f"{cloud}: {LONG}", tools=[look])
        first = chat.run("Look at Rome").result()
        second = chat.send("And now?").result()
    assert first.text == "It is sunny."
    assert second.usage.read
    assert second.usage.read > 0.9 * (first.responses[-1].usage.input or 0)
    assert second.verdict is not None
    assert second.verdict.result == "hit"


@every_cloud
@pytest.mark.long
def test_structured_output_and_fan_outs(emu: Emulator, cloud: str) -> None:
    model = CLOUDS[cloud].model
    with Client.from_env(variables(emu, cloud)) as client:
        parsed = client.complete("Name a city.", model=model, output=City).parsed
        done = client.map(
            ["One", "Two", "Three"], model=model, system=f"{cloud} map {LONG}"
        ).result()
    assert isinstance(parsed, City)
    assert [item.error for item in done.items] == [None, None, None]
    assert sum(bool(item.response and item.response.usage.read) for item in done.items) == 2


@every_cloud
def test_module_ask_and_adapter(emu: Emulator, cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = CLOUDS[cloud].model, variables(emu, cloud)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert anaphora.complete(model, "Hello").text
    run = CliRunner().invoke(ask.command, ["-m", model, "Hello"])
    assert run.exit_code == 0, run.output
    assert run.stdout.strip()
    assert KEY not in run.output

    async def adapted() -> str:
        async with AsyncClient.from_env(given) as client:
            provider = client._chooser.targets(None, model)[0][0].endpoint.id
            adapter = ClientAdapter(client, provider, "cloud")
            request = LlmRequest(
                model=model.partition("/")[2], messages=(LlmMessage("user", "Hello"),)
            )
            return (await adapter.complete(request)).text

    assert asyncio.run(adapted())


ENTRIES: dict[str, dict[str, Any]] = {
    "bedrock": {"dialect": "bedrock", "base_url": "URL", "region": "us-east-1"},
    "vertex claude": {
        "dialect": "vertex/anthropic",
        "base_url": "URL/v1/projects/{project}/locations/{location}/publishers/anthropic",
        "account": {"project": "p"},
    },
    "vertex gemini": {
        "dialect": "vertex",
        "base_url": "URL/v1/projects/{project}/locations/{location}/publishers/google",
        "account": {"project": "p"},
    },
    "azure": {"dialect": "azure", "base_url": "URL/azure"},
    "azure claude": {"dialect": "anthropic/anthropic/foundry", "base_url": "URL/azure"},
}


@every_cloud
def test_entries_of_llm_yaml(emu: Emulator, cloud: str) -> None:
    given = ENTRIES[cloud]
    entry = given | {
        "base_url": str(given["base_url"]).replace("URL", emu.url),
        "key": {"env": "CLOUD_KEY"},
        "model": CLOUDS[cloud].model.partition("/")[2],
    }
    config = ClientConfig.from_mapping({"providers": {"mine": entry}})
    with Client.from_config(config, environ={"CLOUD_KEY": KEY}) as client:
        chat = client.session("mine", system=f"{cloud} yaml {LONG}")
        assert chat.send("Hello").result().text
        assert chat.send("Again").result().usage.read
