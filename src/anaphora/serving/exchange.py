"""One request and its response over ASGI: a body read within limits, and waits that end with the
connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec

from anaphora.client.transport.timer import Deadline, DeadlinePassed, SharedTimer
from anaphora.errors import RequestRejected, TooLarge

T = TypeVar("T")

#: The `type` of the message that holds a piece of a body.
_BODY = "http.request"


class BodyLimits(msgspec.Struct, frozen=True):
    """A body may be `size` bytes long. It must be complete within `seconds`, plus a second for
    every `rate` bytes that arrived. A client that reads none of the response for `write_seconds` is
    disconnected."""

    size: int = 128 * 1024 * 1024
    seconds: float = 30.0
    rate: int = 64 * 1024
    write_seconds: float | None = None


class ConnectionEnded(Exception):
    """Nothing more can be sent."""


class ClientDisconnected(ConnectionEnded):
    """The client closed the connection."""


class UploadAborted(ClientDisconnected):
    """The body ended before it was complete."""


class ServerStopping(ConnectionEnded):
    """The server is stopping, and the response would have waited longer."""


class SlowReader(ClientDisconnected):
    """The client does not read the response."""


class ConnectionCut(ConnectionEnded):
    """The handler aborts the connection in the middle of a response."""


class CompleteResponse(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class BodyAccount(Protocol):
    """Counts the bytes of a body against a budget of the server."""

    def add(self, size: int) -> None:
        """Raises `AnaphoraError` if the budget is used up."""

    def end(self) -> None: ...


class HttpExchange:
    """A request, its response, and whether that has begun."""

    __slots__ = (
        "_ended", "_limits", "_reading", "_reason", "_send", "_timer", "_unread", "_watcher",
        "_working", "_writer", "_writing_since",
        "account", "header_pairs", "headers", "max_body", "method", "path", "query_string",
        "receive", "response_headers", "scope", "started", "status",
    )  # fmt: skip

    def __init__(
        self, scope: Any, receive: Any, send: Any, limits: BodyLimits, timer: SharedTimer | None
    ) -> None:
        """`timer` is that of the event loop; without one, nothing can be read."""
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        #: All of them, with duplicates and in their order.
        self.header_pairs: list[tuple[str, str]] = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in scope["headers"]
        ]
        self.headers: dict[str, str] = dict(self.header_pairs)
        #: Sent with every response, including those written by the server itself.
        self.response_headers: dict[str, str] = {}
        self.started = False
        #: Status of the response; 0 until it begins.
        self.status = 0
        self.receive = receive
        self._send = send
        self._limits = limits
        #: Maximum size that `read_body` reads; a handler may lower it.
        self.max_body = limits.size
        #: Counts the bytes as they arrive.
        self.account: BodyAccount | None = None
        self._ended: asyncio.Event | None = None
        self._reason: type[ConnectionEnded] | None = None
        self._unread = (
            self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        )
        self._timer = timer
        self._reading: Deadline | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None
        self._writer: asyncio.Task[Any] | None = None
        self._writing_since = 0.0

    # ── The request ──────────────────────────────────────────────────────────────────────────────

    async def read_body(self) -> bytes:
        """The whole body. Raises `TooLarge`, `RequestRejected` if it takes too long, and
        `UploadAborted`."""
        declared = self.headers.get("content-length", "")
        if declared.isascii() and declared.isdecimal() and _exceeds(declared, self.max_body):
            raise self._too_large()
        assert self._timer is not None
        deadline = Deadline(self._limits.seconds, self._timer)
        return await self._within(deadline, self._collected(deadline, self._timer))

    async def read_piece(self) -> tuple[bytes, bool]:
        """A piece of the body as it arrives, and whether more follow. No limits: for a body that is
        forwarded, never collected. Raises `UploadAborted` and `ServerStopping`."""
        if self._reason is not None:
            raise self._reason
        assert self._timer is not None
        message = await self._within(Deadline(inf, self._timer), self._next_piece())
        return message.get("body", b""), message.get("more_body", False)

    async def _collected(self, deadline: Deadline, timer: SharedTimer) -> bytes:
        """All pieces; the deadline moves with the bytes that arrive."""
        limits = self._limits
        body: bytes = (await self._next_piece()).get("body", b"")
        if self._unread:
            # Pieces may be one byte each, so they are joined immediately.
            collected, started = bytearray(body), timer.loop.time()
            while self._unread and len(collected) <= self.max_body:
                allowed = limits.seconds + len(collected) / limits.rate
                timer.begin_at(deadline, started + allowed)
                collected += (await self._next_piece()).get("body", b"")
            body = bytes(collected)
        if len(body) > self.max_body:
            raise self._too_large()
        return body

    async def _next_piece(self) -> Any:
        message = await self.receive()
        if message["type"] != _BODY:
            raise UploadAborted
        self._unread = message.get("more_body", False)
        if self.account is not None:
            self.account.add(len(message.get("body", b"")))
        return message

    async def _within(self, deadline: Deadline, reading: Coroutine[Any, Any, T]) -> T:
        self._reading = deadline
        try:
            return await deadline.wait(reading)
        except DeadlinePassed:
            if self._reason is not None:
                raise self._reason from None
            raise RequestRejected("the request body took too long to arrive", status=408) from None
        finally:
            self._reading = None

    def end_reading(self) -> None:
        """The body has been decoded, and no longer counts against a budget."""
        if self.account is not None:
            self.account.end()

    def _too_large(self) -> TooLarge:
        size = self.max_body
        return TooLarge(f"the request body is larger than {size:,} bytes", status=413)

    # ── The response ─────────────────────────────────────────────────────────────────────────────

    async def send(self, message: Any) -> None:
        """Sends an ASGI message of the response."""
        self.started = True
        if self._limits.write_seconds is None:
            await self._send(message)
            return
        self._writer = task = asyncio.current_task()
        self._writing_since = time.monotonic()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._writer is not None or task is None or task.uncancel() > 0:
                raise
            self._reason = self._reason or SlowReader
            raise SlowReader from None
        finally:
            self._writer = None

    def end_slow_write(self) -> None:
        """Ends a write that has waited too long for the client."""
        seconds, task = self._limits.write_seconds, self._writer
        if task is None or seconds is None:
            return
        if time.monotonic() - self._writing_since > seconds:
            self._writer = None
            task.cancel()

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.started, self.status = True, status
        if self.response_headers:
            headers = {**headers, **self.response_headers}
        if self._unread:
            # Servers do not read the rest: the client must not send another request after it.
            headers = {**headers, "connection": "close"}
        pairs = [(name.encode("latin-1"), value.encode()) for name, value in headers.items()]
        # It waits for no reader: servers send it with the first piece.
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    def write(self, data: bytes, *, more: bool = False) -> Awaitable[None]:
        """To be awaited at once."""
        return self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(self, response: CompleteResponse) -> None:
        """Sends a whole response."""
        size = str(len(response.body))
        await self.start(response.status, {**response.headers, "content-length": size})
        await self.write(response.body)

    async def wait(self, seconds: float) -> None:
        """Waits; raises `ClientDisconnected` or `ServerStopping` if that happens meanwhile."""
        if self._ended is None:
            self._ended = asyncio.Event()
            self.watch()
        if self._reason is None:
            try:
                await asyncio.wait_for(self._ended.wait(), seconds)
            except TimeoutError:
                return
        raise self._reason or ConnectionEnded

    def watch(self) -> None:
        """From now on, detects when the client disconnects; the body has been read."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    def watch_later(self, seconds: float) -> None:
        """The same after some time: most requests are answered by then, and need no task for it. An
        earlier disconnect is detected then."""
        assert self._timer is not None
        self._timer.begin(self, seconds)

    def expire(self) -> None:
        """For the timer: it is time to watch."""
        self.watch()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled if the client disconnects (see `watch`) or the
        server stops; then raises `ClientDisconnected` or `ServerStopping`."""
        if self._reason is not None:
            work.close()
            raise self._reason
        outer, task = self._working, asyncio.current_task()
        assert task is not None, "handlers run in a task"
        self._working = task
        before = task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_interrupted() or task.uncancel() > before:
                raise
            raise self._reason or ConnectionEnded from None
        finally:
            self._working = outer if self._reason is None else None

    def _is_interrupted(self) -> bool:
        """Whether only `_end` cancelled the work."""
        return self._reason is not None and self._working is None

    def end_upload(self) -> None:
        """The client disconnected within the body, as the reader of the body found."""
        self._end(UploadAborted)

    async def _watch(self) -> None:
        while (await self.receive())["type"] == _BODY:
            pass
        self._end(ClientDisconnected)

    # ── The end ──────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Ends a wait for the request's body or for the response, now or later."""
        self.disconnect(ServerStopping)

    def disconnect(self, reason: type[ConnectionEnded]) -> None:
        """Ends the work of `run` and any wait, with `reason`."""
        self._end(reason)
        if self._reading is not None:
            self._reading.expire()

    def close(self) -> None:
        self.end_reading()
        if self._timer is not None:
            self._timer.end(self)
        if self._watcher is not None:
            self._watcher.cancel()

    def _end(self, reason: type[ConnectionEnded]) -> None:
        self._reason = self._reason or reason
        if self._ended is not None:
            self._ended.set()
        if self._working is not None:
            self._working.cancel()
            self._working = None


def _exceeds(digits: str, limit: int) -> bool:
    """Compares without parsing a number of any length."""
    return len(digits) > 18 or int(digits) > limit
