"""Calls of the official SDKs for tests of `observe` and `observing`: each makes one of a prompt that
is long enough to be cached, at an address of the emulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import openai
from google import genai
from mistralai import client as mistral

KEY = "sk-canary-9aF3xLq8ZpQ7"
GUIDE = "Answer in short sentences. " + "Look before you leap, and say what you saw. " * 200
CLAUDE, GPT, GEMINI = "claude-opus-5-5", "gpt-5.2", "gemini-3-flash-preview"
MISTRAL = "mistral-large-latest"

#: How an SDK is asked, and the provider of its address.
SdkCall = Callable[[Any], Any]


def turns(count: int) -> list[Any]:
    """The messages of a conversation at one of its turns."""
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    for turn in range(1, count):
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
        messages.append({"role": "user", "content": f"And then, number {turn}?"})
    return messages


def claude(guide: str = GUIDE, count: int = 1) -> dict[str, Any]:
    """The arguments of a call of Anthropic's, with a marker on its system prompt."""
    system = [{"type": "text", "text": guide, "cache_control": {"type": "ephemeral"}}]
    return {"model": CLAUDE, "max_tokens": 40, "system": system, "messages": turns(count)}


def gpt(guide: str = GUIDE, count: int = 1) -> dict[str, Any]:
    return {"model": GPT, "messages": [{"role": "system", "content": guide}, *turns(count)]}


def anthropic_client(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=KEY, base_url=f"{url}/anthropic", **options)


def openai_client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key=KEY, base_url=f"{url}/openai/v1", **options)


def google_client(url: str, **options: Any) -> genai.Client:
    options = {"base_url": f"{url}/google", **options}
    return genai.Client(api_key=KEY, http_options=options)  # type: ignore[arg-type]


def mistral_client(url: str) -> mistral.Mistral:
    return mistral.Mistral(api_key=KEY, server_url=f"{url}/mistral")


def addresses(url: str) -> dict[str, str]:
    """The emulator's address of each provider."""
    names = ("anthropic", "openai", "google", "mistral", "deepseek")
    return {f"{url}/{name}": name for name in names}


# ── Every way to ask an SDK: what makes a client of an address, and what asks it ─────────────────


def _drain(stream: Any) -> list[Any]:
    with stream as events:
        return list(events)


async def _drain_async(stream: Any) -> list[Any]:
    return [event async for event in stream]


def _text_of_helper(client: Any) -> str:
    with client.messages.stream(**claude()) as stream:
        return "".join(stream.text_stream) + str(stream.get_final_message().usage)


def _raw(client: Any) -> Any:
    raw = client.messages.with_raw_response.create(**claude())
    assert raw.http_response.status_code == 200
    return raw.parse()


def _streamed_raw(client: Any) -> Any:
    with client.messages.with_streaming_response.create(**claude()) as raw:
        return b"".join(raw.iter_bytes())


def _google_stream(client: Any) -> list[Any]:
    return list(client.models.generate_content_stream(model=GEMINI, contents=GUIDE))


def _google(client: Any) -> Any:
    return client.models.generate_content(model=GEMINI, contents=GUIDE)


def _mistral(client: Any, **options: Any) -> Any:
    return client.chat.complete(model=MISTRAL, messages=gpt()["messages"], **options)


def _mistral_stream(client: Any) -> list[Any]:
    return _drain(client.chat.stream(model=MISTRAL, messages=gpt()["messages"]))


def _billed(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "stream": True, "stream_options": {"include_usage": True}}


SYNC: dict[str, tuple[Callable[[str], Any], SdkCall]] = {
    "anthropic": (anthropic_client, lambda client: client.messages.create(**claude())),
    "anthropic stream": (
        anthropic_client,
        lambda client: _drain(client.messages.create(**claude(), stream=True)),
    ),
    "anthropic stream helper": (anthropic_client, _text_of_helper),
    "anthropic raw response": (anthropic_client, _raw),
    "anthropic streamed raw response": (anthropic_client, _streamed_raw),
    "openai chat": (openai_client, lambda client: client.chat.completions.create(**gpt())),
    "openai chat stream": (
        openai_client,
        lambda client: _drain(client.chat.completions.create(**_billed(gpt()))),
    ),
    "openai responses": (
        openai_client,
        lambda client: client.responses.create(model=GPT, input=GUIDE),
    ),
    "openai responses stream": (
        openai_client,
        lambda client: _drain(client.responses.create(model=GPT, input=GUIDE, stream=True)),
    ),
    "google": (google_client, _google),
    "google stream": (google_client, _google_stream),
    "mistral": (mistral_client, _mistral),
    "mistral stream": (mistral_client, _mistral_stream),
}


async def _anthropic_helper(client: Any) -> str:
    async with client.messages.stream(**claude()) as stream:
        return "".join([text async for text in stream.text_stream])


async def _anthropic_stream(client: Any) -> list[Any]:
    return await _drain_async(await client.messages.create(**claude(), stream=True))


async def _openai_stream(client: Any) -> list[Any]:
    return await _drain_async(await client.chat.completions.create(**_billed(gpt())))


async def _google_async_stream(client: Any) -> list[Any]:
    stream = await client.aio.models.generate_content_stream(model=GEMINI, contents=GUIDE)
    return await _drain_async(stream)


async def _mistral_async_stream(client: Any) -> list[Any]:
    messages = gpt()["messages"]
    return await _drain_async(await client.chat.stream_async(model=MISTRAL, messages=messages))


def _async_anthropic(url: str) -> Any:
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=f"{url}/anthropic")


def _async_openai(url: str) -> Any:
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/openai/v1")


def _aiohttp_openai(url: str) -> Any:
    own = openai.DefaultAioHttpClient()
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/openai/v1", http_client=own)


ASYNC: dict[str, tuple[Callable[[str], Any], SdkCall]] = {
    "anthropic": (_async_anthropic, lambda client: client.messages.create(**claude())),
    "anthropic stream": (_async_anthropic, _anthropic_stream),
    "anthropic stream helper": (_async_anthropic, _anthropic_helper),
    "openai chat": (_async_openai, lambda client: client.chat.completions.create(**gpt())),
    "openai chat stream": (_async_openai, _openai_stream),
    "openai on aiohttp": (_aiohttp_openai, lambda client: client.chat.completions.create(**gpt())),
    "openai on aiohttp, stream": (_aiohttp_openai, _openai_stream),
    "google": (
        google_client,
        lambda client: client.aio.models.generate_content(model=GEMINI, contents=GUIDE),
    ),
    "google stream": (google_client, _google_async_stream),
    "mistral": (
        mistral_client,
        lambda client: client.chat.complete_async(model=MISTRAL, messages=gpt()["messages"]),
    ),
    "mistral stream": (mistral_client, _mistral_async_stream),
}


async def close(client: Any) -> None:
    """Closes whatever the client has open, by the name that its SDK gives that."""
    aio = getattr(client, "aio", None)
    if aio is not None:
        await aio.aclose()
        client.close()
        return
    configuration = getattr(client, "sdk_configuration", None)
    if configuration is not None:
        configuration.client.close()
        await configuration.async_client.aclose()
        return
    inner = client if hasattr(client, "close") else client._client
    ended = inner.aclose() if hasattr(inner, "aclose") else inner.close()
    if asyncio.iscoroutine(ended):
        await ended
