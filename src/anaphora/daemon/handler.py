"""Handles requests to the daemon: authenticates them and routes them to their service.

    GET  /healthz          the process responds
    GET  /readyz           whether it accepts calls, and problems for the operator
    GET  /metrics          for Prometheus; administrators only
    POST /rpc              JSON-RPC
    /ui                    the dashboard, with its own login
    the paths of wires     provider-compatible endpoints

Every response has the header `anaphora-request-id` and a line in the log.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.errors import (
    Forbidden,
    NotFound,
    RequestRejected,
    StoreUnavailable,
    Unauthenticated,
    Upstream,
)
from anaphora.redaction import ELLIPSIS, looks_like_key
from anaphora.serving.exchange import CompleteResponse, ConnectionEnded, HttpExchange

from .access.checks import CallSlots
from .access.identity import Directory
from .calls.call import AppCall
from .calls.pipeline import CallPipeline
from .calls.steps.authenticate import (
    READY,
    RPC_PATH,
    STORE_UNAVAILABLE,
    Peers,
    Readiness,
    is_forwarded,
    is_loopback,
    take_token,
)
from .faces import ENDPOINTS
from .health import utc
from .monitoring import REQUEST_ID, DaemonMetrics, JsonLog
from .tracing import RequestTraces
from .values import ERROR_KEY, NO_APP, REQUEST_ID_KEY, SOCKET, TOKEN_KEY, Peer, kind_of, public_text

if TYPE_CHECKING:
    from .endpoints.service import Endpoints
    from .rpc.service import RpcService
    from .ui.service import UiService

STATUS_PAGES = ("/healthz", "/readyz", "/metrics")
REQUEST_ID_HEADER = "anaphora-request-id"
_JSON = "application/json"
_OTHER_PATHS = "POST /rpc, GET /healthz, GET /readyz, GET /metrics"
#: Beginning of the dashboard's paths.
_PAGES = "/ui"
#: Paths of uploads, whose pieces are sent without a token.
_UPLOADS = "/upload/"
_encode = msgspec.json.Encoder().encode
_SERVER_ERROR = 500
_ID_BYTES, _IDS_AT_ONCE = 12, 64
#: Characters of a logged path, which may contain a percent-encoded query.
_PATH_PART = re.compile(r"[^/?=&;#]+")


class TokenRevoked(ConnectionEnded):
    """The token of a running call was revoked."""


class RequestIds:
    """Random ids, without a system call for each. They do not reveal how many requests other apps
    have made."""

    def __init__(self) -> None:
        self._next: list[str] = []

    def new(self) -> str:
        if not self._next:
            digits = secrets.token_hex(_IDS_AT_ONCE * _ID_BYTES)
            size = 2 * _ID_BYTES
            self._next = [f"req_{digits[at : at + size]}" for at in range(0, len(digits), size)]
        return self._next.pop()


class DaemonHandler:
    """The `serving.app.Handler` of the daemon."""

    def __init__(
        self,
        directory: Directory,
        pipeline: CallPipeline,
        rpc: RpcService,
        endpoints: Endpoints,
        *,
        peers: Peers,
        readiness: Readiness,
        log: JsonLog,
        metrics: DaemonMetrics,
        slots: CallSlots,
        ui: UiService | None = None,
    ) -> None:
        self._directory = directory
        self._pipeline = pipeline
        self._rpc = rpc
        self._endpoints = endpoints
        self._peers = peers
        self._readiness = readiness
        self._log = log
        self._metrics = metrics
        self._slots = slots
        self._traces = RequestTraces.enabled()
        self._ui = ui
        self._ids = RequestIds()
        self._shown_path = lru_cache(maxsize=512)(_shown_path)
        self._open: dict[HttpExchange, AppCall] = {}
        directory.on_revoke(self._revoked)
        metrics.gauge(
            "anaphora_daemon_open_requests", "Open requests", lambda: float(len(self._open))
        )

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────

    async def handle(self, exchange: HttpExchange) -> None:
        call = self._begin(exchange)
        peer = call.peer = self._peers.peer_of(exchange)
        path = exchange.path
        if self._ui is not None and path.startswith(_PAGES) and self._ui.serves(path):
            if self._readiness.closed:
                raise StoreUnavailable("the daemon is stopping")
            await self._ui.handle(exchange, peer)
            return
        token = call.token = take_token(exchange)
        if path == RPC_PATH:
            if exchange.method != "POST":
                raise RequestRejected(f"{exchange.method[:20]} is not allowed at /rpc", status=405)
            await self._pipeline.before["arrive"](call)
            app = None if call.is_admin else call.app
            # Each of its calls takes a slot: `llm.cancel` does not need one.
            await self._run(call, self._rpc.handle(exchange, app, call.is_admin, call.request_id))
        elif self._endpoints.serves(exchange.method, path):
            if path.startswith(_UPLOADS):
                token = call.token = token or self._endpoints.token_of(exchange)
                exchange.scope[TOKEN_KEY] = token
            await self._pipeline.before["arrive"](call)
            self._slots.take(call.app.id)
            try:
                await self._run(call, self._endpoints.handle(call))
            finally:
                self._slots.release(call.app.id)
        else:
            await exchange.respond(await self._page(exchange, token, peer))

    async def handle_status(self, exchange: HttpExchange) -> None:
        """A request at the status port. Probes may bypass the proxy; requests with a token may
        not."""
        call = self._begin(exchange)
        client = exchange.scope["client"]
        peer = Peer(client[0] if client else "")
        if exchange.path == "/metrics":
            peer = self._peers.peer_of(exchange)
        call.peer = peer
        await exchange.respond(await self._page(exchange, take_token(exchange), peer))

    def _begin(self, exchange: HttpExchange) -> AppCall:
        request_id = self._ids.new()
        REQUEST_ID.set(request_id)
        exchange.response_headers[REQUEST_ID_HEADER] = request_id
        exchange.scope[REQUEST_ID_KEY] = request_id
        call = self._open[exchange] = AppCall(request_id=request_id, exchange=exchange)
        if self._traces is not None:
            call.span = self._traces.begin(exchange)
        return call

    async def _run(self, call: AppCall, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` until it is done, the client disconnects or the token is revoked."""
        if self._readiness.closed:
            work.close()
            raise StoreUnavailable("the daemon is stopping")
        exchange = call.exchange
        assert exchange is not None
        try:
            await exchange.run(work)
        except TokenRevoked:
            if exchange.started:
                raise
            raise Unauthenticated("the token was revoked", status=401) from None

    def _revoked(self, token_id: str) -> None:
        for exchange, call in tuple(self._open.items()):
            if call.app is not NO_APP and call.app.token_id == token_id:
                exchange.disconnect(TokenRevoked)

    def end_expired(self) -> None:
        """Ends running calls whose token has expired."""
        for exchange, call in tuple(self._open.items()):
            if call.app is not NO_APP and not self._directory.is_valid(call.app.token_id):
                exchange.disconnect(TokenRevoked)
        if self._ui is not None:
            self._ui.end_expired()

    def end_pages(self) -> None:
        """Ends open pages of the dashboard: a stopping daemon does not wait for them."""
        if self._ui is not None:
            self._ui.stop()

    # ── Pages of the daemon itself ───────────────────────────────────────────────────────────────

    async def _page(
        self, exchange: HttpExchange, token: Secret | None, peer: Peer
    ) -> CompleteResponse:
        path = exchange.path
        if path not in STATUS_PAGES:
            reason = f"there is nothing at this path; there are: {_OTHER_PATHS}, {ENDPOINTS}"
            raise NotFound(reason, status=404)
        if exchange.method not in ("GET", "HEAD"):
            raise RequestRejected(f"{exchange.method[:20]} is not allowed here", status=405)
        if path == "/healthz":
            return _json(200, {"status": "ok"})
        if path == "/readyz":
            return self._ready(exchange, token, peer)
        if not self._directory.is_admin(token, peer):
            if token is None:
                raise Unauthenticated("metrics are for administrators", status=401)
            self._directory.authenticate(token, peer)
            raise Forbidden("metrics are for administrators", status=403)
        content_type, body = await self._metrics.page()
        return CompleteResponse(200, {"content-type": content_type}, body)

    def _ready(self, exchange: HttpExchange, token: Secret | None, peer: Peer) -> CompleteResponse:
        state = self._readiness
        status = state.status
        body: dict[str, Any] = {"status": status}
        problems, read_on, down = state.problems(), state.read_on(), state.down()
        if status == STORE_UNAVAILABLE and "store" in down:
            body["since"] = utc(down["store"].since)
        if problems or read_on or down:
            local = peer.address == SOCKET or is_loopback(peer.address)
            local = local and not is_forwarded(exchange)
            # They name apps and their activity: shown to local callers and administrators only.
            shown = local or self._directory.is_admin(token, peer)
            if problems:
                body["problems"] = problems if shown else len(problems)
            if down and shown:
                body["down"] = {
                    name: {"since": utc(one.since), "reason": one.reason}
                    for name, one in down.items()
                }
            if read_on and shown:
                body["read_on"] = read_on
        return _json(200 if status == READY else 503, body)

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────────

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        if exchange not in self._open:
            self._begin(exchange)
        self._metrics.denied(problem)
        exchange.scope[ERROR_KEY] = kind_of(problem)
        if self._endpoints.serves(exchange.method, exchange.path):
            return self._endpoints.error(exchange, problem)
        if self._ui is not None and self._ui.serves(exchange.path):
            return self._ui.error(exchange, problem)
        headers = {"content-type": _JSON}
        if problem.retry_after is not None:
            headers["retry-after"] = str(max(1, round(problem.retry_after)))
        if problem.status == 401:
            headers["www-authenticate"] = "Bearer"
        kind = problem.code or type(problem).__name__
        body = _encode({"error": {"kind": kind, "message": public_text(problem)}})
        return CompleteResponse(problem.status or _SERVER_ERROR, headers, body)

    def ended(self, exchange: HttpExchange) -> None:
        """Called by `ServedApp` when the request is answered or its connection has ended."""
        call = self._open.pop(exchange, None)
        if call is None:
            return
        if self._ui is not None and exchange.path.startswith(_PAGES):
            self._ui.ended(exchange)
        seconds = time.perf_counter() - call.started
        app = call.app.id
        status = exchange.status
        if self._traces is not None:
            self._traces.end(call.span, app, status, call.request_id)
        self._metrics.request(app, exchange.method, exchange.path, status, seconds)
        level = "error" if status >= _SERVER_ERROR else "info"
        fields = {
            "request_id": call.request_id,
            "app": app,
            "method": exchange.method[:20],
            "path": self._shown_path(exchange.path),
            "status": status,
            "seconds": round(seconds, 6),
        }
        if error := exchange.scope.get(ERROR_KEY):
            fields["error"] = error
        self._log.line(level, "request", **fields)


class StatusHandler:
    """The `serving.app.Handler` of the status port."""

    def __init__(self, handler: DaemonHandler) -> None:
        self.handle = handler.handle_status
        self.error = handler.error


def _shown_path(path: str) -> str:
    """The path without parts that look like a token, which a client may have misplaced."""
    return _PATH_PART.sub(lambda part: ELLIPSIS if looks_like_key(part[0]) else part[0], path[:200])


def _json(status: int, value: Any) -> CompleteResponse:
    return CompleteResponse(status, {"content-type": _JSON}, _encode(value))
