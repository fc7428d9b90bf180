"""A running emulator: its requests and responses over HTTP."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.serving.app import ServedApp
from anaphora.serving.exchange import BodyLimits, CompleteResponse, ConnectionCut, HttpExchange
from anaphora.serving.guard import HostGuard
from anaphora.serving.server import ServerAddress, require_extra
from anaphora.serving.server import running as running_server
from anaphora.serving.server import serve as serve_forever

from .engine import EmulatorOptions, Engine
from .exchange import JSON, EmulatorRequest, EmulatorResponse
from .journal import CallRecord

if TYPE_CHECKING:
    from .page import EmulatorPages

_EXTRA = "emulator"
_HINT = (
    "start the emulator with --allow-host NAME, or running(allow_hosts=[NAME]), "
    "for each name by which its clients reach it"
)
#: Seconds until a hanging connection is closed; no client waits longer.
_HANG_SECONDS = 900.0
#: Seconds between two calls that are sent together, and the longest wait for such calls.
_TOGETHER, _LONGEST_HOLD = 0.05, 1.0
#: Models whose overlapping calls are remembered.
_PLACES = 256


class Emulator:
    def __init__(self, engine: Engine, address: ServerAddress) -> None:
        self.engine = engine
        self.host = address.host
        self.port = address.port
        self.url = address.url

    def advance(self, seconds: float) -> None:
        """Moves the virtual clock, so that cache entries expire without waiting."""
        self.engine.set_offset(self.engine.offset + seconds, time.time())

    def reset(self) -> None:
        self.engine.reset()

    def requests(self) -> list[dict[str, Any]]:
        """All calls, the newest first."""
        return self.engine.journal.entries()


@contextlib.contextmanager
def running(
    options: EmulatorOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_hosts: Iterable[str] = (),
) -> Iterator[Emulator]:
    """An emulator in its own thread, until the block ends.

    `allow_hosts` are names by which clients may reach it beside `host`, localhost and addresses: a
    service name of Docker Compose, for example; `*` stands for any.
    """
    engine = Engine(options)
    app = application(engine, host=host, allow_hosts=allow_hosts)
    with running_server(app, host=host, port=port, extra=_EXTRA, name="emulator") as address:
        yield Emulator(engine, address)


def serve(
    options: EmulatorOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    allow_hosts: Iterable[str] = (),
    ready: Callable[[Emulator], None] = lambda _: None,
) -> None:
    """An emulator in the foreground, until it is interrupted."""
    serve_forever(running(options, host=host, port=port, allow_hosts=allow_hosts), ready)


def application(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    allow_hosts: Iterable[str] = (),
    limits: BodyLimits | None = None,
) -> ServedApp:
    """The ASGI application of an engine that is served at `host`."""
    require_extra(_EXTRA, "granian", "starlette")
    from .control import PAGES

    guard = HostGuard(host, allow_hosts, pages=PAGES, hint=_HINT)
    return ServedApp(EmulatorHandler(engine), guard, limits)


class EmulatorHandler:
    def __init__(self, engine: Engine) -> None:
        from .control import CONTROL, ROUTES, control_routes, is_control

        self._engine = engine
        self._overlapped: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When the last call of a model arrived that overlaps another."""
        self._is_control = is_control
        self._control = control_routes(engine)
        self._root, self._routes = CONTROL, ROUTES
        self._pages: EmulatorPages | None = None
        """Made for the first request, since most emulators run without one."""

    async def handle(self, exchange: HttpExchange) -> None:
        body = await exchange.read_body()
        if self._is_control(exchange.path):
            await self._answer_control(exchange, body)
            return
        query = exchange.query_string
        request = EmulatorRequest(
            method=exchange.method,
            path=exchange.path,
            query=dict(parse_qsl(query.decode("latin-1"))) if query else {},
            headers=exchange.headers,
            body=body,
            now=time.time(),
        )
        response = self._engine.receive(request)
        call = response.call
        if call is None:
            await _send(response, exchange)
            return
        try:
            if self._engine.options.latency.first is None:
                await self._hold(exchange, call)
            await _send(response, exchange, lambda: call.begin(self._now()))
        finally:
            call.end(self._now())

    async def _answer_control(self, exchange: HttpExchange, body: bytes) -> None:
        if self._pages is None and exchange.path not in self._routes:
            from .page import EmulatorPages

            self._pages = EmulatorPages(self._engine, self._root)
        if self._pages is not None and self._pages.serves(exchange.path):
            await exchange.run(self._pages.answer(exchange))
        else:
            await self._control(exchange.scope, _receiver(body), exchange.send)

    def _now(self) -> float:
        return time.time() + self._engine.offset

    async def _hold(self, exchange: HttpExchange, call: CallRecord) -> None:
        """Waits with the response to a call that writes, until no more calls arrive that would read
        what it writes. Clients take milliseconds to send calls "at once"; without the wait, the
        first would be answered before the last is received."""
        started = time.monotonic()
        place = call.facts.provider, call.facts.profile.id
        if call.overlaps:
            self._overlapped[place] = started
            self._overlapped.move_to_end(place)
            if len(self._overlapped) > _PLACES:
                self._overlapped.popitem(last=False)
        while call.writes:
            last = max(started, self._overlapped.get(place, started))
            left = min(last + _TOGETHER, started + _LONGEST_HOLD) - time.monotonic()
            if left <= 0:
                return
            await exchange.wait(left)

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        if self._is_control(exchange.path):
            body = dumps({"error": str(problem)})
            return CompleteResponse(problem.status or 500, {"content-type": JSON}, body)
        codec = self._engine.codec(exchange.method, exchange.path, exchange.headers)
        status, headers, body = codec.write_error(problem)
        # Some wires write a class of errors with one status.
        return CompleteResponse(problem.status or status, headers, body)


def _receiver(body: bytes) -> Callable[[], Any]:
    """ASGI's `receive` for a body that was read."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _send(
    response: EmulatorResponse, exchange: HttpExchange, begin: Callable[[], None] = lambda: None
) -> None:
    if response.hang:
        await exchange.wait(_HANG_SECONDS)
        raise ConnectionCut
    cut = 0 if response.reset and response.cut_after is None else response.cut_after
    chunks = response.chunks if cut is None else response.chunks[:cut]
    headers = response.headers
    if not response.stream:
        size = sum(len(chunk.data) for chunk in response.chunks)
        headers = {**headers, "content-length": str(size)}
    if chunks and chunks[0].delay:
        await exchange.wait(chunks[0].delay)
    begin()
    await exchange.start(response.status, headers)
    pending: list[bytes] = []
    for index, chunk in enumerate(chunks):
        if index and chunk.delay:
            # Chunks without a delay between them are sent together.
            await exchange.write(b"".join(pending), more=True)
            await exchange.wait(chunk.delay)
            pending = []
        pending.append(chunk.data)
    await exchange.write(b"".join(pending), more=cut is not None)
    if cut is not None:
        raise ConnectionCut
