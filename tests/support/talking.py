"""A real client that talks to the emulator, and everything that went over the line.

    async with talking(emu) as talk:
        chat = talk.client.session("anthropic")
        talk.line.faults = ["503", None]          # what becomes of the next requests
        await chat.send("Hello")
        talk.line.sent, talk.records

When the block ends, nothing may be left behind: no task, no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from anaphora import AsyncClient
from anaphora.client.response import Record
from anaphora.client.transport import HttpRequest, HttpResponse
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.emulator.faults import HEADER

KEY = "sk-canary-4711"

#: A model for each provider that tests talk to; `wire` is how the configuration names it.
MODELS: dict[str, str] = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.2",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
    "ollama": "qwen3:0.6b",
    "deepseek": "deepseek-v4-flash",
    "minimax/anthropic": "MiniMax-M2.7",
    "openrouter": "openai/gpt-5.2",
}
WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini", "ollama")

LONG = "You are terse and to the point. " * 450
"""Long enough to be cached everywhere."""


class Serving(Protocol):
    """The emulator, or any server that answers in its place."""

    @property
    def url(self) -> str: ...


class Heard:
    """An answer whose bytes are kept besides."""

    def __init__(
        self, answer: HttpResponse, received: bytearray, closed: Callable[[Heard], None]
    ) -> None:
        self._answer = answer
        self._pieces = answer.__aiter__()
        self._received = received
        self._closed = closed

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def read(self) -> bytes:
        data = await self._answer.read()
        self._received += data
        return data

    def __aiter__(self) -> Heard:
        return self

    async def __anext__(self) -> bytes:
        data = await anext(self._pieces)
        self._received += data
        return data

    async def close(self) -> None:
        await self._answer.close()
        self._closed(self)


class Line:
    """The usual transport. Keeps what goes out, and asks the emulator for faults on its way."""

    def __init__(self) -> None:
        self.transport = AiohttpTransport()
        self._open: set[Heard] = set()
        self.sent: list[HttpRequest] = []
        self.received: list[bytearray] = []
        """What has come of each answer, as it came."""
        self.faults: list[str | None] = []
        """Of the next requests, in order; the last one stays."""

    async def send(self, outgoing: HttpRequest) -> Heard:
        self.sent.append(outgoing)
        fault = None
        if self.faults:
            fault = self.faults[0] if len(self.faults) == 1 else self.faults.pop(0)
        if fault is not None:
            headers = {**outgoing.headers, HEADER: fault}
            outgoing = msgspec.structs.replace(outgoing, headers=headers)
        answer = await self.transport.send(outgoing)
        self.received.append(bytearray())
        heard = Heard(answer, self.received[-1], self._open.discard)
        self._open.add(heard)
        return heard

    async def close(self) -> None:
        await self.transport.close()

    @property
    def bodies(self) -> list[bytes]:
        return [outgoing.body for outgoing in self.sent]

    @property
    def in_use(self) -> int:
        """Answers that somebody has, and has not closed."""
        return len(self._open)


class Talk:
    def __init__(self, client: AsyncClient, line: Line, records: list[Record]) -> None:
        self.client = client
        self.line = line
        self.records = records


def settings(url: str, names: Iterable[str], **provider: Any) -> dict[str, Any]:
    """Providers by the names of `MODELS`; those of other houses have a folder at the emulator."""
    return {name: _provider(url, name) | provider for name in names}


def _provider(url: str, name: str) -> dict[str, Any]:
    common = {"key": {"env": "KEY"}, "model": MODELS[name]}
    if name in WIRES:
        return {"wire": name, "base_url": url, **common}
    house = name.partition("/")[0]
    return {"dialect": name, "base_url": f"{url}/{house}", **common}


@asynccontextmanager
async def talking(
    server: Serving,
    names: Iterable[str] = tuple(MODELS),
    *,
    routes: dict[str, Any] | None = None,
    on_wait: Callable[[float], None] | None = None,
    **provider: Any,
) -> AsyncIterator[Talk]:
    """A client whose providers all have these settings besides."""
    config = {"providers": settings(server.url, names, **provider), "routes": routes or {}}
    line, records = Line(), list[Record]()
    client = AsyncClient.from_config(
        config,
        environ={"KEY": KEY},
        watchers=[records.append],
        on_wait=on_wait,
        transport=line,
    )
    before = asyncio.all_tasks()
    try:
        yield Talk(client, line, records)
        await client.close()
        for _ in range(8):  # a stream that was left by `break` is closed by the loop
            await asyncio.sleep(0)
        assert line.in_use == 0, "a connection was not given back"
        assert asyncio.all_tasks() <= before, "a task was left behind"
        assert KEY not in repr(records)
    finally:
        await line.close()
