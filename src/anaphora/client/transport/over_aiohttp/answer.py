"""An answer as it comes, bounded in size and in silence."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from yarl import URL

from anaphora.client.transport import Outgoing
from anaphora.client.transport.patience import Patience
from anaphora.errors import Transport

from .addresses import place
from .parts import abort
from .problems import final, reason


class AiohttpAnswer:
    """An answer with its head; the body is read once, by `read` or by iteration."""

    __slots__ = (
        "__weakref__",
        "status",
        "_response",
        "_headers",
        "_url",
        "_idle",
        "_largest",
        "_taken",
        "_patience",
    )

    def __init__(
        self, response: aiohttp.ClientResponse, url: URL, outgoing: Outgoing, patience: Patience
    ) -> None:
        self.status = response.status
        self._response = response
        self._headers: dict[str, str] | None = None
        self._url = url
        self._idle = outgoing.timeouts.idle
        self._largest = outgoing.largest
        self._taken = 0
        self._patience = patience

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; what was said more than once is joined by commas."""
        if self._headers is None:
            headers: dict[str, str] = {}
            for name, value in self._response.headers.items():
                name = name.lower()
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
            self._headers = headers
        return self._headers

    async def read(self) -> bytes:
        # Not `response.read()`: that lifts the bound on what is decompressed at once.
        pieces = []
        while data := await self._next():
            pieces.append(data)
        return b"".join(pieces)

    def __aiter__(self) -> AiohttpAnswer:
        return self

    async def __anext__(self) -> bytes:
        if data := await self._next():
            return data
        raise StopAsyncIteration

    async def close(self) -> None:
        self._drop()

    def expire(self) -> None:
        self._response.content.set_exception(TimeoutError())

    async def _next(self) -> bytes:
        """The next piece; empty at the end."""
        content = self._response.content
        try:
            if content.is_eof():
                data = content.read_nowait()
            else:
                # Only the server's time is taken: while nobody reads, nobody waits.
                self._patience.begin(self, self._idle)
                try:
                    data = await content.readany()
                finally:
                    self._patience.end(self)
        except (aiohttp.ClientError, OSError, RuntimeError) as problem:
            self._drop()
            raise self._failure(problem) from None
        except BaseException:
            self._drop()
            raise
        self._taken += len(data)
        if self._taken > self._largest:
            self._drop()
            what = f"the answer is longer than {self._largest:,} bytes"
            raise final(f"{place(self._url)}: {what}", "body")
        return data

    def _drop(self) -> None:
        """A connection whose answer came to its end is back in the pool already; any other one is
        closed at once."""
        connection = self._response.connection
        if connection is not None:
            abort(connection.transport)
            self._response.close()

    def _failure(self, problem: Exception) -> Transport:
        where = place(self._url)
        if isinstance(problem, TimeoutError):
            what = f"nothing more of the answer came for {self._idle:g} s"
            return Transport(f"{where}: {what}", phase="idle")
        return Transport(f"{where}: the answer broke off ({reason(problem)})", phase="body")
