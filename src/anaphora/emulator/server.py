"""A running emulator: its ASGI application and control routes, served by Granian in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pkgutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from anaphora.errors import Io

from .engine import EmulatorOptions, Engine
from .exchange import EmulatorRequest, EmulatorResponse

#: The root of the control routes: the page, the journal, the clock.
CONTROL = "/_emulator"
#: The page runs only its own script, and connects only to its own server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
#: No provider takes a longer body.
_MAX_BODY = 128 * 1024 * 1024
#: Seconds until a hanging connection is closed; no client waits longer.
_HANG_SECONDS = 900.0
#: How often `close` checks for open responses, every hundredth of a second.
_CLOSE_CHECKS = 100
#: Seconds to wait for the server to start or stop.
_START_SECONDS = 10.0
#: Seconds that Granian's threads may take to end.
_THREADS_SECONDS = 0.1


class Emulator:
    def __init__(self, engine: Engine, host: str, port: int) -> None:
        self.engine = engine
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def advance(self, seconds: float) -> None:
        """Moves the virtual clock, so that cache entries expire without waiting."""
        self.engine.offset += seconds

    def reset(self) -> None:
        self.engine.reset()

    def requests(self) -> list[dict[str, Any]]:
        """All calls, the newest first."""
        return self.engine.journal.entries()


@contextlib.contextmanager
def running(
    options: EmulatorOptions | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[Emulator]:
    """An emulator in its own thread, until the block ends."""
    emulator = Emulator(Engine(options), host, port or free_port(host))
    app, loop = App(emulator.engine), asyncio.new_event_loop()
    server: Any = Server(
        app,
        address=host,
        port=emulator.port,
        interface=Interfaces.ASGINL,
        websockets=False,
        log_enabled=False,
        backlog=1024,
    )

    async def run() -> None:
        await server.serve()
        # Its threads still need the interpreter: one that is shutting down aborts the process.
        await asyncio.sleep(_THREADS_SECONDS)

    async def stop() -> None:
        await app.close()
        server.stop()

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, name="anaphora-emulator", daemon=True)
    thread.start()
    try:
        _wait_until_started(emulator, thread)
        yield emulator
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                asyncio.run_coroutine_threadsafe(stop(), loop)
        thread.join(_START_SECONDS)


def serve(
    options: EmulatorOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    ready: Callable[[Emulator], None] | None = None,
) -> None:
    """An emulator in the foreground, until it is interrupted. It runs in a thread too: Granian's
    own threads must end before the interpreter does."""
    free_port(host, port)
    interrupted = threading.Event()
    handlers = {
        name: signal.signal(name, lambda *_: interrupted.set())
        for name in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with running(options, host=host, port=port) as emulator:
            if ready is not None:
                ready(emulator)
            interrupted.wait()
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)


def free_port(host: str, port: int = 0) -> int:
    """The port, or any free one; a readable error where it is in use."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            reason = os.strerror(problem.errno or 0)
            raise Io(f"cannot listen at {host}:{port}: {reason}") from None
        bound: int = probe.getsockname()[1]
        return bound


def _wait_until_started(emulator: Emulator, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and thread.is_alive():
        with contextlib.suppress(OSError):
            socket.create_connection((emulator.host, emulator.port), 0.2).close()
            return
        time.sleep(0.005)
    raise Io(f"the emulator did not start at {emulator.url}")


# ── The application ──────────────────────────────────────────────────────────────────────────────


class ConnectionCut(Exception):
    """Ends a connection in the middle of a response."""


class App:
    """ASGI without a router, which would cost more than most responses."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._control = control_routes(engine)
        self._closing = asyncio.Event()
        self._open_responses = 0

    async def close(self) -> None:
        """Ends waiting responses, and waits until all are sent."""
        self._closing.set()
        for _ in range(_CLOSE_CHECKS):
            if not self._open_responses:
                break
            await asyncio.sleep(0.01)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path in ("/", CONTROL) or path.startswith(CONTROL + "/"):
            await self._control(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            await _error("the body is too large", 413)(scope, receive, send)
            return
        query = scope["query_string"]
        request = EmulatorRequest(
            method=scope["method"],
            path=path,
            query=dict(parse_qsl(query.decode("latin-1"))) if query else {},
            headers={
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in scope["headers"]
            },
            body=body,
            now=time.time(),
        )
        self._open_responses += 1
        try:
            await self._send(self.engine.respond(request), send)
        finally:
            self._open_responses -= 1

    async def _send(self, response: EmulatorResponse, send: Any) -> None:
        if response.hang:
            await self._wait(_HANG_SECONDS)
            raise ConnectionCut
        cut = 0 if response.reset and response.cut_after is None else response.cut_after
        chunks = response.chunks if cut is None else response.chunks[:cut]
        headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
        if not response.stream:
            size = sum(len(chunk.data) for chunk in response.chunks)
            headers.append((b"content-length", b"%d" % size))
        if chunks and chunks[0].delay:
            await self._wait(chunks[0].delay)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        pending: list[bytes] = []
        for index, chunk in enumerate(chunks):
            if index and chunk.delay:
                # Chunks without a delay between them are sent together.
                body = b"".join(pending)
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await self._wait(chunk.delay)
                pending = []
            pending.append(chunk.data)
        more = cut is not None
        body = b"".join(pending)
        await send({"type": "http.response.body", "body": body, "more_body": more})
        if more:
            raise ConnectionCut

    async def _wait(self, seconds: float) -> None:
        """Waits; raises `ConnectionCut` when the server closes meanwhile."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return
        raise ConnectionCut


async def _read_body(receive: Any) -> bytes | None:
    """The whole body; None when it is too large."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        piece = message.get("body", b"")
        size += len(piece)
        if size > _MAX_BODY:
            return None
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# ── Control routes ───────────────────────────────────────────────────────────────────────────────


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """Moves the virtual clock by `advance` seconds, or to `set`, in seconds since 1970."""

    advance: float | None = None
    set: float | None = None


def control_routes(engine: Engine) -> Starlette:
    def now() -> float:
        return time.time() + engine.offset

    async def page(_: Request) -> Response:
        html = pkgutil.get_data(__package__, "page.html")
        headers = {"content-security-policy": _POLICY}
        return HTMLResponse(html, headers=headers)

    async def requests(request: Request) -> Response:
        last = request.query_params.get("last")
        if last is not None and not last.isdigit():
            return _error("last must be a whole number")
        entries = engine.journal.entries(None if last is None else int(last))
        return _json({"now": now(), "requests": entries})

    async def reset(request: Request) -> Response:
        if _is_foreign(request):
            return _error("only pages of this server may do that", 403)
        engine.reset()
        return _json({"reset": True})

    async def clock(request: Request) -> Response:
        if request.method == "POST":
            if _is_foreign(request):
                return _error("only pages of this server may do that", 403)
            try:
                change = msgspec.json.decode(await request.body(), type=ClockChange)
            except msgspec.DecodeError as problem:
                return _error(str(problem))
            if (change.advance is None) == (change.set is None):
                return _error("either `advance` or `set` is required")
            if change.advance is not None:
                engine.offset += change.advance
            elif change.set is not None:
                engine.offset = change.set - time.time()
        return _json({"now": now(), "offset": engine.offset})

    return Starlette(
        routes=[
            Route("/", RedirectResponse(CONTROL)),
            Route(CONTROL, page),
            Route(f"{CONTROL}/requests", requests),
            Route(f"{CONTROL}/reset", reset, methods=["POST"]),
            Route(f"{CONTROL}/clock", clock, methods=["GET", "POST"]),
        ]
    )


def _json(value: Any, status: int = 200) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status_code=status, media_type="application/json")


def _error(reason: str, status: int = 400) -> Response:
    return _json({"error": reason}, status)


def _is_foreign(request: Request) -> bool:
    """Whether another site's page sent the request. Only browsers send an origin."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("//")[2] != request.headers.get("host")
