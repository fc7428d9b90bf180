"""A running emulator: Granian in a thread, or in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from granian.constants import Interfaces
from granian.server.embed import Server

from anaphora.errors import Io

from .app import App
from .engine import EmulatorOptions, Engine

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
