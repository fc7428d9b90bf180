"""The emulator without a socket, as a transport that takes as long as a provider.

    engine = Engine()
    client = AsyncClient.from_config(…, transport=PacedTransport(engine, first=1.0, whole=6.0))

With `virtual_time.run`, hours of calls take no time, and what is written can be read exactly when
the provider's rules say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from anaphora.client.transport import HttpRequest
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse

#: The loop's clock begins at about 1000; the emulator's at a day of the catalog.
_EPOCH = 1_794_800_000.0
#: Seconds of a request on its way.
_WAY = 0.05
#: Chunks of a stream that come with its first byte.
_OPENING = 4


class PacedTransport:
    def __init__(self, engine: Engine, *, first: float, whole: float) -> None:
        """Seconds from a request to the first byte of its response, and to the end of it."""
        self.engine = engine
        self.sent: list[tuple[float, bytes]] = []
        """When each request was sent, and its body."""
        self._first = first
        self._whole = whole

    async def send(self, request: HttpRequest) -> PacedResponse:
        self.sent.append((asyncio.get_running_loop().time(), request.body))
        await asyncio.sleep(_WAY)
        received = EmulatorRequest(
            method=request.method,
            path=urlsplit(request.url).path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=request.body,
            now=now(),
        )
        response = self.engine.receive(received)
        usage = None if response.call is None else response.call.sent.usage
        # A reply that is not streamed comes when all of it was generated; a pre-warm has none.
        waits = usage is not None and usage.output and not response.stream
        await asyncio.sleep(self._whole if waits else self._first)
        if response.call is not None:
            response.call.begin(now())
        return PacedResponse(response, self._whole - self._first if response.stream else 0.0)

    async def close(self) -> None:
        pass


class PacedResponse:
    def __init__(self, response: EmulatorResponse, rest: float) -> None:
        self._response = response
        self._rest = rest
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        return b"".join([data async for data in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = [chunk.data for chunk in self._response.chunks]
        if self._response.stream:
            # What opens the reply, its bill as far as it is known, and the first words.
            yield b"".join(chunks[:_OPENING])
            await asyncio.sleep(self._rest)
            chunks = chunks[_OPENING:]
        self._end()
        yield b"".join(chunks)

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._response.call is not None:
            self._response.call.end(now())


def now() -> float:
    return _EPOCH + asyncio.get_running_loop().time()
