"""A request and its response on one connection: long bodies, slow readers, early responses, and
responses without a body."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from support.http_requests import outgoing
from support.raw_server import RawServer, answering, first_then, raw_server, reply

from anaphora.client.transport.connections import Connections
from anaphora.client.transport.exchange import PIECE
from anaphora.client.transport.over_aiohttp import AiohttpTransport


async def ask(transport: AiohttpTransport, request: object) -> bytes:
    answer = await transport.send(request)  # type: ignore[arg-type]
    try:
        return await answer.read()
    finally:
        await answer.close()


# ── Heads that are none yet ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\n"]
)
def test_informational_responses_are_skipped(before: bytes) -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        async with raw_server(answering(before * 2 + reply(b"well", "201 Made"))) as server:
            for _ in range(2):
                answer = await transport.send(outgoing(server.url))
                assert (answer.status, await answer.read()) == (201, b"well")
            assert server.connections == 1
            await transport.close()

    asyncio.run(main())


def test_upgraded_connection_is_not_reused() -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        switch = b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\nother"
        async with raw_server(answering(switch)) as server:
            for _ in range(2):
                answer = await transport.send(outgoing(server.url))
                assert answer.status == 101
                await answer.close()
            assert server.connections == 2
            await transport.close()

    asyncio.run(main())


# ── Answers without a body ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "method, head",
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("POST", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
        ("POST", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ],
)
def test_response_without_body_keeps_the_connection(method: str, head: bytes) -> None:
    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(answering(head, head, reply(b"well"))) as server:
            body = b"" if method == "HEAD" else b"{}"
            assert await ask(transport, outgoing(server.url, body, method=method)) == b""
            answer = await transport.send(outgoing(server.url, body, method=method))
            assert [data async for data in answer] == []
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 1
            await transport.close()

    asyncio.run(main())


# ── Requests that take their time ────────────────────────────────────────────────────────────────


async def echoes(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while request := await server.read(reader):
        server.requests.clear()
        writer.write(reply(request.partition(b"\r\n\r\n")[2]))
        await writer.drain()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_body_of_any_size_is_sent_whole(secure: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    async def main() -> None:
        transport = AiohttpTransport(ca=str(tmp_path / "ca.pem"))
        async with raw_server(echoes, tls=context if secure else None) as server:
            for size in (1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 9 * PIECE + 7, 0, 5):
                body = random.Random(size).randbytes(size)
                request = outgoing(server.url, body, largest=1 << 22)
                assert await ask(transport, request) == body
            assert server.connections == 1
            await transport.close()

    asyncio.run(main())


class NarrowConnections(Connections):
    """Hardly anything of a request fits into the buffers below us."""

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        sock = super()._socket(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return sock


async def narrow_and_late(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    await echoes(server, reader, writer)


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_slow_reading_server_gets_the_whole_body(size: int) -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        transport._connections = NarrowConnections(None, 8)
        async with raw_server(narrow_and_late) as server:
            body = random.Random(size).randbytes(size)
            # The answer's time does not run while the request is still being taken.
            request = outgoing(server.url, body, first_byte=5.0)
            assert await ask(transport, request) == body
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True], ids=["read", "streamed"])
def test_early_response_to_a_long_request_is_read(streamed: bool) -> None:
    async def refuses(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(reply(b"too large", "413 Too Large"))
        while server.connections == 1:  # noqa: ASYNC110 - the peer's doing
            await asyncio.sleep(0.005)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while await reader.read(1_000_000):
            pass

    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(first_then(refuses)) as server:
            answer = await transport.send(outgoing(server.url, b"x" * 20_000_000))
            assert answer.status == 413
            data = b"".join([d async for d in answer]) if streamed else await answer.read()
            assert data == b"too large"
            await answer.close()
            # The rest is not sent, so the connection cannot be reused.
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 2
            await transport.close()
            await server.closed()

    asyncio.run(main())
