"""A running emulator: its requests and responses over HTTP, and the routes that control it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.canonical import dumps
from anaphora.errors import InvalidRequest, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import BodyLimits, CompleteResponse, ConnectionCut, HttpExchange
from anaphora.serving.server import ServerAddress, require_extra
from anaphora.serving.server import running as running_server
from anaphora.serving.server import serve as serve_forever
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.response_headers import EMULATED

from .engine import Engine
from .exchange import JSON, EmulatorRequest, EmulatorResponse, whole_number
from .generator import EmulatorOptions
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
#: Seconds without a call after which no more are expected together with it, and the longest wait
#: for them.
_TOGETHER, _LONGEST_HOLD = 0.05, 1.0
#: Models whose overlapping calls are remembered.
_PLACES = 256
#: The root of the control routes.
CONTROL = "/_emulator"
#: Response headers of the control routes.
_CONTROL_HEADERS = {
    "content-type": JSON,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
}


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
    require_extra(_EXTRA, "granian")
    # A link on another page may open the overview.
    guard = HostGuard(host, allow_hosts, pages=("/", CONTROL), hint=_HINT)
    return ServedApp(EmulatorHandler(engine), guard, limits)


class EmulatorHandler:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._overlapped = BoundedMap[tuple[str, str], float](_PLACES)
        """By provider and model, when the last call arrived that overlaps another."""
        self._control = ControlRoutes(engine)
        self._pages: EmulatorPages | None = None
        """Created on the first request for a page."""

    async def handle(self, exchange: HttpExchange) -> None:
        body = await exchange.read_body()
        if _is_control(exchange.path):
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
        if exchange.path != "/" and exchange.path.rstrip("/") not in self._control.routes:
            if self._pages is None:
                from .page import EmulatorPages

                self._pages = EmulatorPages(self._engine, CONTROL)
            if self._pages.serves(exchange.path):
                await exchange.run(self._pages.answer(exchange))
                return
        await exchange.respond(self._control.respond(exchange, body))

    def _now(self) -> float:
        return time.time() + self._engine.offset

    async def _hold(self, exchange: HttpExchange, call: CallRecord) -> None:
        """Delays the response to a call that writes until no more calls arrive that would read the
        write. Clients take milliseconds to send calls "at once"; without the wait, the first would
        be answered before the last is received."""
        started = time.monotonic()
        place = call.facts.provider, call.facts.profile.id
        if call.overlaps:
            self._overlapped[place] = started
        while call.writes:
            last = max(started, self._overlapped.get(place, started))
            left = min(last + _TOGETHER, started + _LONGEST_HOLD) - time.monotonic()
            if left <= 0:
                return
            await exchange.wait(left)

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        if _is_control(exchange.path):
            body = dumps({"error": str(problem)})
            return CompleteResponse(problem.status or 500, {"content-type": JSON}, body)
        codec = self._engine.codec(exchange.method, exchange.path, exchange.headers)
        status, headers, body = codec.write_error(problem)
        # Some wires have one status for a class of errors.
        return CompleteResponse(problem.status or status, headers, body)


def _is_control(path: str) -> bool:
    return path in ("/", CONTROL) or path.startswith(CONTROL + "/")


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """Moves the virtual clock by `advance` seconds, or to `set`, in seconds since 1970."""

    advance: float | None = None
    set: float | None = None


class ControlRoutes:
    """The journal, the clock, and the forms of the pages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.routes: dict[str, dict[str, Callable[[HttpExchange, bytes], CompleteResponse]]] = {
            f"{CONTROL}/requests": {"GET": self._requests},
            f"{CONTROL}/reset": {"POST": self._reset},
            f"{CONTROL}/clock": {"GET": self._clock, "POST": self._change_clock},
            f"{CONTROL}/forms/clock": {"POST": self._clock_form},
            f"{CONTROL}/forms/reset": {"POST": self._reset_form},
        }

    def respond(self, exchange: HttpExchange, body: bytes) -> CompleteResponse:
        if exchange.path == "/":
            return _redirect(307)
        methods = self.routes.get(exchange.path.rstrip("/"), {})
        handler = methods.get(exchange.method.replace("HEAD", "GET"))
        if handler is None:
            reason = f"no route for {exchange.method} {exchange.path}"
            allowed = {"allow": ", ".join(methods)} if methods else {}
            return _json({"error": reason}, 405 if methods else 404, allowed)
        try:
            return handler(exchange, body)
        except InvalidRequest as problem:
            return _json({"error": str(problem)}, 400)

    def _requests(self, exchange: HttpExchange, _: bytes) -> CompleteResponse:
        query = parse_qs(exchange.query_string.decode("latin-1"), keep_blank_values=True)
        last = whole_number(query["last"][-1], "last") if "last" in query else None
        entries = self._engine.journal.entries(last)
        return _json({"now": time.time() + self._engine.offset, "requests": entries})

    def _reset(self, *_: object) -> CompleteResponse:
        self._engine.reset()
        return _json({"reset": True})

    def _reset_form(self, *_: object) -> CompleteResponse:
        self._engine.reset()
        return _redirect(303)

    def _clock(self, *_: object) -> CompleteResponse:
        offset = self._engine.offset
        return _json({"now": time.time() + offset, "offset": offset})

    def _change_clock(self, _: HttpExchange, body: bytes) -> CompleteResponse:
        try:
            change = msgspec.json.decode(body, type=ClockChange)
        except DECODE_ERRORS as problem:
            raise InvalidRequest(str(problem)) from None
        if (change.advance is None) == (change.set is None):
            raise InvalidRequest("either `advance` or `set` is required")
        now, offset = time.time(), self._engine.offset + (change.advance or 0.0)
        self._engine.set_offset(offset if change.set is None else change.set - now, now)
        return self._clock()

    def _clock_form(self, _: HttpExchange, body: bytes) -> CompleteResponse:
        form = parse_qs(body.decode("latin-1"))
        seconds = whole_number(form.get("advance", [""])[-1], "advance")
        self._engine.set_offset(self._engine.offset + seconds, time.time())
        return _redirect(303)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> CompleteResponse:
    return CompleteResponse(
        status, {**_CONTROL_HEADERS, **(headers or {})}, msgspec.json.encode(value)
    )


def _redirect(status: int) -> CompleteResponse:
    return CompleteResponse(status, {"location": CONTROL}, b"")


async def _send(
    response: EmulatorResponse, exchange: HttpExchange, begin: Callable[[], None] = lambda: None
) -> None:
    if response.hang:
        await exchange.wait(_HANG_SECONDS)
        raise ConnectionCut
    cut = 0 if response.reset and response.cut_after is None else response.cut_after
    chunks = response.chunks if cut is None else response.chunks[:cut]
    headers = {**response.headers, EMULATED: "yes"}
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
