"""An answer as it comes, bounded in size and in silence."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from aiohttp.http import RawResponseMessage
from yarl import URL

from anaphora.client.transport import Outgoing
from anaphora.client.transport.patience import Patience
from anaphora.errors import Transport

from .addresses import place
from .exchange import Exchange
from .problems import final, reason


class AiohttpAnswer:
    """An answer with its head; the body is read once, by `read` or by iteration."""

    __slots__ = (
        "__weakref__",
        "status",
        "_exchange",
        "_message",
        "_content",
        "_headers",
        "_url",
        "_idle",
        "_largest",
        "_taken",
        "_patience",
    )

    def __init__(
        self,
        exchange: Exchange,
        message: RawResponseMessage,
        content: aiohttp.StreamReader,
        url: URL,
        outgoing: Outgoing,
        patience: Patience,
    ) -> None:
        self.status: int = message.code
        self._exchange = exchange
        self._message = message
        self._content = content
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
            for name, value in self._message.headers.items():
                name = name.lower()
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
            self._headers = headers
        return self._headers

    async def read(self) -> bytes:
        # Not `content.read()`: that lifts the bound on what is decompressed at once.
        data = await self._next()
        if self._content.at_eof():
            return data
        pieces = [data]
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
        content = self._content
        if content.is_eof() and content.exception() is None:
            self._exchange.release()
        else:
            self._exchange.abort()

    def __del__(self) -> None:
        # Nobody reads the rest; the loop may be gone as well.
        try:
            self._exchange.abort()
        except RuntimeError:
            pass

    def expire(self) -> None:
        self._content.set_exception(TimeoutError())

    async def _next(self) -> bytes:
        """The next piece; empty at the end."""
        content = self._content
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
            self._exchange.abort()
            raise self._failure(problem) from None
        except BaseException:
            self._exchange.abort()
            raise
        self._taken += len(data)
        if self._taken > self._largest:
            self._exchange.abort()
            what = f"the answer is longer than {self._largest:,} bytes"
            raise final(f"{place(self._url)}: {what}", "body")
        if content.at_eof():
            self._exchange.release()
        return data

    def _failure(self, problem: Exception) -> Transport:
        where = place(self._url)
        if isinstance(problem, TimeoutError):
            what = f"nothing more of the answer came for {self._idle:g} s"
            return Transport(f"{where}: {what}", phase="idle")
        return Transport(f"{where}: the answer broke off ({reason(problem)})", phase="body")
