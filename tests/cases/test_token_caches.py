"""Caches that work on tokens: a difference inside a message, a system prompt or a tool keeps the
tokens before it, in whole granules. The same for the emulator's bill, the simulator, `explain`, and
a session's preview and verdict (PROVIDERS.md, "Observed since")."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.emulated_client import KEY

from anaphora import AsyncClient, catalog, wire
from anaphora.analysis.lint import Costs
from anaphora.analysis.lint.checks import lint_samples
from anaphora.analysis.trace.log_lines import LogLine
from anaphora.cache.prefix_difference import first_difference
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.catalog import CacheRules, Dialect
from anaphora.cli.main import main
from anaphora.emulator.server import Emulator
from anaphora.prompt import PromptCachePlan
from anaphora.tokens import Counts
from anaphora.tools import ToolRegistry
from anaphora.traffic.request_log import read_request
from anaphora.traffic.sent_requests import RequestDefaults, SentRequest
from anaphora.values import Conversation, Message

TAILS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:generateContent",
}
#: Some 9,500 tokens and more, each word once.
LONG = " ".join(f"word{number}" for number in range(5_000))
PLACES = ("message", "system", "tool")


class Provider(NamedTuple):
    row: Dialect
    model: str

    @property
    def name(self) -> str:
        return self.row.provider

    @property
    def rules(self) -> CacheRules:
        return catalog.rules(self.name, self.model, self.row.wire)

    @property
    def is_token_cache(self) -> bool:
        return self.rules.caches_tokens and not self.rules.slots.value


def providers() -> Iterator[Any]:
    """A model of each provider whose cache works on tokens; two of OpenAI, on either wire."""
    seen = set()
    for row in catalog.dialects().rows:
        ids = [profile.id for profile in catalog.models(row.provider)] or ["some-model"]
        if row.name == "openai/openai_responses":
            ids = ["gpt-4.1"]
        elif row.provider in seen or row.wire not in TAILS or row.surface:
            continue
        cached = (Provider(row, model) for model in ids)
        found = next((one for one in cached if one.is_token_cache), None)
        if found is not None:
            seen.add(row.provider)
            yield pytest.param(found, id=f"{row.name}-{found.model}")


def test_the_providers_are_those_of_the_catalog() -> None:
    names = {param.values[0].name for param in providers()}
    assert {"openai", "xai", "mistral", "moonshot", "google", "zai"} <= names
    assert not {"deepseek", "anthropic", "llamacpp"} & names


every = pytest.mark.parametrize("provider", list(providers()))
places = pytest.mark.parametrize("place", PLACES)


def bodies(provider: Provider, place: str) -> list[dict[str, Any]]:
    """Two requests that differ in one word: the last but three of a long user message, one in the
    middle of a system prompt, or one in a tool's description."""
    return [_body(provider, place, text) for text in texts(place)]


def texts(place: str) -> tuple[str, str]:
    return LONG, LONG.replace("word4996" if place == "message" else "word2500", "other999")


def _body(provider: Provider, place: str, text: str) -> dict[str, Any]:
    system = text if place == "system" else "You are terse."
    described = text if place == "tool" else "The time zone of a city."
    question = text if place == "message" else "Where is it noon?"
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "zone", "description": described, "parameters": schema}
    match provider.row.wire:
        case "gemini":
            return {
                "systemInstruction": {"parts": [{"text": system}]},
                "tools": [{"functionDeclarations": [tool]}],
                "contents": [{"role": "user", "parts": [{"text": question}]}],
            }
        case "openai_responses":
            return {
                "model": provider.model,
                "instructions": system,
                "tools": [{"type": "function", **tool}],
                "input": question,
            }
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    tools = [{"type": "function", "function": tool}]
    return {"model": provider.model, "messages": messages, "tools": tools}


def requests(provider: Provider, place: str) -> list[SentRequest]:
    defaults = RequestDefaults(
        origin=provider.row.name, provider=provider.name, model=provider.model
    )
    lines = (json.dumps(body).encode() for body in bodies(provider, place))
    return [read_request(LogLine("a request", line), defaults) for line in lines]


def shared(provider: Provider, place: str) -> tuple[int, int]:
    """What the second request reads, by the bytes that it shares with the first; and how much the
    first one left in the cache."""
    first, second = (request.sent.rendered for request in requests(provider, place))
    offset = first_difference(first, second, len(first))
    assert offset is not None
    granule, minimum = provider.rules.granule_tokens.value, provider.rules.minimum_tokens.value
    less = provider.rules.offset
    read, left = (
        (tokens + less) // granule * granule - less
        for tokens in (Counts(second).before(offset), Counts(first).total)
    )
    assert read >= minimum, "the text is long enough for every provider"
    if place == "message":
        assert left - read <= max(granule, 16)
    return read, left


@every
@places
def test_the_simulator_reads_the_granules_before_a_difference(
    provider: Provider, place: str
) -> None:
    simulator = Simulator(provider.rules)
    first, second = (
        RenderedPrompt(request.sent.rendered, request.sent.marks)
        for request in requests(provider, place)
    )
    simulator.call(first, at=0.0)
    outcome = simulator.call(second, at=60.0)
    assert outcome.read == shared(provider, place)[0]
    assert outcome.spans[-1].reason == "new"


@every
@places
def test_the_emulator_bills_the_granules_before_a_difference(
    emu: Emulator, provider: Provider, place: str
) -> None:
    base = provider.row.base_url.partition("//")[2].partition("/")[2]
    path = ("/" + base if base else "") + (provider.row.path or TAILS[provider.row.wire])
    url = f"{emu.url}/{provider.name}{path}".replace("{model}", provider.model)
    headers = {"authorization": "Bearer k", "x-goog-api-key": "k"}
    codec = wire.codec_for(provider.row)
    reads = []
    for body in bodies(provider, place):
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            url.replace("{method}", "generateContent"), data=data, headers=headers
        )
        with urllib.request.urlopen(request) as response:
            reads.append(codec.read_reply(response.read()).usage.read or 0)
    assert reads == [0, shared(provider, place)[0]]


@every
@places
def test_explain_names_the_tokens_behind_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], provider: Provider, place: str
) -> None:
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, body in zip(files, bodies(provider, place), strict=True):
        file.write_text(json.dumps({"request": body, "dialect": provider.row.name}))
    options = ["--provider", provider.name, "--model", provider.model]
    main(["explain", *map(str, files), *options, "--json"])
    verdict = json.loads(capsys.readouterr().out)["turns"][1]["verdict"]
    read, left = shared(provider, place)
    assert (verdict["predicted"], verdict["left"]) == (read, left)
    assert verdict["lost"] == left - read
    assert verdict["result"] == ("hit" if read == left else "partial")


@every
@pytest.mark.parametrize("place", ["system", "tool"])
def test_lint_and_explain_name_the_same_tokens(provider: Provider, place: str) -> None:
    first, second = (request.sent.rendered for request in requests(provider, place))
    costs = Costs(rules=provider.rules)
    (finding,) = lint_samples([("1.json", first), ("2.json", second)], costs)
    read, left = shared(provider, place)
    assert finding.tokens == left - read


def registry(description: str) -> ToolRegistry:
    found = ToolRegistry()

    @found.tool(description=description)
    def zone(city: str) -> str:
        return city

    return found


@every
@places
def test_a_session_foresees_and_judges_what_is_billed(
    emu: Emulator, provider: Provider, place: str
) -> None:
    """In another conversation that begins alike."""

    async def run() -> None:
        async with _client(emu, provider) as client:
            for text in texts(place):
                chat = client.session(
                    "main",
                    system=text if place == "system" else "You are terse.",
                    tools=registry(text if place == "tool" else "The time zone of a city."),
                    cache=PromptCachePlan(key="one"),
                )
                question = text if place == "message" else "Where is it noon?"
                foreseen = chat.preview(question, tool_choice="none")
                response = await chat.send(question, tool_choice="none")
                assert (response.usage.read or 0) == foreseen.usage.read
            granule = provider.rules.granule_tokens.value
            least = (foreseen.usage.input or 0) * (0.9 if place == "message" else 0.4) - granule
            assert (foreseen.usage.read or 0) >= max(1, least)

    asyncio.run(run())


@every
@pytest.mark.breaks_prefix(reason="a message is edited on purpose")
def test_an_edited_message_loses_what_lies_behind_its_granule(
    emu: Emulator, provider: Provider
) -> None:
    async def run() -> None:
        async with _client(emu, provider) as client:
            chat = client.session("main", on_prefix_break="off")
            await chat.send(LONG)
            edited = Message.user(LONG.replace("word2500", "other999"))
            chat.conversation = Conversation((edited, *chat.messages[1:]))
            foreseen = chat.preview("Go on.")
            response = await chat.send("Go on.")
            verdict = response.verdict
            assert verdict is not None
            assert verdict.predicted == foreseen.usage.read == response.usage.read
            (broken,) = (each for each in foreseen.notices if each.code == "prefix_breaks")
            # What the edit loses was in the cache; the reply may have been as well.
            assert verdict.result == "partial"
            assert verdict.lost == (verdict.left or 0) - (response.usage.read or 0)
            assert broken.tokens == pytest.approx(
                verdict.lost, abs=provider.rules.granule_tokens.value
            )
            assert (response.usage.read or 0) > 0.4 * (response.usage.input or 0) - 2048

    asyncio.run(run())


def test_a_session_foresees_that_the_planners_keys_differ(emu: Emulator) -> None:
    """OpenAI's key follows tools and system prompt: with another one nothing is shared."""
    provider = next(param.values[0] for param in providers() if param.values[0].name == "openai")

    async def run() -> None:
        async with _client(emu, provider) as client:
            for text in texts("system"):
                chat = client.session("main", system=text)
                foreseen = chat.preview("Where is it noon?")
                response = await chat.send("Where is it noon?")
                assert response.usage.read == foreseen.usage.read == 0
            assert (chat.preview("And then?").usage.read or 0) > 4000

    asyncio.run(run())


def _client(emu: Emulator, provider: Provider) -> AsyncClient:
    config = {
        "providers": {
            "main": {
                "dialect": provider.row.name,
                "base_url": f"{emu.url}/{provider.name}",
                "key": {"env": "KEY"},
                "model": provider.model,
            }
        }
    }
    return AsyncClient.from_config(config, environ={"KEY": KEY})
