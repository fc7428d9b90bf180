"""The official SDKs with their defaults, given the messages as dicts; also with contents as plain
strings, which spares them looking into lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from _client_bodies import body, plain


class Sdk:
    def __init__(self, who: str, wire: str, url: str) -> None:
        self._body = plain(wire) if who.endswith("str") else body(wire)
        self._create = _anthropic(url) if wire == "anthropic" else _openai(url, wire)

    async def ready(self) -> Callable[[], Awaitable[object]]:
        return self._call

    async def close(self) -> None:
        """The process ends."""

    async def _call(self) -> Any:
        return await self._create(**self._body)


def _anthropic(url: str) -> Any:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key="k", base_url=url).messages.create


def _openai(url: str, wire: str) -> Any:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="k", base_url=f"{url}/v1")
    return client.responses.create if wire == "openai_responses" else client.chat.completions.create


asker = Sdk
