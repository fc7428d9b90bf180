"""What one writes by hand: an aiohttp POST of a list of dicts. And the least that is possible:
ready-made bytes, and bytes back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from _client_bodies import body
from _client_workload import PATHS


class Raw:
    def __init__(self, who: str, wire: str, url: str) -> None:
        self._url = url + PATHS[wire]
        self._body = body(wire)
        self._data = json.dumps(self._body).encode()
        self._call = self._json if who == "raw" else self._bytes
        self._session: aiohttp.ClientSession | None = None

    async def ready(self) -> Callable[[], Awaitable[object]]:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"authorization": "Bearer k"})
        return self._call

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _json(self) -> Any:
        assert self._session is not None
        async with self._session.post(self._url, json=self._body) as response:
            return await response.json()

    async def _bytes(self) -> bytes:
        assert self._session is not None
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=self._data, headers=headers) as response:
            return await response.read()


asker = Raw
