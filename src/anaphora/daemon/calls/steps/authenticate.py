"""Finds the sender of a request: its peer's address and its token. Then decides whether its body
may be read, by the app, the connection, and the body limits of grant and daemon."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from urllib.parse import unquote_plus

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.checks import UnreadAccount, UnreadBytes
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.daemon.health import Outage
from anaphora.daemon.values import SOCKET, Peer
from anaphora.errors import (
    Forbidden,
    RequestRejected,
    Unauthenticated,
)
from anaphora.redaction import hides_arguments
from anaphora.serving.connection_limits import CONNECTION, ConnectionPlace
from anaphora.serving.exchange import HttpExchange

_BEARER, _SIGNED = "bearer ", "AWS4-"
_NOT_SIGNED = (
    "requests signed with AWS keys are not accepted: set AWS_BEARER_TOKEN_BEDROCK to the token of"
    " the app"
)
#: Headers that hold a token. All are removed here.
_TOKEN_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
_TOKEN_FIELD = b"key"
_FORWARDED = "x-forwarded-for"
#: Headers that reverse proxies add.
_PROXY_HEADERS = (_FORWARDED, "forwarded", "x-real-ip", "x-forwarded-host", "via")


class Peers:
    """Finds the peer of a request. Behind a trusted reverse proxy that is the client named in
    `x-forwarded-for`; from others the header is ignored."""

    def __init__(
        self, trusted_proxies: Iterable[str] = (), *, behind_proxy: bool = False, tls: bool = False
    ) -> None:
        self._trusted = [ipaddress.ip_network(each, strict=False) for each in trusted_proxies]
        self._behind_proxy = behind_proxy
        self._tls = tls

    def peer_of(self, exchange: HttpExchange) -> Peer:
        """Raises `Forbidden` for a client that bypasses the proxy."""
        credentials = exchange.scope.get("anaphora.peer")
        if credentials is not None:
            # A proxy's user says nothing about its clients.
            return Peer(SOCKET, None if is_forwarded(exchange) else credentials.uid)
        client = exchange.scope.get("client")
        address = client[0] if client else ""
        if self._trusted and self._is_trusted(address):
            if self._behind_proxy:
                exchange.scope["scheme"] = "https"  # at the proxy: in addresses that clients get
            return Peer(self._forwarded(exchange, address))
        if not self._behind_proxy:
            return Peer(address)
        if self._tls or is_loopback(address):
            return Peer(address)
        raise Forbidden("connect through the proxy of this server", status=403)

    def _forwarded(self, exchange: HttpExchange, proxy: str) -> str:
        """The last address that is not a trusted proxy's."""
        named = ",".join(value for name, value in exchange.header_pairs if name == _FORWARDED)
        for each in reversed(named.split(",")):
            address = _without_port(each.strip())
            if address and not self._is_trusted(address):
                return address if _address(address) is not None else proxy
        return proxy

    def _is_trusted(self, address: str) -> bool:
        found = _address(address)
        return found is not None and any(found in network for network in self._trusted)


def _without_port(text: str) -> str:
    """Some proxies add the port: `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def is_forwarded(exchange: HttpExchange) -> bool:
    """Whether a request came through a reverse proxy."""
    return any(name in exchange.headers for name in _PROXY_HEADERS)


def is_loopback(address: str) -> bool:
    found = _address(address)
    return found is not None and found.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@hides_arguments
def take_token(exchange: HttpExchange) -> Secret | None:
    """Takes the token out of a request's headers and query, so that later code cannot send or log
    it. Raises if there are two different ones."""
    tokens: set[str] = set()
    headers = exchange.headers
    repeated = len(headers) < len(exchange.header_pairs)
    for name in _TOKEN_HEADERS:
        value = headers.pop(name, None)
        if value is None:
            continue
        if repeated and sum(each == name for each, _ in exchange.header_pairs) > 1:
            raise RequestRejected(f"the header {name} is sent twice", status=400)
        if name == "authorization":
            if value.startswith(_SIGNED):
                raise Unauthenticated(_NOT_SIGNED, status=401)
            value = value[len(_BEARER) :] if value[: len(_BEARER)].lower() == _BEARER else ""
        tokens.add(value.strip())
    if tokens:
        pairs = exchange.header_pairs
        exchange.header_pairs = [pair for pair in pairs if pair[0] not in _TOKEN_HEADERS]
    if _TOKEN_FIELD in exchange.query_string:
        tokens |= _take_from_query(exchange)
    exchange.scope["headers"], exchange.scope["query_string"] = [], b""
    if len(tokens) > 1:
        tokens.discard("")
    if len(tokens) > 1:
        raise Unauthenticated("the request has two different tokens", status=401)
    # An empty token is invalid, and differs from no token.
    return Secret(tokens.pop()) if tokens else None


@hides_arguments
def _take_from_query(exchange: HttpExchange) -> set[str]:
    kept, found = [], []
    for field in exchange.query_string.split(b"&"):
        name, _, value = field.partition(b"=")
        if unquote_plus(name.decode("latin-1")) == _TOKEN_FIELD.decode():
            found.append(unquote_plus(value.decode("latin-1")))
        else:
            kept.append(field)
    if len(found) > 1:
        raise RequestRejected("the query has two fields named key", status=400)
    exchange.query_string = b"&".join(kept)
    return set(found)


READY, STORE_UNAVAILABLE = "ready", "store_unavailable"
#: Seconds for which files count as unchanged, so that calls arriving together check them once.
_UNCHANGED_SECONDS = 0.001
RPC_PATH = "/rpc"
ADMINISTRATORS = ""
"""Administrators' connections are counted together, like those of one app."""
#: Maximum bytes of a message from an app that may not spend: enough for every method it may call.
MAX_BODY_WITHOUT_CALLS = 64 * 1024


class Readiness(msgspec.Struct):
    """Whether the daemon accepts calls. Changed while it runs."""

    draining: bool = False
    """The daemon is stopping. Calls are answered until it is `closed`."""
    closed: bool = False
    is_drained: Callable[[], bool] = lambda: False
    """Whether an operator has drained this node."""
    can_write: Callable[[], bool] = lambda: True
    """Whether the store is writable. Without a hold no call is made."""
    down: Callable[[], Mapping[str, Outage]] = dict
    """Parts that do not respond. Without the store no call is accepted."""
    problems: Callable[[], list[str]] = list
    """Problems that an operator should look at. Calls are still accepted."""
    read_on: Callable[[], int] = lambda: 0
    """Calls whose apps have left and whose answers are read on."""

    def leaves(self) -> bool:
        """Whether no further calls should come to this node."""
        return self.draining or self.is_drained()

    @property
    def status(self) -> str:
        if self.leaves():
            return "draining"
        return READY if self.can_write() else STORE_UNAVAILABLE


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
        """`changed` tells whether files have changed; `reload` reads them."""
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
            await self._directory.look_up(token)
            call.app = self._directory.authenticate(token, peer)
            _use_connection(exchange, call.app.id)
            if is_rpc and not call.app.grant.may_call:
                exchange.max_body = min(exchange.max_body, MAX_BODY_WITHOUT_CALLS)
        # Counted in the budget of all bodies; administrators count as one app.
        exchange.account = UnreadAccount(self._unread, call.app.id)
        most = call.app.grant.llm.max_body_bytes
        if most is not None:
            exchange.max_body = min(exchange.max_body, most)


def _use_connection(exchange: HttpExchange, name: str) -> None:
    """Counts the connection as the app's."""
    place: ConnectionPlace | None = exchange.scope.get(CONNECTION)
    if place is not None:
        place.use(name)
