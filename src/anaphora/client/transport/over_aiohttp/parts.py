"""What is put in place of aiohttp's own: a request's body, and the beginning of an answer."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary, ref

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from anaphora.client.config.values import Timeouts
from anaphora.client.transport.patience import Patience

from .problems import Lost, reason

#: Bodies up to this size go out in one write together with the headers, longer ones in such pieces.
PIECE = 128 * 1024


class Body(aiohttp.Payload):
    """A request's body, and the wait for the answer's first byte once it is written.

    Nothing is copied but what the socket does not take at once.
    """

    _value: bytes
    _headers = CIMultiDict({"Content-Type": "application/octet-stream"})  # where none was given
    _encoding = _filename = None
    _autoclose = True

    def __init__(self, method: str, value: bytes, timeouts: Timeouts, patience: Patience) -> None:
        # Not the base's: it would make headers for each body.
        self._value = value
        self._size = len(value)
        self._patience = patience
        self._transport: asyncio.WriteTransport | None = None
        self.timeouts = timeouts
        self.watched = method == "POST" and value != b""
        """Whether the first byte is waited for here. What aiohttp would send again by itself, or
        has no body, is left to its own timer."""
        self.expired: Exception | None = None

    def expire(self) -> None:
        self.expired = aiohttp.SocketTimeoutError()
        abort(self._transport)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        del content_length  # it is our own
        size = len(self._value)
        if size <= PIECE:
            await writer.write(self._value)
        else:
            view = memoryview(self._value)
            for start in range(0, size, PIECE):
                # A server may stop reading long before it should answer.
                async with asyncio.timeout(self.timeouts.idle):
                    await writer.write(view[start : start + PIECE])
        if self.watched:
            self._transport = writer.transport
            self._patience.begin(self, self.timeouts.first_byte)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)


class Watch:
    """Of one connection: tells the answer under way when it has gone.

    aiohttp does so itself, but for an answer whose coding is broken: there the reader would wait
    for more until it runs out of patience.
    """

    __slots__ = ("response",)
    response: ref[Response]

    def gone(self, closed: asyncio.Future[None]) -> None:
        cause = closed.exception()
        response = self.response()
        if response is None:
            return
        content = response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError(), cause or EOFError())


#: The connections on which an answer came before.
_WATCHES: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()


class Response(aiohttp.ClientResponse):
    """Tells a kept connection that had gone from a server that hung up on us."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        try:
            await super().start(connection)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as problem:
            is_written = self._writer is None
            abort(connection.transport)
            why = reason(problem)
            if not is_written:
                raise Lost("send", f"lost while sending ({why})") from problem
            if protocol in _WATCHES:
                raise Lost("send", f"the kept connection had gone ({why})") from problem
            raise Lost("first_byte", f"no answer came ({why})") from problem
        except BaseException:
            abort(connection.transport)
            raise
        watch = _WATCHES.get(protocol)
        if watch is None:
            watch = _WATCHES[protocol] = Watch()
            if (closed := protocol.closed) is not None:
                closed.add_done_callback(watch.gone)
        watch.response = ref(self)
        return self


def abort(transport: asyncio.WriteTransport | None) -> None:
    """Unlike `close` this does not wait until a peer takes what is still to be written."""
    if transport is not None:
        transport.abort()
