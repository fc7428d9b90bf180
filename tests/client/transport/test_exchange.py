"""Connections are shared, answers are not: whatever came before on a connection, and however others
ended, a request gets its own answer, and all of it."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from support.raw_server import Handler, RawServer, answering, raw_server, reply
from support.sending import outgoing

from anaphora import errors
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.client.transport.over_aiohttp.exchange import PIECE


async def ask(transport: AiohttpTransport, request: object) -> bytes:
    answer = await transport.send(request)  # type: ignore[arg-type]
    try:
        return await answer.read()
    finally:
        await answer.close()


def first_then(first: Handler) -> Handler:
    """The first connection is special, the others are answered well."""
    well = answering(reply(b"well"))

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await (first if server.connections == 1 else well)(server, reader, writer)

    return handler


# ── What nobody had asked for ────────────────────────────────────────────────────────────────────

STRAYS = {
    "an answer": reply(b"stray"),
    "a farewell": b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"stray stray\r\n\r\n",
}


def saying_more(stray: bytes, pause: float) -> Handler:
    """Answers, and says something else after a pause."""

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        if pause:
            writer.write(reply(b"first"))
            await asyncio.sleep(pause)
            writer.write(stray)
        else:
            writer.write(reply(b"first") + stray)
        await reader.read()

    return handler


@pytest.mark.parametrize(
    "stray, pause",
    [
        ("an answer", 0),
        ("an answer", 0.02),
        ("a farewell", 0),
        ("a farewell", 0.02),
        ("no HTTP", 0.02),
    ],
)
def test_what_nobody_asked_for_is_nobodys_answer(stray: str, pause: float) -> None:
    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(first_then(saying_more(STRAYS[stray], pause))) as server:
            assert await ask(transport, outgoing(server.url)) == b"first"
            await asyncio.sleep(0.05)
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 2
            await transport.close()

    asyncio.run(main())


def test_an_answer_with_nonsense_behind_it_is_none() -> None:
    """The parser gives both up; better no answer than one from such a server."""

    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(first_then(saying_more(STRAYS["no HTTP"], 0))) as server:
            with pytest.raises(errors.Transport, match="the answer is not HTTP"):
                await ask(transport, outgoing(server.url))
            assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\n"]
)
def test_what_is_said_before_the_answer_is_passed_over(before: bytes) -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        async with raw_server(answering(before * 2 + reply(b"well", "201 Made"))) as server:
            for _ in range(2):
                answer = await transport.send(outgoing(server.url))
                assert (answer.status, await answer.read()) == (201, b"well")
            assert server.connections == 1
            await transport.close()

    asyncio.run(main())


def test_a_connection_that_speaks_something_else_from_now_on_is_not_kept() -> None:
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
    "method, said",
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("POST", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
        ("POST", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body_leaves_a_connection_that_serves_on(
    method: str, said: bytes
) -> None:
    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(answering(said, said, reply(b"well"))) as server:
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
def test_a_body_of_any_size_is_sent_whole(secure: bool, tmp_path: Path) -> None:
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


class Narrow(AiohttpTransport):
    """Hardly anything of a request fits into the buffers below us."""

    def _socket(self, address: object) -> socket.socket:
        sock = super()._socket(address)  # type: ignore[arg-type]
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
def test_a_server_that_takes_its_time_to_read(size: int) -> None:
    async def main() -> None:
        transport = Narrow()
        async with raw_server(narrow_and_late) as server:
            body = random.Random(size).randbytes(size)
            # The answer's time does not run while the request is still being taken.
            request = outgoing(server.url, body, first_byte=5.0)
            assert await ask(transport, request) == body
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True], ids=["read", "streamed"])
def test_a_long_request_may_be_refused_before_all_of_it_was_read(streamed: bool) -> None:
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
            # What is left of it is not sent, so nothing else may follow on that connection.
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 2
            await transport.close()
            await server.closed()

    asyncio.run(main())


# ── Answers that nobody wants any more ───────────────────────────────────────────────────────────


def test_an_answer_that_is_forgotten_closes_its_connection() -> None:
    async def half(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf")
        await reader.read()

    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(first_then(half)) as server:
            answer = await transport.send(outgoing(server.url))
            del answer
            gc.collect()
            await server.closed()
            assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())


def test_a_get_goes_past_every_kept_connection_that_had_gone() -> None:
    async def once(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The first three answer once and hang up when they hear more."""
        special = server.connections <= 3
        await server.read(reader)
        await asyncio.sleep(0.02)
        writer.write(reply(b"well"))
        if special:
            await server.read(reader)
            return
        await answering(reply(b"well"))(server, reader, writer)

    async def main() -> None:
        transport = AiohttpTransport()
        async with raw_server(once) as server:
            await asyncio.gather(*(ask(transport, outgoing(server.url)) for _ in range(3)))
            assert server.connections == 3
            assert await ask(transport, outgoing(server.url, b"", method="GET")) == b"well"
            assert server.connections == 4
            await transport.close()

    asyncio.run(main())


async def echoes_in_pieces(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    chance = random.Random(server.connections)
    while request := await server.read(reader):
        server.requests.clear()
        body = request.partition(b"\r\n\r\n")[2]
        said = reply(body)
        if chance.random() < 0.5:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            said = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        at = 0
        while at < len(said):
            size = chance.choice((1, 7, 100, 5000))
            writer.write(said[at : at + size])
            at += size
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            return  # hangs up after this answer, without a word


@pytest.mark.parametrize("seed", range(6))
def test_among_many_everyone_gets_their_own_answer(seed: int) -> None:
    """Some are cancelled at any moment, some stop reading, some connections go; every answer that
    is complete is the right one, and the pool is as large as ever afterwards."""

    async def main() -> int:
        chance = random.Random(seed)
        transport = AiohttpTransport(connections=4)
        complete = 0

        async def one(number: int, kind: str) -> None:
            nonlocal complete
            body = f"{number}:".encode() + chance.randbytes(chance.choice((1, 300, 20_000)))
            for _ in range(9):
                try:
                    answer = await transport.send(outgoing(server.url, body))
                    try:
                        if kind == "leaves early":
                            assert body.startswith(await anext(answer))
                            return
                        assert await answer.read() == body
                        complete += 1
                        return
                    finally:
                        await answer.close()
                except errors.Transport as problem:
                    if problem.phase != "send":  # a kept connection had gone
                        raise

        async with raw_server(echoes_in_pieces) as server:
            tasks = []
            for number in range(120):
                kind = chance.choice(("reads",) * 4 + ("leaves early", "is cancelled"))
                task = asyncio.create_task(one(number, kind))
                tasks.append(task)
                if kind == "is cancelled":
                    asyncio.get_running_loop().call_later(chance.random() / 10, task.cancel)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError), result
            fours = [await transport.send(outgoing(server.url, b"x", connect=5.0)) for _ in "1234"]
            for answer in fours:
                await answer.close()
            await transport.close()
            await server.closed()
        return complete

    assert asyncio.run(main()) >= 60
