"""The emulator as a transport of the client, without a server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlsplit

from anaphora.client.transport import HttpRequest
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse


class _Response:
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
    """The emulator without a server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def send(self, request: HttpRequest) -> _Response:
        parts = urlsplit(request.url)
        received = EmulatorRequest(
            method=request.method,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=request.body,
            now=time.time(),
        )
        return _Response(self._engine.respond(received))

    async def close(self) -> None:
        pass
