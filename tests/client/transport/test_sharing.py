"""Connections are shared, responses are not: a request gets its own response or an error, whatever
happened on the connection before."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from support.http_requests import outgoing
from support.raw_server import Handler, RawServer, answering, first_then, raw_server, reply

from anaphora import errors
from anaphora.client.transport.over_aiohttp import AiohttpTransport


async def ask(transport: AiohttpTransport, request: object) -> bytes:
    answer = await transport.send(request)  # type: ignore[arg-type]
    try:
        return await answer.read()
    finally:
        await answer.close()


# ── Unsolicited data ─────────────────────────────────────────────────────────────────────────────

STRAYS = {
    "an answer": reply(b"stray"),
    "a farewell": b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"stray stray\r\n\r\n",
}


def replying_with_stray(stray: bytes, send_now: asyncio.Event | None) -> Handler:
    """Replies, then sends stray bytes: at once, or when the event is set."""

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        if send_now is None:
            writer.write(reply(b"first") + stray)
        else:
            writer.write(reply(b"first"))
            await send_now.wait()
            writer.write(stray)
            send_now.clear()
        await reader.read()

    return handler


@pytest.mark.parametrize(
    "stray, later",
    [
        ("an answer", False),
        ("an answer", True),
        ("a farewell", False),
        ("a farewell", True),
        ("no HTTP", True),
    ],
)
def test_unsolicited_data_is_not_a_response(stray: str, later: bool) -> None:
    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        more = asyncio.Event() if later else None
        async with raw_server(first_then(replying_with_stray(STRAYS[stray], more))) as server:
            assert await ask(transport, outgoing(server.url)) == b"first"
            if more is not None:
                more.set()
                while more.is_set():  # noqa: ASYNC110 - until it is on its way
                    await asyncio.sleep(0)
            await asyncio.sleep(0.01)  # it arrives
            assert await ask(transport, outgoing(server.url)) == b"well"
            assert server.connections == 2
            await transport.close()

    asyncio.run(main())


def test_response_followed_by_garbage_is_rejected() -> None:
    """The parser gives both up; better no answer than one from such a server."""

    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(first_then(replying_with_stray(STRAYS["no HTTP"], None))) as server:
            with pytest.raises(errors.Transport, match="the response is not HTTP"):
                await ask(transport, outgoing(server.url))
            assert await ask(transport, outgoing(server.url)) == b"well"
            await transport.close()

    asyncio.run(main())


# ── Abandoned responses ─────────────────────────────────────────────────────────────────────────


def test_dropped_response_closes_its_connection() -> None:
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


def test_get_skips_closed_connections() -> None:
    async def once(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The first three reply once and close at the next request."""
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
        response = reply(body)
        if chance.random() < 0.5:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            response = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        at = 0
        while at < len(response):
            size = chance.choice((1, 7, 100, 5000))
            writer.write(response[at : at + size])
            at += size
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            return  # hangs up after this answer, without a word


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))]
)
def test_concurrent_requests_get_their_own_responses(seed: int) -> None:
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
