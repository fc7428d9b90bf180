"""Whose request it is, and whether it may be read: by its token, its connection, and what the
daemon and the grant of the app say of bodies."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec

from anaphora.daemon.access.checks import UnreadBytes
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.errors import GrantRateLimited, StoreUnavailable, Unauthenticated
from anaphora.serving.connection_limits import CONNECTION, ConnectionPlace
from anaphora.serving.exchange import HttpExchange

READY = "ready"
#: Seconds for which the files are taken as unchanged: one look for calls that arrive together.
_UNCHANGED_SECONDS = 0.001
RPC_PATH = "/rpc"
ADMINISTRATORS = ""
"""Whose connections are counted together, as those of an app are."""
#: Bytes of a message from an app that may not spend: enough for every method that it may call.
MAX_BODY_WITHOUT_CALLS = 64 * 1024


class Readiness(msgspec.Struct):
    """Whether the daemon accepts calls. Changed while it runs."""

    draining: bool = False
    """The daemon is stopping."""
    is_drained: Callable[[], bool] = lambda: False
    """Whether an operator wants calls to go to other nodes."""
    refuses_calls: Callable[[], bool] = lambda: False
    """Whether it is drained for so long that balancers know."""
    can_write: Callable[[], bool] = lambda: True
    """Whether the store can be written: no call without a hold."""
    problems: Callable[[], list[str]] = list
    """What an operator should look at; calls are accepted nevertheless."""
    read_on: Callable[[], int] = lambda: 0
    """Calls that their apps have ended and whose answers are read on."""

    @property
    def status(self) -> str:
        if self.draining or self.is_drained():
            return "draining"
        return READY if self.can_write() else "store_unavailable"


class AuthenticateApp(CallStep):
    """Finds the app of a token; at `/rpc` it may be an administrator's."""

    name = "authenticate"

    def __init__(
        self,
        directory: Directory,
        readiness: Readiness,
        unread: UnreadBytes,
        *,
        changed: Callable[[], bool] = lambda: False,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` tells whether files have changed, which `reload` reads."""
        self._directory = directory
        self._readiness = readiness
        self._unread = unread
        self._changed = changed
        self._reload = reload
        self._looked = 0.0

    async def before(self, call: AppCall) -> None:
        exchange, token, peer = call.exchange, call.token, call.peer
        assert exchange is not None
        assert peer is not None
        call.token = None
        now = monotonic()
        if now - self._looked >= _UNCHANGED_SECONDS:
            self._looked = now
            if self._changed():
                self._reload()
        is_rpc = exchange.path == RPC_PATH
        if is_rpc and self._directory.is_admin(token, peer):
            call.is_admin = True
            _use_connection(exchange, ADMINISTRATORS)
        else:
            if token is None:
                raise Unauthenticated("the request has no token", status=401)
            call.app = self._directory.authenticate(token, peer)
            _use_connection(exchange, call.app.id)
            if self._readiness.is_drained():
                self._leave_node(exchange)
            if is_rpc and not call.app.grant.may_call:
                exchange.max_body = min(exchange.max_body, MAX_BODY_WITHOUT_CALLS)
        # By the budget of all bodies, of which an administrator's counts as one app's.
        exchange.account = self._unread.account(call.app.id)
        most = call.app.grant.llm.max_body_bytes
        if most is not None:
            exchange.max_body = min(exchange.max_body, most)

    def _leave_node(self, exchange: HttpExchange) -> None:
        # The next call on a new connection, which leads to another node.
        exchange.response_headers["connection"] = "close"
        if self._readiness.refuses_calls():
            raise StoreUnavailable("this node is drained; send the call again")


def _use_connection(exchange: HttpExchange, name: str) -> None:
    """Counts the connection as one of an app. Raises `GrantRateLimited` where it has too many."""
    place: ConnectionPlace | None = exchange.scope.get(CONNECTION)
    if place is not None and not place.use(name):
        raise GrantRateLimited(
            "this app has too many open connections: send more than one request over each",
            limit="connections",
            retry_after=1.0,
        )
