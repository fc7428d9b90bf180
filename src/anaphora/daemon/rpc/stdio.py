"""JSON-RPC on standard input and output: one message per line, sent to a daemon's socket.

Lines are sent at once, without waiting for earlier ones; responses are written as they arrive, with
the ids of their requests. Backpressure: while standard output is not read, nothing is read from the
daemon, nor by it from the provider. At the end of the input, running requests are still answered;
when the output is closed, they are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidRequest, Io, Transport, Unauthenticated
from anaphora.wording import visible_json

from .protocol import (
    INVALID_REQUEST,
    NULL,
    UNAVAILABLE,
    InvalidMessage,
    RpcBatch,
    RpcError,
    RpcRequest,
    read_message,
    write_batch,
    write_error,
)
from .service import CONNECTION, JSON, LINES

if TYPE_CHECKING:
    import aiohttp

#: Maximum number of concurrent requests; further lines wait.
MOST_RUNNING = 256
LONGEST_LINE = 128 * 1024 * 1024
_URL = "http://localhost/rpc"
_READ = 64 * 1024
_HEALTH = b'{"jsonrpc":"2.0","id":0,"method":"health"}'

Write = Callable[[bytes], Awaitable[None]]


class _HealthResult(msgspec.Struct):
    app: str | None = None


class _HealthResponse(msgspec.Struct):
    result: _HealthResult


async def bridge(
    socket: Path, *, app: str | None, token: Secret | None, source: int, sink: int
) -> None:
    """Connects descriptors to the daemon at a socket until the input ends. Raises `Io` if no daemon
    responds, `Unauthenticated` if it rejects the token, `InvalidRequest` if the token is another
    app's, and `BrokenPipeError` when the output is closed."""
    async with _connected(socket, token) as session:
        await _check(session, socket, app)
        try:
            async with asyncio.timeout(None) as scope:
                with calling_when_closed(sink, lambda: scope.reschedule(0)):
                    await relay_lines(session, read_lines(source), DescriptorWriter(sink).write)
        except TimeoutError:
            raise BrokenPipeError from None


@contextlib.asynccontextmanager
async def _connected(socket: Path, token: Secret | None) -> AsyncIterator[aiohttp.ClientSession]:
    import aiohttp

    headers = {"content-type": JSON, CONNECTION: secrets.token_hex(8)}
    if token is not None:
        headers["authorization"] = f"Bearer {token.reveal()}"
    session = aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(str(socket), limit=0, force_close=True),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )
    del headers
    async with session:
        yield session


async def _check(session: aiohttp.ClientSession, socket: Path, app: str | None) -> None:
    import aiohttp

    try:
        async with session.post(_URL, data=_HEALTH) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, OSError):
        raise Io(
            f"no daemon answers at {socket}; start one with: anaphora serve --home DIR"
        ) from None
    if status in (401, 403):
        try:
            reason = str(msgspec.json.decode(body)["error"]["message"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            reason = "the daemon does not accept the token"
        raise Unauthenticated(reason, status=status)
    try:
        found = msgspec.json.decode(body, type=_HealthResponse).result.app
    except msgspec.MsgspecError:
        raise Io(f"the server at {socket} is not a daemon (status {status})") from None
    if app is not None and found != app:
        owner = "an administrator" if found is None else f"the app {found!r}"
        raise InvalidRequest(f"the token is that of {owner}, not of {app!r}", path="--app")


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────


async def relay_lines(
    session: aiohttp.ClientSession, lines: AsyncIterator[bytes | None], write: Write
) -> None:
    """Sends every line and writes the responses. Ends when the input has ended and everything is
    answered. None stands for a line that was too long."""
    free = asyncio.Semaphore(MOST_RUNNING)

    async def answer(line: bytes) -> None:
        try:
            await _send_line(session, line, write)
        finally:
            free.release()

    try:
        async with asyncio.TaskGroup() as group:
            async for line in lines:
                if line is None:
                    reason = f"a line may have {LONGEST_LINE:,} bytes"
                    error = RpcError(INVALID_REQUEST, reason)
                    await write(write_error(NULL, error) + b"\n")
                elif line.strip():
                    await free.acquire()
                    group.create_task(answer(line))
    except BaseExceptionGroup as ended:
        raise ended.exceptions[0] from None


async def _send_line(session: aiohttp.ClientSession, line: bytes, write: Write) -> None:
    import aiohttp

    try:
        async with session.post(_URL, data=line) as response:
            if response.status == 204:
                return
            if response.status != 200:
                await write(_failures(line, _refused(response.status)))
            elif response.content_type == LINES:
                await _relay_stream(response, write)
            else:
                await write(await response.read() + b"\n")
    except (aiohttp.ClientError, Transport):
        await write(_failures(line, _unavailable("the daemon does not answer", retryable=True)))


async def _relay_stream(response: aiohttp.ClientResponse, write: Write) -> None:
    """Writes whole lines as they arrive. The last one is the response."""
    rest = bytearray()
    async for data in response.content.iter_any():
        end = data.rfind(b"\n") + 1
        if end:
            await write(bytes(rest + data[:end]))
            rest.clear()
        rest += data[end:]
    if rest:
        raise Transport("the stream broke", phase="body")


def _refused(status: int) -> RpcError:
    match status:
        case 413:
            return RpcError(INVALID_REQUEST, "the message is too large")
        case 401 | 403:
            return _unavailable("the daemon does not accept the token", kind="unauthenticated")
        case _:
            reason = f"the daemon does not accept requests now (status {status})"
            return _unavailable(reason, retryable=status in (429, 503))


def _unavailable(reason: str, *, kind: str = "unavailable", retryable: bool = False) -> RpcError:
    return RpcError(UNAVAILABLE, reason, {"kind": kind, "retryable": retryable})


def _failures(line: bytes, error: RpcError) -> bytes:
    """The error as a response to every request in a line; empty if all are notifications."""
    message = read_message(line)
    items = message.items if isinstance(message, RpcBatch) else (message,)
    errors = [response for item in items if (response := _failure(item, error)) is not None]
    if not errors:
        return b""
    return (write_batch(errors) if isinstance(message, RpcBatch) else errors[0]) + b"\n"


def _failure(item: RpcRequest | InvalidMessage, error: RpcError) -> bytes | None:
    return None if item.id is None else write_error(item.id, error)


# ── Descriptors ──────────────────────────────────────────────────────────────────────────────────


async def read_lines(source: int) -> AsyncIterator[bytes | None]:
    """The lines of a descriptor: a file, a pipe or a terminal. A daemon thread reads it, and not
    ahead of the consumed lines."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(1)

    def read() -> None:
        while True:
            wanted.acquire()
            try:
                data = os.read(source, _READ)
            except OSError:
                data = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, data)
            except RuntimeError:  # the loop has ended
                return
            if not data:
                return

    threading.Thread(target=read, name="anaphora-stdin", daemon=True).start()
    line = LineBuffer()
    while data := await pieces.get():
        for each in line.feed(data):
            yield each
        wanted.release()
    for each in line.feed(b"\n"):
        yield each


class LineBuffer:
    """Splits pieces into lines. A line that is too long becomes None."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._line = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end in a piece, without their line breaks."""
        *ended, rest = data.split(b"\n")
        lines = [self._end(each) for each in ended]
        self._add(rest)
        return lines

    def _end(self, data: bytes) -> bytes | None:
        self._add(data)
        line = None if self._too_long else bytes(self._line)
        self._line.clear()
        self._too_long = False
        return line

    def _add(self, data: bytes) -> None:
        if self._too_long or len(self._line) + len(data) > self._longest:
            self._too_long = True
            self._line.clear()
        else:
            self._line += data


class DescriptorWriter:
    """Writes to a descriptor in a thread, one piece after another. The caller waits if the reader
    is slow."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._on_terminal = os.isatty(sink)
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        view = memoryview(visible_json(data) if self._on_terminal else data)
        while view:
            view = view[os.write(self._sink, view) :]


@contextlib.contextmanager
def calling_when_closed(sink: int, closed: Callable[[], None]) -> Iterator[None]:
    """Calls `closed` when the reader of a pipe or socket has closed it. Files and terminals are not
    watched."""
    mode = os.fstat(sink).st_mode
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        yield
        return
    loop, poll = asyncio.get_running_loop(), select.poll()
    poll.register(sink, 0)  # errors and hang-ups are always reported

    def ready() -> None:
        loop.remove_reader(sink)
        if poll.poll(0):
            closed()

    loop.add_reader(sink, ready)
    try:
        yield
    finally:
        loop.remove_reader(sink)
