"""The official `ollama` client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import ollama
import pytest

from anaphora.emulator.server import Emulator

MODEL = "qwen3:0.6b"
MESSAGES: Any = [{"role": "user", "content": "Hello"}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
}
TOOL: Any = {"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}


@pytest.fixture
def client(emu: Emulator) -> Iterator[ollama.Client]:
    with ollama.Client(host=emu.url) as client:
        yield client


def test_whole_reply(client: ollama.Client) -> None:
    answer = client.chat(model=MODEL, messages=MESSAGES)
    assert answer.message.content
    assert answer.done_reason == "stop"
    assert answer.prompt_eval_count
    assert answer.eval_count


def test_stream_has_the_text_of_the_whole_reply(client: ollama.Client) -> None:
    single = client.chat(model=MODEL, messages=MESSAGES)
    chunks = list(client.chat(model=MODEL, messages=MESSAGES, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == single.message.content
    assert chunks[-1].done
    assert chunks[-1].eval_count == single.eval_count


def test_tool_call_has_valid_arguments(client: ollama.Client) -> None:
    answer = client.chat(model=MODEL, messages=MESSAGES, tools=[TOOL])
    calls: Any = answer.message.tool_calls
    (call,) = calls
    assert call.function.name == "forecast"
    assert jsonschema_rs.is_valid(SCHEMA, dict(call.function.arguments))
    result: Any = {"role": "tool", "content": "Sunny", "tool_name": "forecast"}
    then = client.chat(model=MODEL, messages=[*MESSAGES, answer.message, result], tools=[TOOL])
    assert then.message.content


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_json_output(client: ollama.Client, form: Any) -> None:
    answer = client.chat(model=MODEL, messages=MESSAGES, format=form)
    output = json.loads(answer.message.content or "")
    assert form == "json" or jsonschema_rs.is_valid(form, output)


def test_thinking(client: ollama.Client) -> None:
    assert client.chat(model=MODEL, messages=MESSAGES, think=True).message.thinking
    assert not client.chat(model=MODEL, messages=MESSAGES, think=False).message.thinking


def test_models_are_listed_and_loaded(client: ollama.Client) -> None:
    assert MODEL in [model.model for model in client.list().models]
    assert client.chat(model=MODEL, messages=[]).done_reason == "load"


def test_errors_map_to_sdk_classes(client: ollama.Client) -> None:
    wrong: Any = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model=MODEL, messages=MESSAGES, format=wrong)
    assert caught.value.status_code == 400


def test_concurrent_requests(emu: Emulator) -> None:
    async def all_of_them() -> list[Any]:
        async with ollama.AsyncClient(host=emu.url) as client:

            async def one(number: int) -> Any:
                messages = [{"role": "user", "content": f"Question {number}"}]
                return (await client.chat(model=MODEL, messages=messages)).message.content

            return list(await asyncio.gather(*(one(number) for number in range(16))))

    assert len(set(asyncio.run(all_of_them()))) == 16


# ── Completions, embeddings, loaded models ───────────────────────────────────────────────────────


def test_generate_is_a_chat_of_one_prompt(emu: Emulator, client: ollama.Client) -> None:
    chat = client.chat(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    )
    whole = client.generate(model=MODEL, system="Be brief.", prompt="Hello")
    assert whole.response == chat.message.content
    assert (whole.prompt_eval_count, whole.eval_count) == (chat.prompt_eval_count, chat.eval_count)
    chunks = list(client.generate(model=MODEL, system="Be brief.", prompt="Hello", stream=True))
    assert "".join(chunk.response or "" for chunk in chunks) == whole.response
    assert (chunks[-1].done, chunks[-1].done_reason) == (True, "stop")
    assert emu.requests()[0]["operation"] == "complete"
    shaped = client.generate(model=MODEL, prompt="Where?", format=SCHEMA)
    jsonschema_rs.validate(SCHEMA, json.loads(shaped.response or ""))


def test_generate_without_a_prompt_loads_the_model(client: ollama.Client) -> None:
    loaded = client.generate(model=MODEL)
    assert (loaded.response, loaded.done_reason) == ("", "load")


def test_loaded_models_are_listed_until_they_expire(emu: Emulator, client: ollama.Client) -> None:
    assert not client.ps().models
    client.generate(model=MODEL, prompt="Hello")
    assert [model.model for model in client.ps().models] == [MODEL]
    emu.advance(301)
    assert not client.ps().models


def test_embeddings_depend_on_the_text(client: ollama.Client) -> None:
    made = client.embed(model="nomic-embed-text", input=["one", "two", "one"])
    first, second, third = made.embeddings
    assert first == third != second
    assert abs(sum(value * value for value in first) - 1) < 1e-9
    assert made.prompt_eval_count
    assert len(client.embed(model="m", input="one", dimensions=8).embeddings[0]) == 8
    assert client.embeddings(model="nomic-embed-text", prompt="one").embedding == first
    with pytest.raises(ollama.ResponseError, match="dimensions"):
        client.embed(model="m", input="one", dimensions=100_000)
