"""A small pooler in front of PostgreSQL, as PgBouncer is one: it answers logins by itself, and lends
its connections to clients for a transaction, or for a session. Trust authentication only."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


class _Peer:
    """A connection to a client or to PostgreSQL."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.settings = b""
        """What PostgreSQL answered at the login."""
        self._socket = connection
        self._received = b""

    async def read(self, size: int) -> bytes:
        while len(self._received) < size:
            piece = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            if not piece:
                raise ConnectionError("closed by the other side")
            self._received += piece
        found, self._received = self._received[:size], self._received[size:]
        return found

    async def read_message(self) -> tuple[bytes, bytes]:
        kind = await self.read(1)
        return kind, await self.read_body()

    async def read_body(self) -> bytes:
        return await self.read(struct.unpack("!I", await self.read(4))[0] - 4)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)


class TransactionPooler:
    """Every socket is kept from the moment it exists, and closed at the end."""

    def __init__(self, port: int, *, per_transaction: bool) -> None:
        self.port = 0
        self._to = port
        self._per_transaction = per_transaction
        self._idle: list[_Peer] = []
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(self, *exception: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        try:
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)
        finally:
            for one in self._sockets:
                one.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            self._sockets.append(client := self._listener.accept()[0])
            self._start(self._serve, client)

    def _start(
        self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        async def run() -> None:
            with suppress(ConnectionError):
                await work(*args)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, startup: bytes) -> _Peer:
        self._sockets.append(opened := socket.socket())
        server = _Peer(opened)
        await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", self._to))
        await server.send(struct.pack("!I", len(startup) + 4) + startup)
        while (found := await server.read_message())[0] != b"Z":
            assert found[0] != b"E", found[1]
            if found[0] == b"S":
                server.settings += _message(*found)
        return server

    async def _serve(self, accepted: socket.socket) -> None:
        with accepted:
            client = _Peer(accepted)
            startup = await client.read_body()
            server = self._idle.pop() if self._idle else await self._connect(startup)
            key = os.urandom(8)  # of its own: it is not the server's
            login = _message(b"R", struct.pack("!I", 0)) + server.settings + _message(b"K", key)
            await client.send(login + _message(b"Z", b"I"))
            lent: list[_Peer] = [server]
            if self._per_transaction:
                self._idle.append(lent.pop())
            await self._pass_on(client, lent, startup)

    async def _pass_on(self, client: _Peer, lent: list[_Peer], startup: bytes) -> None:
        answering: asyncio.Task[None] | None = None
        while (found := await client.read_message())[0] != b"X":
            if not lent:
                lent.append(self._idle.pop() if self._idle else await self._connect(startup))
            if answering is None or answering.done():
                answering = self._start(self._answer, lent, client)
            await lent[0].send(_message(*found))

    async def _answer(self, lent: list[_Peer], client: _Peer) -> None:
        """Until the transaction has ended: then the connection goes back."""
        while True:
            found = await lent[0].read_message()
            if found == (b"Z", b"I") and self._per_transaction:
                self._idle.append(lent.pop())
                await client.send(_message(*found))
                return
            await client.send(_message(*found))
