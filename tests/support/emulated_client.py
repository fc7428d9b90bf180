"""A real client connected to the emulator, with every request, response and record kept.

    async with connected(emu) as emulated:
        chat = emulated.client.session("anthropic")
        emulated.transport.faults = ["529", None]  # the faults of the next requests
        await chat.send("Hello")
        emulated.transport.sent, emulated.records

The end of the block asserts that no task and no connection is left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from anaphora import AsyncClient
from anaphora.client.config.secrets import SecretHeaders
from anaphora.client.response import Record
from anaphora.client.transport import HttpRequest, HttpResponse
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.emulator import Latency
from anaphora.emulator.faults import HEADER

KEY = "sk-canary-4711"

#: The model of each provider used in tests, by its name in the configuration.
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
#: Models of routers that only some tests use.
ROUTED = {"vercel": "deepseek/deepseek-v4-flash", "huggingface": "deepseek-ai/DeepSeek-V4-Flash"}
BEDROCK_MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")

AT_ONCE = Latency(first=0.0)
"""For tests without concurrent calls: those that write cache entries do not wait for others."""

LONG = "You are terse and to the point. " * 450
"""Longer than every provider's cache minimum."""


class Serving(Protocol):
    """The emulator, or a server that stands in for it."""

    @property
    def url(self) -> str: ...


class RecordedResponse:
    """A response whose bytes are also kept."""

    def __init__(
        self,
        response: HttpResponse,
        received: bytearray,
        closed: Callable[[RecordedResponse], None],
    ) -> None:
        self._response = response
        self._pieces = response.__aiter__()
        self._received = received
        self._closed = closed

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        data = await self._response.read()
        self._received += data
        return data

    def __aiter__(self) -> RecordedResponse:
        return self

    async def __anext__(self) -> bytes:
        data = await anext(self._pieces)
        self._received += data
        return data

    async def close(self) -> None:
        await self._response.close()
        self._closed(self)


class RecordingTransport:
    """The default transport, which keeps every request and asks the emulator for faults."""

    def __init__(self) -> None:
        self.inner = AiohttpTransport()
        self._open: set[RecordedResponse] = set()
        self.sent: list[HttpRequest] = []
        self.received: list[bytearray] = []
        """The bytes of each response so far."""
        self.faults: list[str | None] = []
        """Faults of the next requests, in order; the last one repeats."""

    async def send(self, outgoing: HttpRequest) -> RecordedResponse:
        self.sent.append(outgoing)
        fault = None
        if self.faults:
            fault = self.faults[0] if len(self.faults) == 1 else self.faults.pop(0)
        if fault is not None:
            headers = SecretHeaders({**outgoing.headers, HEADER: fault})
            outgoing = msgspec.structs.replace(outgoing, headers=headers)
        response = await self.inner.send(outgoing)
        self.received.append(bytearray())
        recorded = RecordedResponse(response, self.received[-1], self._open.discard)
        self._open.add(recorded)
        return recorded

    async def close(self) -> None:
        await self.inner.close()

    @property
    def bodies(self) -> list[bytes]:
        return [outgoing.body for outgoing in self.sent]

    @property
    def in_use(self) -> int:
        """The number of responses not closed yet."""
        return len(self._open)


class Connected:
    """A client, its transport and the records of its calls."""

    def __init__(
        self, client: AsyncClient, transport: RecordingTransport, records: list[Record]
    ) -> None:
        self.client = client
        self.transport = transport
        self.records = records


def settings(url: str, names: Iterable[str], **provider: Any) -> dict[str, Any]:
    """The providers of these names; those that are no wire have a path prefix at the emulator."""
    return {name: _provider(url, name) | provider for name in names}


def _provider(url: str, name: str) -> dict[str, Any]:
    model = BEDROCK_MODEL if name == "bedrock" else (MODELS | ROUTED)[name]
    common = {"key": {"env": "KEY"}, "model": model}
    if name in WIRES or name == "bedrock":
        return {"wire": name, "base_url": url, **common}
    prefix = name.partition("/")[0]
    return {"dialect": name, "base_url": f"{url}/{prefix}", **common}


@asynccontextmanager
async def connected(
    server: Serving,
    names: Iterable[str] = tuple(MODELS),
    *,
    routes: dict[str, Any] | None = None,
    on_wait: Callable[[float], None] | None = None,
    **provider: Any,
) -> AsyncIterator[Connected]:
    """A client with these providers; `provider` adds settings to each of them."""
    config = {"providers": settings(server.url, names, **provider), "routes": routes or {}}
    transport, records = RecordingTransport(), list[Record]()
    client = AsyncClient.from_config(
        config,
        environ={"KEY": KEY},
        watchers=[records.append],
        on_wait=on_wait,
        transport=transport,
    )
    before = asyncio.all_tasks()
    try:
        yield Connected(client, transport, records)
        await client.close()
        for _ in range(8):  # a stream that was left by `break` is closed by the loop
            await asyncio.sleep(0)
        assert transport.in_use == 0, "a connection was not returned"
        assert asyncio.all_tasks() <= before, "a task was left behind"
        assert KEY not in repr(records)
    finally:
        await transport.close()
