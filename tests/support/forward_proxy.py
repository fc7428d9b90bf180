"""A small HTTP proxy: CONNECT for TLS, absolute addresses for the rest; may ask for a password."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from support.raw_server import RawServer, raw_server
from yarl import URL


class ForwardProxy:
    def __init__(self, password: str | None, status: str | None) -> None:
        self._password = password
        self._status = status
        self.requests: list[str] = []
        """The first line of every request."""
        self.url = ""

    async def handle(
        self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = await server.read(reader)
        if not request:
            return
        line, _, rest = request.partition(b"\r\n")
        self.requests.append(line.decode())
        refusal = self._status or (None if self._may(rest) else "407 Proxy Authentication Required")
        if refusal is not None:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        method, target, version = line.decode().split(" ")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            far = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            url = URL(target)
            far = await asyncio.open_connection(url.host, url.port)
            far[1].write(f"{method} {url.raw_path_qs} {version}\r\n".encode() + rest)
        try:
            await _first_of(_pipe(reader, far[1]), _pipe(far[0], writer))
        finally:
            far[1].transport.abort()

    def _may(self, headers: bytes) -> bool:
        if self._password is None:
            return True
        token = base64.b64encode(self._password.encode())
        return b"proxy-authorization: basic " + token.lower() in headers.lower()


@asynccontextmanager
async def forward_proxy(
    *, password: str | None = None, status: str | None = None
) -> AsyncIterator[ForwardProxy]:
    """`password` is `user:password`; with `status` everything is refused by it."""
    proxy = ForwardProxy(password, status)
    async with raw_server(proxy.handle) as server:
        proxy.url = f"http://{password + '@' if password else ''}localhost:{server.port}"
        yield proxy


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _first_of(*ways: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
