"""Granian in this process: in a thread for tests and notebooks, or in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from granian.constants import Interfaces
from granian.server.embed import Server

from anaphora.emulator.core.engine import Engine
from anaphora.emulator.core.options import Options
from anaphora.errors import Io

from .app import App

#: How long to wait for a server that does not come up.
_PATIENCE = 10.0
#: How long Granian's threads may take to end.
_LAST_WORDS = 0.1
#: How many more objects than there were make the foreground server look for cycles.
_SELDOM = 20_000


class Emulator:
    """A running emulator."""

    def __init__(self, engine: Engine, host: str, port: int) -> None:
        self.engine = engine
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def advance(self, seconds: float) -> None:
        """Moves the virtual clock: lifetimes end without waiting."""
        self.engine.offset += seconds

    def reset(self) -> None:
        self.engine.reset()

    def requests(self) -> list[dict[str, Any]]:
        """Every call so far, the newest first."""
        return self.engine.journal.told()


@contextlib.contextmanager
def running(
    options: Options | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[Emulator]:
    """An emulator in a thread of its own, until the block ends."""
    emulator = Emulator(Engine(options), host, port or _free_port(host))
    serving = _Serving(emulator)
    thread = threading.Thread(target=serving.run, name="anaphora-emulator", daemon=True)
    thread.start()
    try:
        _wait_until_up(emulator, thread)
        yield emulator
    finally:
        serving.stop()
        thread.join(_PATIENCE)


def serve(
    options: Options | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    ready: Callable[[Emulator], None] | None = None,
) -> None:
    """An emulator in the foreground, until it is interrupted. It runs in a thread all the same:
    Granian's own threads must have ended before the interpreter does."""
    _check_free(host, port)
    ended = threading.Event()
    before = {
        name: signal.signal(name, lambda *_: ended.set())
        for name in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with running(options, host=host, port=port) as emulator, _seldom_collecting():
            if ready is not None:
                ready(emulator)
            ended.wait()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Rules and catalogs stay for as long as the process does, and answers leave hardly a cycle
    behind: looking for some at every turn costs more than it finds. Only for a process of our
    own."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _Serving:
    """One server on one event loop."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._app: App | None = None
        self._stopping: asyncio.Task[None] | None = None

    def run(self) -> None:
        asyncio.run(self._serve())

    def stop(self) -> None:
        loop = self._loop
        if loop is not None and self._server is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._close())

    async def _close(self) -> None:
        assert self._app is not None
        await self._app.close()
        self._server.stop()

    async def _serve(self) -> None:
        emulator = self._emulator
        self._loop = asyncio.get_running_loop()
        self._app = App(emulator.engine)
        self._server = Server(
            self._app,
            address=emulator.host,
            port=emulator.port,
            interface=Interfaces.ASGINL,
            websockets=False,
            log_enabled=False,
            backlog=1024,
        )
        await self._server.serve()
        # Its threads still hand over what they have, and need the interpreter for that: one that
        # is on its way out aborts the process.
        await asyncio.sleep(_LAST_WORDS)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _check_free(host: str, port: int) -> None:
    """A port that is taken is told in our own words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            reason = os.strerror(problem.errno or 0)
            raise Io(f"cannot listen at {host}:{port}: {reason}") from None


def _wait_until_up(emulator: Emulator, thread: threading.Thread) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and thread.is_alive():
        with contextlib.suppress(OSError):
            socket.create_connection((emulator.host, emulator.port), 0.2).close()
            return
        time.sleep(0.005)
    raise Io(f"the emulator did not come up at {emulator.url}")
