"""Transports for providers at their own addresses: requests go to the emulator, or nowhere.

transport = ToEmulator(emu)
client = AsyncClient.from_env({"ANTHROPIC_API_KEY": "any"}, transport=transport)
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from anaphora.client.transport import HttpRequest, HttpResponse
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.emulator.server import Emulator
from anaphora.errors import Transport


class ToEmulator:
    """Sends what is for any address to the emulator."""

    def __init__(self, emu: Emulator) -> None:
        self._url = emu.url
        self._inner = AiohttpTransport()
        self.sent: list[HttpRequest] = []

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.sent.append(request)
        parts = urlsplit(request.url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return await self._inner.send(msgspec.structs.replace(request, url=self._url + path))

    async def close(self) -> None:
        await self._inner.close()


class ToNowhere:
    """Refuses every request, once."""

    def __init__(self) -> None:
        self.sent: list[HttpRequest] = []

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.sent.append(request)
        error = Transport("refused")
        error.retryable = False
        raise error

    async def close(self) -> None:
        pass
