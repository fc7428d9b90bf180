"""A real local server whose handling of a connection a test defines: reply, reply slowly,
close, send garbage.

    async with raw_server(answering(b"HTTP/1.1 200 OK\\r\\n…")) as server:
        ...server.url, server.requests, server.connections
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

Handler: TypeAlias = Callable[
    ["RawServer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
]


class RawServer:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.scheme = "http"
        self.requests: list[bytes] = []
        """Every request, head and body, byte for byte."""
        self.connections = 0
        """How many were ever made,"""
        self.open = 0
        """and how many of them the peer has not closed."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """A whole request; empty: the peer hung up."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request

    async def closed(self) -> None:
        """Returns when no connection is open any more."""
        while self.open:  # noqa: ASYNC110 - the peer's doing, there is no event for it
            await asyncio.sleep(0.001)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            await self._handler(self, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over; asyncio's own callback would report this
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


@asynccontextmanager
async def raw_server(
    handler: Handler, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    server = RawServer(handler)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    server.scheme = "https" if tls else "http"
    try:
        yield server
    finally:
        listening.close()
        server.stop()
        while server.open:  # noqa: ASYNC110 - until the handlers have noticed
            await asyncio.sleep(0)


def answering(*answers: bytes, then_close: bool = False) -> Handler:
    """Gives these answers one after the other, the last one again and again; over as many
    connections as it takes, unless each is closed after an answer."""
    given = 0

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal given
        while await server.read(reader):
            writer.write(answers[min(given, len(answers) - 1)])
            given += 1
            await writer.drain()
            if then_close:
                writer.close()
                return

    return handler


def reply(body: bytes = b"{}", status: str = "200 OK", *headers: str) -> bytes:
    """A plain answer with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection by a reset, not by a farewell."""
    import socket
    import struct

    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def first_then(first: Handler) -> Handler:
    """The first connection is special, the others are answered well."""
    well = answering(reply(b"well"))

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await (first if server.connections == 1 else well)(server, reader, writer)

    return handler
