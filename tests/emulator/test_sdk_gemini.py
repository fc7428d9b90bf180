"""The official `google-genai` client, and what it lets Gemini hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pydantic
import pytest
from google import genai
from google.genai import errors, types

from anaphora.emulator.server import Emulator

#: Where aiohttp is installed the SDK uses it, in a way that aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

MODEL = "gemini-2.5-pro"
LONG = "A beginning that stays the same. " * 600
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
}
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="forecast", parameters_json_schema=SCHEMA)
    ]
)


def client_of(emu: Emulator, key: str = "one") -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=emu.url))


@pytest.fixture
def client(emu: Emulator) -> Iterator[genai.Client]:
    with client_of(emu) as client:
        yield client


class City(pydantic.BaseModel):
    name: str
    people: int


def test_whole_reply(client: genai.Client) -> None:
    answer = client.models.generate_content(model=MODEL, contents="Hello")
    assert answer.text
    assert answer.model_version == MODEL
    assert answer.response_id
    assert answer.candidates
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP


def test_stream_has_the_text_and_usage_of_the_whole_reply(client: genai.Client) -> None:
    single = client.models.generate_content(model=MODEL, contents="Hello")
    chunks = list(client.models.generate_content_stream(model=MODEL, contents="Hello"))
    assert "".join(chunk.text or "" for chunk in chunks) == single.text
    assert chunks[-1].usage_metadata == single.usage_metadata


def test_common_prefix_is_read(client: genai.Client) -> None:
    """Units are persisted: a beginning that two prompts share is kept from then on."""

    def read(question: str) -> int:
        reply = client.models.generate_content(model=MODEL, contents=[LONG, question])
        assert reply.usage_metadata is not None
        return reply.usage_metadata.cached_content_token_count or 0

    assert read("One?") == 0
    assert read("One?") > 2048


def test_tool_call_has_valid_arguments(client: genai.Client) -> None:
    config = types.GenerateContentConfig(tools=[TOOL])
    answer = client.models.generate_content(model=MODEL, contents="Weather?", config=config)
    calls: Any = answer.function_calls
    (call,) = calls
    assert call.name == "forecast"
    assert jsonschema_rs.is_valid(SCHEMA, call.args)
    assert answer.candidates
    assert answer.candidates[0].content is not None
    result = types.Part.from_function_response(name="forecast", response={"result": "Sunny"})
    history = [
        types.UserContent("Weather?"),
        answer.candidates[0].content,
        types.Content(role="user", parts=[result]),
    ]
    assert client.models.generate_content(model=MODEL, contents=history, config=config).text


def test_structured_output(client: genai.Client) -> None:
    config = types.GenerateContentConfig(
        response_mime_type="application/json", response_schema=City
    )
    answer = client.models.generate_content(model=MODEL, contents="A city", config=config)
    assert isinstance(answer.parsed, City)


def test_thoughts_are_shown_on_request(client: genai.Client) -> None:
    config = types.GenerateContentConfig(
        thinking_config=types.ThinkingConfig(include_thoughts=True)
    )
    answer = client.models.generate_content(model=MODEL, contents="Think", config=config)
    assert answer.candidates
    assert answer.candidates[0].content is not None
    parts = answer.candidates[0].content.parts or []
    assert [bool(part.thought) for part in parts] == [True, False]
    assert answer.usage_metadata is not None
    assert answer.usage_metadata.thoughts_token_count


def test_several_replies(client: genai.Client) -> None:
    config = types.GenerateContentConfig(candidate_count=3)
    answer = client.models.generate_content(model=MODEL, contents="Hello", config=config)
    texts = [
        candidate.content.parts[0].text
        for candidate in answer.candidates or ()
        if candidate.content is not None and candidate.content.parts
    ]
    assert len(set(texts)) == 3


def test_image_in_the_request(client: genai.Client) -> None:
    image = types.Part.from_bytes(data=b"\x89PNG\r\n", mime_type="image/png")
    assert client.models.generate_content(model=MODEL, contents=[image, "What is it?"]).text


def test_counted_tokens_equal_billed_tokens(client: genai.Client) -> None:
    counted = client.models.count_tokens(model=MODEL, contents=LONG)
    billed = client.models.generate_content(model=MODEL, contents=LONG).usage_metadata
    assert billed is not None
    assert counted.total_tokens == billed.prompt_token_count


def test_models_are_listed(client: genai.Client) -> None:
    assert f"models/{MODEL}" in [model.name for model in client.models.list()]
    assert client.models.get(model=MODEL).name == f"models/{MODEL}"


# ── cachedContents ───────────────────────────────────────────────────────────────────────────────


def held(client: genai.Client, ttl: str = "600s") -> types.CachedContent:
    return client.caches.create(
        model=MODEL,
        config=types.CreateCachedContentConfig(
            system_instruction=LONG, tools=[TOOL], ttl=ttl, display_name="mine"
        ),
    )


def test_cached_content_is_read(client: genai.Client) -> None:
    cache = held(client)
    assert cache.name
    assert cache.usage_metadata is not None
    config = types.GenerateContentConfig(cached_content=cache.name)
    usage = client.models.generate_content(
        model=MODEL, contents="Hello", config=config
    ).usage_metadata
    assert usage is not None
    assert usage.cached_content_token_count == cache.usage_metadata.total_token_count
    assert (usage.prompt_token_count or 0) > (usage.cached_content_token_count or 0)


def test_cached_content_is_listed_changed_and_deleted(emu: Emulator, client: genai.Client) -> None:
    cache = held(client)
    assert cache.name
    assert [one.name for one in client.caches.list()] == [cache.name]
    assert client.caches.get(name=cache.name).display_name == "mine"
    longer = client.caches.update(
        name=cache.name, config=types.UpdateCachedContentConfig(ttl="7200s")
    )
    assert longer.expire_time is not None
    assert cache.expire_time is not None
    assert longer.expire_time > cache.expire_time
    with client_of(emu, "two") as other:
        assert not list(other.caches.list())
        with pytest.raises(errors.ClientError):
            other.caches.get(name=cache.name)
    client.caches.delete(name=cache.name)
    assert not list(client.caches.list())


def test_cached_content_expires(emu: Emulator, client: genai.Client) -> None:
    cache = held(client, ttl="300s")
    config = types.GenerateContentConfig(cached_content=cache.name)
    emu.advance(150)
    client.models.generate_content(model=MODEL, contents="Hello", config=config)
    emu.advance(151)
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model=MODEL, contents="Hello", config=config)
    assert caught.value.code == 403


def test_empty_content_is_not_cached(client: genai.Client) -> None:
    config = types.CreateCachedContentConfig(contents="Hello", ttl="300s")
    with pytest.raises(errors.ClientError) as caught:
        client.caches.create(model=MODEL, config=config)
    assert caught.value.code == 400


def test_missing_key_is_rejected(emu: Emulator) -> None:
    options = types.HttpOptions(base_url=emu.url, headers={"x-goog-api-key": ""})
    with (
        genai.Client(api_key="k", http_options=options) as client,
        pytest.raises(errors.ClientError) as caught,
    ):
        client.models.generate_content(model=MODEL, contents="Hello")
    assert caught.value.status == "PERMISSION_DENIED"


def test_concurrent_requests(emu: Emulator) -> None:
    async def all_of_them() -> list[str | None]:
        async with client_of(emu).aio as client:

            async def one(number: int) -> str:
                stream = await client.models.generate_content_stream(
                    model=MODEL, contents=f"Question {number}"
                )
                return "".join([chunk.text or "" async for chunk in stream])

            return list(await asyncio.gather(*(one(number) for number in range(16))))

    assert len(set(asyncio.run(all_of_them()))) == 16
