"""A small pooler in front of PostgreSQL, as PgBouncer is one: it answers logins by itself, and lends
its connections to clients for a transaction, or for a session. Trust authentication only."""

from __future__ import annotations

import asyncio
import os
import struct
from contextlib import suppress
from typing import Self


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


class _Server:
    """A connection to PostgreSQL, and what it said at its login."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.settings = b""

    @classmethod
    async def open(cls, port: int, startup: bytes) -> _Server:
        server = cls(*await asyncio.open_connection("127.0.0.1", port))
        server.writer.write(struct.pack("!I", len(startup) + 4) + startup)
        try:
            while (found := await _read(server.reader))[0] != b"Z":
                assert found[0] != b"E", found[1]
                if found[0] == b"S":
                    server.settings += _message(*found)
        except BaseException:  # such as a request to cancel a statement, which has no answer
            server.writer.close()
            with suppress(ConnectionError):
                await server.writer.wait_closed()
            raise
        return server


class TransactionPooler:
    def __init__(self, port: int, *, per_transaction: bool) -> None:
        self.port = 0
        self._to = port
        self._per_transaction = per_transaction
        self._idle: list[_Server] = []
        self._open: list[_Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._listener.close()
        for server in self._open:
            server.writer.close()
        # A connection that was accepted a moment ago gets its task in the next turns of the loop.
        await asyncio.sleep(0.05)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._open:
            with suppress(ConnectionError):
                await server.writer.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _connect(self, startup: bytes) -> _Server:
        self._open.append(server := await _Server.open(self._to, startup))
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = struct.unpack("!I", await reader.readexactly(4))[0]
        startup = await reader.readexactly(size - 4)
        server = self._idle.pop() if self._idle else await self._connect(startup)
        key = os.urandom(8)  # of its own: it is not the server's
        login = _message(b"R", struct.pack("!I", 0)) + server.settings + _message(b"K", key)
        writer.write(login + _message(b"Z", b"I"))
        lent: list[_Server] = [server]
        pump: asyncio.Task[None] | None = None
        if self._per_transaction:
            self._idle.append(lent.pop())
        while True:
            kind, body = await _read(reader)
            if kind == b"X":
                return
            if not lent:
                lent.append(self._idle.pop() if self._idle else await self._connect(startup))
            if pump is None or pump.done():
                pump = asyncio.create_task(self._answer(lent, writer))
                self._tasks.add(pump)
            lent[0].writer.write(_message(kind, body))

    async def _answer(self, lent: list[_Server], writer: asyncio.StreamWriter) -> None:
        """Until the transaction has ended: then the connection goes back."""
        while True:
            kind, body = await _read(lent[0].reader)
            if (kind, body) == (b"Z", b"I") and self._per_transaction:
                self._idle.append(lent.pop())
                writer.write(_message(kind, body))
                return
            writer.write(_message(kind, body))
