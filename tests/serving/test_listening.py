"""A server that stops accepting connections: none that was made is lost, and new ones are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.waiting import PATIENCE, until

from anaphora.errors import Io, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.serving.listening import SocketServer

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Handler:
    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.release.set()

    async def handle(self, exchange: HttpExchange) -> None:
        await self.release.wait()
        await exchange.respond(CompleteResponse(200, {}, b"answered"))

    def error(self, _: HttpExchange, problem: Upstream) -> CompleteResponse:
        return CompleteResponse(problem.status or 500, {}, str(problem).encode())


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test in an event loop, and closes its clients."""

    async def work() -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await main()
        finally:
            for client in Client.made:
                client.writer.close()
            Client.made.clear()

    asyncio.run(work())


class Client:
    made: ClassVar[list[Client]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.made.append(self)

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self) -> str:
        self.writer.write(REQUEST)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self.reader.readexactly(len("answered"))
        return head


def served(handler: Handler | None = None) -> SocketServer:
    app = ServedApp(handler or Handler(), HostGuard("127.0.0.1"))
    return SocketServer.at_port(app, host="127.0.0.1")


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def test_open_connections_are_served_and_new_ones_refused() -> None:
    async def main() -> None:
        server = served()
        port = server.port
        assert await is_refused(port)  # it is bound, and does not listen
        await server.listen()
        kept, used = await Client.connect(port), await Client.connect(port)
        assert "connection: close" not in await used.get()
        server.connections.ends_each = lambda: True
        await server.stop_listening()
        assert await is_refused(port)
        assert "connection: close" in await used.get()
        assert await used.reader.read() == b""
        assert "connection: close" in await kept.get()
        await until(lambda: server.close_idle(1000.0) == 0)
        await server.listen()  # at the same port
        server.connections.ends_each = lambda: False
        again = await Client.connect(port)
        assert "connection: close" not in await again.get()
        await server.close()
        assert await is_refused(port)

    run(main)


def test_connections_that_wait_to_be_accepted_are_served() -> None:
    """Closing the socket alone would reset them."""

    async def main() -> None:
        server = served()
        await server.listen()
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for client in clients:  # made by the system; the event loop has accepted none so far
            client.sendall(REQUEST)
        server.connections.ends_each = lambda: True
        await server.stop_listening()
        await until(lambda: server.close_idle(1000.0) == 0)
        for client in clients:
            with client:
                assert client.recv(65_536).endswith(b"answered")
        await server.close()

    run(main)


def test_only_idle_connections_are_closed() -> None:
    async def main() -> None:
        handler = Handler()
        server = served(handler)
        await server.listen()
        busy, idle = await Client.connect(server.port), await Client.connect(server.port)
        await busy.get()
        handler.release.clear()
        answer = asyncio.create_task(busy.get())
        await until(lambda: any(one.idle_since is None for one in server.connections.open))
        await until(lambda: len(server.connections.open) == 2)
        assert server.close_idle(1000.0) == 2  # none has been idle for so long
        server.close_idle(0.0)
        assert await idle.reader.read() == b""
        await until(lambda: len(server.connections.open) == 1)
        handler.release.set()
        await answer
        await server.close()

    run(main)


def test_port_that_another_program_has_taken_is_named() -> None:
    async def main() -> None:
        server = served()
        port = server.port
        await server.listen()
        await server.stop_listening()
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(
                Io, match=f"cannot listen at 127.0.0.1:{port}: .*choose another port, or 0"
            ):
                await server.listen()
        assert await is_refused(port)
        await server.listen()
        assert not await is_refused(port)
        await server.close()

    run(main)


def test_unix_socket_stops_listening_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        app = ServedApp(Handler(), HostGuard("127.0.0.1"))
        server = SocketServer.at_path(app, tmp_path / "test.sock")
        await server.listen()
        client = Client(*await asyncio.open_unix_connection(tmp_path / "test.sock"))
        await server.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(tmp_path / "test.sock")
        await client.get()
        await server.close()

    run(main)
