"""The emulator without a server, on the clock of a virtual event loop: hours pass at once.

async def main(virtual: VirtualEmulator) -> None:
    chat = virtual.client.session("anthropic")
    await chat.send("Hello")
    await asyncio.sleep(400)

run_virtual(monkeypatch, main)
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from anaphora import AsyncClient
from anaphora.client.response import Record
from anaphora.client.transport import HttpRequest
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse

from . import virtual_time
from .emulated_client import KEY, settings

T = TypeVar("T")

#: What the virtual clock adds to the loop's: a Wednesday at noon, outside of all peak hours.
_START = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC).timestamp()


class EngineResponse:
    def __init__(self, response: EmulatorResponse) -> None:
        self._response = response
        self.status, self.headers = response.status, response.headers

    async def read(self) -> bytes:
        return self._response.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._response.chunks:
            yield chunk.data

    async def close(self) -> None:
        pass


class EngineTransport:
    """Answers requests by the emulator's engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bodies: list[bytes] = []
        self.refuse: Callable[[HttpRequest], None] = lambda _request: None
        """Raises for a request that does not reach the engine."""

    async def send(self, request: HttpRequest) -> EngineResponse:
        self.refuse(request)
        self.bodies.append(request.body)
        parts = urlsplit(request.url)
        received = EmulatorRequest(
            method=request.method,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=request.body,
            now=time.time(),
        )
        return EngineResponse(self.engine.respond(received))

    async def close(self) -> None:
        pass


class VirtualEmulator:
    def __init__(
        self,
        names: tuple[str, ...],
        options: EmulatorOptions | None = None,
        routes: dict[str, Any] | None = None,
    ) -> None:
        self.engine = Engine(options)
        self.transport = EngineTransport(self.engine)
        self.records: list[Record] = []
        self.client = AsyncClient.from_config(
            {"providers": settings("http://emulator.invalid", names), "routes": routes or {}},
            environ={"KEY": KEY},
            watchers=[self.records.append],
            transport=self.transport,
        )


def run_virtual(
    monkeypatch: pytest.MonkeyPatch,
    main: Callable[[VirtualEmulator], Awaitable[T]],
    *names: str,
    options: EmulatorOptions | None = None,
    routes: dict[str, Any] | None = None,
) -> T:
    """The result of `main`, with `time.time()` on the loop's clock."""

    async def run() -> T:
        started = virtual_time.clock()
        monkeypatch.setattr("time.time", lambda: _START + virtual_time.clock() - started)
        virtual = VirtualEmulator(names or ("anthropic",), options, routes)
        try:
            return await main(virtual)
        finally:
            await virtual.client.close()
            monkeypatch.undo()

    return virtual_time.run(run())
