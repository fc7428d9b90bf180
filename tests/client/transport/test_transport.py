"""Requests and responses, against real servers and a real proxy."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import socket
import ssl
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.forward_proxy import forward_proxy
from support.http_requests import outgoing
from support.raw_server import RawServer, answering, raw_server, reply
from support.tables import each_row
from support.waiting import until

import anaphora
from anaphora import errors
from anaphora.client.transport.connections import READ_BYTES
from anaphora.client.transport.over_aiohttp import AiohttpTransport

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"


async def ask(transport: AiohttpTransport, request: Any) -> bytes:
    answer = await transport.send(request)
    try:
        return await answer.read()
    finally:
        await answer.close()


async def half(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The first answer stops halfway, the others are whole."""
    if server.connections > 1:
        return await answering(reply(b"well"))(server, reader, writer)
    await server.read(reader)
    writer.write(HALF)
    await reader.read()


def test_read_allocates_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    body, reads = os.urandom(300_000), []
    receive = socket.socket.recv

    def recorded(self: socket.socket, size: int, *flags: int) -> bytes:
        reads.append((self.getpeername()[1], size))
        return receive(self, size, *flags)

    async def main() -> tuple[int, bytes]:
        async with raw_server(answering(reply(body))) as server:
            transport = AiohttpTransport()
            received = await ask(transport, outgoing(server.url, b"body"))
            await transport.close()
            return server.port, received

    monkeypatch.setattr(socket.socket, "recv", recorded)
    port, received = asyncio.run(main())
    assert received == body
    assert {size for peer, size in reads if peer == port} == {READ_BYTES}


def test_request_is_sent_as_given() -> None:
    async def main() -> bytes:
        async with raw_server(answering(reply(b"well"))) as server:
            transport = AiohttpTransport()
            request = outgoing(
                f"{server.url}/a%3Ab%2Fc", b"body", headers={"Content-Type": "application/json"}
            )
            assert await ask(transport, request) == b"well"
            await transport.close()
            return server.requests[0]

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    sent = {name.lower(): value for name, value in (h.split(": ", 1) for h in headers)}
    assert len(sent) == len(headers)
    assert (line, body) == ("POST /a%3Ab%2Fc/canary/v1?key=canary HTTP/1.1", b"body")
    assert sent.pop("host").startswith("localhost:")
    assert sent.pop("accept-encoding").startswith("gzip, deflate")
    assert sent == {
        "accept": "*/*",
        "content-length": "4",
        "content-type": "application/json",
        "user-agent": f"anaphora/{anaphora.__version__}",
        "x-api-key": "canary",
    }


def test_user_agent_can_be_replaced() -> None:
    async def main() -> bytes:
        async with raw_server(answering(reply())) as server:
            transport = AiohttpTransport()
            await ask(transport, outgoing(server.url, headers={"user-agent": "app/1"}))
            await transport.close()
            return server.requests[0]

    head = asyncio.run(main())
    assert b"app/1" in head
    assert b"anaphora" not in head


def test_headers_are_read_in_lower_case() -> None:
    async def main() -> None:
        response = reply(b"", "429 Slow", "Retry-After: 3", "X-Many: a", "X-MANY: b")
        async with raw_server(answering(response)) as server:
            transport = AiohttpTransport()
            answer = await transport.send(outgoing(server.url))
            assert answer.status == 429
            assert dict(answer.headers) == {
                "content-length": "0",
                "retry-after": "3",
                "x-many": "a, b",
            }
            assert await answer.read() == b""
            await answer.close()
            await answer.close()  # may be called again
            await transport.close()

    asyncio.run(main())


def test_connections_are_kept() -> None:
    async def main() -> None:
        async with raw_server(answering(reply(b"well"))) as server:
            transport = AiohttpTransport()
            for _ in range(5):
                assert await ask(transport, outgoing(server.url)) == b"well"
            assert (server.connections, len(server.requests)) == (1, 5)
            await transport.close()
            await server.closed()

    asyncio.run(main())


def test_no_cookies_and_no_redirects() -> None:
    async def main() -> None:
        moved = reply(b"", "307 Moved", "Location: /elsewhere", "Set-Cookie: a=b")
        async with raw_server(answering(moved)) as server:
            transport = AiohttpTransport()
            for _ in range(2):
                answer = await transport.send(outgoing(server.url))
                assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")
                await answer.close()
            assert len(server.requests) == 2
            assert b"cookie" not in server.requests[1].lower()
            await transport.close()

    asyncio.run(main())


def test_no_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        async with raw_server(answering(reply(b"well"))) as server:
            transport = AiohttpTransport()
            assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())


def test_compressed_responses_are_decompressed() -> None:
    async def main() -> None:
        packed = reply(gzip.compress(b"well" * 1000), "200 OK", "Content-Encoding: gzip")
        async with raw_server(answering(packed)) as server:
            transport = AiohttpTransport()
            assert await ask(transport, outgoing(server.url, largest=4000)) == b"well" * 1000
            with pytest.raises(errors.Transport, match="longer than 3,999 bytes"):
                await ask(transport, outgoing(server.url, largest=3999))
            await transport.close()

    asyncio.run(main())


@pytest.mark.long
def test_large_body_is_whole_and_not_copied() -> None:
    async def main() -> int:
        body = os.urandom(1 << 20) * 24
        async with raw_server(answering(reply(b"well"))) as server:

            async def swallow(
                server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
            ) -> None:
                await reader.readuntil(b"\r\n\r\n")
                left = len(body)
                while left:
                    left -= len(await reader.read(65536))
                writer.write(reply(b"well"))
                await reader.read()

            transport = AiohttpTransport()
            assert await ask(transport, outgoing(server.url, body)) == b"well"
            assert server.requests[0].endswith(b"\r\n\r\n" + body)
            server.requests.clear()
            async with raw_server(swallow) as other:
                gc.collect()
                tracemalloc.start()
                try:
                    assert await ask(transport, outgoing(other.url, body)) == b"well"
                    _, most = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
            await transport.close()
            return most

    # Both ends' buffers, and far from the body's 24 MB.
    assert asyncio.run(main()) < 6_000_000


# ── Connections that go ──────────────────────────────────────────────────────────────────────────


def test_kept_connection_closed_by_the_server_is_replaced() -> None:
    async def main() -> None:
        async with raw_server(answering(reply(b"well"), then_close=True)) as server:
            transport = AiohttpTransport()
            for _ in range(3):
                assert await ask(transport, outgoing(server.url)) == b"well"
                await server.closed()
                await asyncio.sleep(0.01)  # the farewell arrives
            assert server.connections == 3
            await transport.close()

    asyncio.run(main())


async def once_then_gone(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The first connection answers once, and hangs up when it hears more."""
    if server.connections > 1:
        return await answering(reply(b"well"))(server, reader, writer)
    await server.read(reader)
    writer.write(reply(b"first"))
    await server.read(reader)
    writer.close()


@pytest.mark.parametrize("method, again", [("POST", False), ("GET", True)])
def test_connection_closed_while_in_use(method: str, again: bool) -> None:
    """A POST is left to the retry policy, a GET is sent again by the HTTP library."""

    async def main() -> None:
        async with raw_server(once_then_gone) as server:
            transport = AiohttpTransport()
            assert await ask(transport, outgoing(server.url)) == b"first"
            body = b"" if method == "GET" else b"{}"
            request = outgoing(server.url, body, method=method)
            if again:
                assert await ask(transport, request) == b"well"
            else:
                with pytest.raises(
                    errors.Transport, match="the kept-alive connection was closed"
                ) as caught:
                    await ask(transport, request)
                assert (caught.value.phase, caught.value.retryable) == ("send", True)
                assert await ask(transport, request) == b"well"
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["head", "body", "between"])
def test_cancelling_closes_the_connection(where: str) -> None:
    async def silent(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        await reader.read()

    async def main() -> None:
        async with raw_server(silent if where == "head" else half) as server:
            transport = AiohttpTransport(connections=1)
            reached = asyncio.Event()

            async def call() -> None:
                if where == "head":
                    reached.set()
                answer = await transport.send(outgoing(server.url))
                try:
                    async for _ in answer:
                        reached.set()
                        if where == "between":
                            await asyncio.sleep(60)
                finally:
                    await answer.close()

            task = asyncio.create_task(call())
            await reached.wait()
            await until(lambda: server.requests, "the request arrives")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.closed()
            if where != "head":
                assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())


def test_partially_read_response_closes_its_connection() -> None:
    async def main() -> None:
        async with raw_server(half) as server:
            transport = AiohttpTransport(connections=1)
            answer = await transport.send(outgoing(server.url))
            await answer.close()
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 2
            await transport.close()

    asyncio.run(main())


# ── Closing ──────────────────────────────────────────────────────────────────────────────────────


def test_close_fails_requests_under_way_and_later_ones() -> None:
    async def main() -> None:
        async with raw_server(half) as server:
            transport = AiohttpTransport(connections=1)
            answer = await transport.send(outgoing(server.url))
            reading = asyncio.create_task(answer.read())
            waiting = asyncio.create_task(transport.send(outgoing(server.url)))
            await asyncio.sleep(0.01)
            await transport.close()
            with pytest.raises(errors.Transport, match="broke off"):
                await reading
            with pytest.raises(errors.Transport, match="the client was closed") as caught:
                await waiting
            assert not caught.value.retryable
            with pytest.raises(errors.Transport, match="the client is closed"):
                await transport.send(outgoing(server.url))
            await transport.close()
            await server.closed()

    asyncio.run(main())


def test_closing_before_any_request() -> None:
    asyncio.run(AiohttpTransport().close())


# ── TLS and proxies ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_custom_certificates(ca: str, tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with raw_server(answering(reply(b"well")), tls=tls) as server:
            transport = AiohttpTransport(ca=ca)
            for _ in range(2):
                assert await ask(transport, outgoing(server.url, b"x" * 1_000_000)) == b"well"
            assert server.connections == 1
            await transport.close()
            await server.closed()

    asyncio.run(main())


def test_through_a_proxy() -> None:
    async def main() -> None:
        async with (
            raw_server(answering(reply(b"well"))) as server,
            forward_proxy(password="user:word") as proxy,
        ):
            transport = AiohttpTransport(proxy=proxy.url)
            for _ in range(2):
                assert await ask(transport, outgoing(server.url)) == b"well"
            assert proxy.requests == [f"POST {server.url}/canary/v1?key=canary HTTP/1.1"]
            await transport.close()

    asyncio.run(main())


def test_through_a_tunnel(ca: str, tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with (
            raw_server(answering(reply(b"well")), tls=tls) as server,
            forward_proxy(password="user:word") as proxy,
        ):
            transport = AiohttpTransport(proxy=proxy.url, ca=ca)
            for _ in range(2):
                assert await ask(transport, outgoing(server.url)) == b"well"
            assert proxy.requests == [f"CONNECT localhost:{server.port} HTTP/1.1"]
            assert b"user" not in server.requests[0].lower().replace(b"user-agent", b"")
            await transport.close()

    asyncio.run(main())


# ── Invalid requests ─────────────────────────────────────────────────────────────────────────────


@each_row(
    "url",
    ["api.example/v1", "ftp://api.example", "http://", "http://a b", "http://ü.example", "/v1"],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        with pytest.raises(errors.InvalidRequest, match="url: not a URL"):
            await transport.send(outgoing(url))
        await transport.close()

    asyncio.run(main())


def test_header_with_a_line_break_is_rejected() -> None:
    async def main() -> None:
        async with raw_server(answering(reply(b"well"))) as server:
            transport = AiohttpTransport(connections=1)
            with pytest.raises(errors.InvalidRequest, match=r"^headers: invalid HTTP header"):
                await transport.send(outgoing(server.url, headers={"a": "canary\r\nb: c"}))
            assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())
