"""One request on one connection: writing it, and waiting for the head of its answer.

aiohttp's connector lends the connection, and its parser reads the answer. What a `ClientSession`
puts between them (cookies, redirects, signals, a task for every body) is not needed here, and costs
more than both.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage

from anaphora.client.config.values import Timeouts
from anaphora.client.transport.patience import Patience

#: Bodies up to this size go out in one write together with the head, longer ones in such pieces.
PIECE = 128 * 1024


class Watch:
    """Of one connection: tells the exchange under way when it has gone.

    aiohttp does so itself, but for an answer whose coding is broken: there the reader would wait
    for more until it runs out of patience.
    """

    __slots__ = ("exchange",)

    def __init__(self) -> None:
        self.exchange: Exchange | None = None


#: The connections on which a request was sent before.
Watches: TypeAlias = dict[ResponseHandler, Watch]


def watch(protocol: ResponseHandler, watches: Watches) -> Watch:
    """Has a new connection watched for as long as it lives."""
    made = Watch()
    if (closed := protocol.closed) is None:
        return made  # it has gone already, as whoever reads from it will be told
    watches[protocol] = made

    def gone(closed: asyncio.Future[None]) -> None:
        cause = closed.exception()
        del watches[protocol]
        if made.exchange is not None:
            made.exchange.break_off(cause or EOFError())

    closed.add_done_callback(gone)
    return made


class Exchange:
    """A request, then its answer. Ends with `release` or `abort`; both may be called again."""

    __slots__ = (
        "written",
        "_connection",
        "_protocol",
        "_watch",
        "_timeouts",
        "_patience",
        "_content",
        "_writing",
    )

    def __init__(
        self, connection: Connection, watch: Watch, timeouts: Timeouts, patience: Patience
    ) -> None:
        assert connection.protocol is not None
        self.written = False
        """Whether the whole request is out of our hands."""
        self._connection: Connection | None = connection
        self._protocol = connection.protocol
        self._watch = watch
        self._timeouts = timeouts
        self._patience = patience
        self._content: aiohttp.StreamReader | None = None
        self._writing: asyncio.Task[None] | None = None
        watch.exchange = self

    async def answer(
        self, method: str, head: bytes, body: bytes
    ) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Sends the request; returns the answer's head, and its body on its way."""
        protocol = self._protocol
        protocol.set_response_params(skip_payload=method == "HEAD", read_until_eof=True)
        self._write(head, body)
        try:
            while True:
                message, content = await protocol.read()
                if not 100 <= message.code < 200 or message.code == 101:
                    break
        finally:
            self._patience.end(self)
        self._content = content
        return message, content

    def release(self) -> None:
        """The answer was received to its end: the connection may serve again, if both sides want.

        Not if the answer came before the request was out: the rest of it is not sent any more.
        """
        connection = self._connection
        if connection is not None and self.written:
            self._connection = self._watch.exchange = None
            connection.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the connection; unlike its own `close` this does not wait until the peer takes
        what is still to be written."""
        connection = self._connection
        if connection is None:
            return
        self._connection = self._watch.exchange = None
        if self._writing is not None:
            self._writing.cancel()
        if connection.transport is not None:
            connection.transport.abort()
        connection.close()
        self.break_off(EOFError())

    def break_off(self, cause: BaseException) -> None:
        """No more of the answer will come."""
        content = self._content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError(), cause)

    def expire(self) -> None:
        self._protocol.set_exception(aiohttp.SocketTimeoutError())

    def _write(self, head: bytes, body: bytes) -> None:
        protocol = self._protocol
        if protocol.transport is None:
            return  # gone already, as reading will tell
        rest = memoryview(body)
        if len(body) <= PIECE:
            protocol.transport.write(head + body)
            if not protocol.writing_paused:
                self._sent()
                return
            rest = rest[:0]
        else:
            protocol.transport.write(head)
        self._writing = asyncio.create_task(self._write_on(rest))

    async def _write_on(self, rest: memoryview) -> None:
        """Goes on as the peer takes it. Meanwhile the answer is waited for already: a long request
        may be refused before all of it was read."""
        protocol = self._protocol
        try:
            while rest or protocol.writing_paused:
                async with asyncio.timeout(self._timeouts.idle):
                    await protocol._drain_helper()
                if protocol.transport is None:
                    return
                protocol.transport.write(rest[:PIECE])
                rest = rest[PIECE:]
        except TimeoutError as problem:
            protocol.set_exception(problem)
        except OSError:
            pass  # the connection has gone, as reading tells
        else:
            self._sent()

    def _sent(self) -> None:
        self.written = True
        if self._content is None:
            self._patience.begin(self, self._timeouts.first_byte)
