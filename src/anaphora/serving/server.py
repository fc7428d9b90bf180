"""A Granian server for one application, in its own thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import errno
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidRequest, Io, MissingExtra

T = TypeVar("T")
ServerKind: TypeAlias = Literal["granian", "asyncio"]

#: Seconds to wait for the server to start, and to stop.
_START_SECONDS, _STOP_SECONDS = 10.0, 10.0
#: Maximum seconds that a thread waits for one that computes. Granian's own thread passes every
#: request to the event loop, beside observers that compute: a tenth of Python's default. In the
#: daemon, the event loop does nearly all of the work, and more switches only cost.
_SWITCH_SECONDS: dict[ServerKind, float] = {"granian": 0.0005, "asyncio": 0.005}
#: New objects before the garbage collector runs: those of some hundred requests.
_YOUNG_OBJECTS = 50_000
#: Seconds between returns of freed memory to the system.
_TRIM_SECONDS = 2.0
#: Seconds that Granian's threads may take to end.
_THREADS_SECONDS = 0.1
#: Wanted limit of open files, if the system allows it.
_OPEN_FILES = 16_384
_LAST_PORT = 65_535
#: Seconds between two checks for signals.
_SIGNAL_SECONDS = 0.5
#: Wildcard addresses, and the address at which this machine reaches them.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class StoppableApp(Protocol):
    """An ASGI application that ends its open responses when the server stops."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    async def close(self) -> None: ...

    @property
    def takes_websockets(self) -> bool: ...


class ServerAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    scheme: str = "http"

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens at every address of this machine."""
        return self.host in _WILDCARDS

    @property
    def url(self) -> str:
        """The URL at which this machine reaches the server."""
        host = _WILDCARDS.get(self.host, self.host)
        name = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{name}:{self.port}"


@contextlib.contextmanager
def running(
    app: StoppableApp,
    *,
    host: str,
    port: int = 0,
    extra: str,
    name: str = "server",
    beside: contextlib.AbstractAsyncContextManager[Any] | None = None,
) -> Iterator[ServerAddress]:
    """A server until the block ends; at any free port if `port` is 0. `extra` is the package extra
    that installs it, and `beside` runs on the same event loop."""
    require_extra(extra, "granian")
    with (
        reserved_port(host, port) as reserved,
        in_thread(lambda: _served(app, ServerAddress(host, reserved), beside), name) as address,
    ):
        yield address


@contextlib.asynccontextmanager
async def _served(
    app: StoppableApp,
    address: ServerAddress,
    beside: contextlib.AbstractAsyncContextManager[Any] | None,
) -> AsyncIterator[ServerAddress]:
    """A Granian server on the running event loop, until the block ends."""
    server = _server(app, address)
    serving = asyncio.create_task(server.serve())
    try:
        await _until_started(address, serving)
        async with beside or contextlib.nullcontext():
            yield address
    finally:
        try:
            await app.close()
        finally:
            server.stop()
            with contextlib.suppress(Exception):
                await serving


@contextlib.contextmanager
def in_thread(
    server: Callable[[], contextlib.AbstractAsyncContextManager[T]],
    name: str = "server",
    *,
    stop_seconds: float | None = _STOP_SECONDS,
    gives_up: Callable[[], bool] = lambda: False,
) -> Iterator[T]:
    """Runs a server on an event loop in its own thread, until the block ends. If `gives_up` becomes
    true before it has started, raises `asyncio.CancelledError`."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    started: concurrent.futures.Future[T] = concurrent.futures.Future()
    starting: list[asyncio.Task[Any] | None] = []

    async def main() -> None:
        starting.append(asyncio.current_task())
        try:
            async with server() as running:
                started.set_result(running)
                await stop.wait()
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name=f"anaphora-{name}", daemon=True)
    thread.start()
    try:
        yield _started(started, gives_up, lambda: starting[0] and starting[0].cancel(), loop)
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(stop.set)
        thread.join(stop_seconds)
        _wait_at_exit()


def _started(
    started: concurrent.futures.Future[T],
    gives_up: Callable[[], bool],
    cancel: Callable[[], object],
    loop: asyncio.AbstractEventLoop,
) -> T:
    while not gives_up():
        with contextlib.suppress(concurrent.futures.TimeoutError):
            return started.result(_SIGNAL_SECONDS)
    loop.call_soon_threadsafe(cancel)
    return started.result()


def _wait_at_exit() -> None:
    """Granian's threads still need the interpreter after the server has ended: without this, its
    shutdown aborts the process."""
    ended = time.monotonic()
    atexit.unregister(_wait_for_threads)
    atexit.register(_wait_for_threads, ended + _THREADS_SECONDS)


def _wait_for_threads(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def serve(server: contextlib.AbstractContextManager[Any], ready: Callable[[Any], None]) -> None:
    """Runs a server (see `running`) in the foreground, until it is interrupted. It also runs in a
    thread: Granian's own threads must end before the interpreter does."""
    ends = signal.SIGINT, signal.SIGTERM
    with received_signals(*ends) as signals, server as started, tuned_interpreter():
        ready(started)
        next(signals)


class ReceivedSignals:
    """The numbers of signals, as they arrive."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.seen: set[int] = set()
        """The signals received so far, taken or not."""
        self.on_next: Callable[[int], None] | None = None
        """If set, called with each further signal, in the main thread, instead of queueing it."""

    def add(self, number: int, _frame: object = None) -> None:
        self.seen.add(number)
        if self.on_next is not None:
            self.on_next(number)
        else:
            self._queue.put(number)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        while True:
            # A second signal may reach another thread, and does not wake this one.
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=_SIGNAL_SECONDS)


@contextlib.contextmanager
def received_signals(*numbers: int) -> Iterator[ReceivedSignals]:
    """Receives signals, replacing their default action."""
    arrived = ReceivedSignals()
    handlers = {number: signal.signal(number, arrived.add) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def raise_file_limit() -> None:
    """Connections need more files than many systems allow by default."""
    import resource  # not on Windows

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@contextlib.contextmanager
def tuned_interpreter(kind: ServerKind = "granian") -> Iterator[None]:
    """Sets up the interpreter for a server until the block ends. Threads switch as suits
    the server. The garbage collector skips existing objects: scanning them would block the server
    repeatedly. It also runs less often, so that most requests have ended before it looks at their
    objects. Freed memory is returned to the system."""
    interval, froze = sys.getswitchinterval(), not gc.get_freeze_count()
    thresholds = gc.get_threshold()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS[kind]))
    if thresholds[0]:  # zero: it is off
        gc.set_threshold(max(thresholds[0], _YOUNG_OBJECTS), *thresholds[1:])
    if froze:
        gc.freeze()
    try:
        with _freed_memory_returned():
            yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        if froze:
            gc.unfreeze()


@contextlib.contextmanager
def _freed_memory_returned() -> Iterator[None]:
    """Returns it from time to time: the C library keeps the memory of large bodies."""
    library = None if sys.platform == "win32" else ctypes.CDLL(None)
    if library is None or not hasattr(library, "malloc_trim"):  # glibc has it
        yield
        return
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_TRIM_SECONDS):
            library.malloc_trim(0)

    thread = threading.Thread(target=run, name="anaphora memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _server(app: StoppableApp, address: ServerAddress) -> Any:
    from granian.constants import Interfaces
    from granian.server.embed import Server

    return Server(
        app,
        address=ip_of(address.host),
        port=address.port,
        interface=Interfaces.ASGINL,
        websockets=app.takes_websockets,
        log_enabled=False,
        backlog=1024,
    )


def require_extra(extra: str, *modules: str) -> None:
    """Raises `MissingExtra` if a module that comes with an extra is not installed."""
    from importlib.util import find_spec

    for module in modules:
        if find_spec(module) is None:
            command = f'pip install "anaphora[{extra}]"'
            raise MissingExtra(
                f"{module} is not installed; install it with: {command}", extra=extra
            )


@contextlib.contextmanager
def reserved_port(host: str, port: int = 0) -> Iterator[int]:
    """The port, or any free one for 0. On Linux nothing else takes a free one until the block ends:
    neither a server, nor a client for its end of a connection. Raises `Io` if it cannot be used."""
    if not 0 <= port <= _LAST_PORT:
        raise InvalidRequest(f"must be between 0 and {_LAST_PORT}, got {port}", path="port")
    is_held = sys.platform == "linux"  # where Granian shares its port
    if port:
        bound_socket(host, port).close()  # another server must not share it
    with bound_socket(host, port, is_shared=is_held, reuses=bool(port)) as reserved:
        number: int = reserved.getsockname()[1]
        if not is_held:
            reserved.close()
        yield number


def bound_socket(
    host: str, port: int, *, is_shared: bool = False, reuses: bool = True
) -> socket.socket:
    """With `is_shared`, other processes of the same user can bind the port likewise, and get a part
    of its connections. With `reuses`, a port whose server has just ended can be used, and another
    server can bind the port until this one listens. Raises `Io` if the port cannot be used."""
    ip = ip_of(host)
    listener = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    try:
        if reuses:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((ip, port))
    except OSError as problem:
        listener.close()
        is_used = problem.errno == errno.EADDRINUSE
        advice = "; choose another port, or 0 for a free one" if is_used else ""
        reason = f"{os.strerror(problem.errno or 0)}{advice}"
        raise Io(f"cannot listen at {host}:{port}: {reason}") from None
    return listener


def ip_of(host: str) -> str:
    """The IP address of a host; Granian takes no names. IPv4 first, as for clients of
    `localhost`."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Io(f"cannot listen at {host}: the host is not known") from None
    addresses = [str(address[0]) for *_, address in found]
    return next((each for each in addresses if ":" not in each), addresses[0])


async def _until_started(address: ServerAddress, serving: asyncio.Task[None]) -> None:
    host = _WILDCARDS.get(address.host, address.host)
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not serving.done():
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(host, address.port)
                    writer.close()
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        pass
    raise Io(f"the server did not start at {address.url}")
