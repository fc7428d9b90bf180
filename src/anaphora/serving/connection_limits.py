"""How many connections a server keeps open, and which one is closed for a new one.

    limits = ConnectionLimits(connections=1024, trusted=("10.0.0.0/8",))
    table = ConnectionTable(limits)
    place = table.enter(peer, has_input, close)    None if there is no place
    place.begin(), place.end()                 a request on it
    place.use("app")                           it has shown a valid token of that app
    place.leave()                              it is closed

Idle connections keep no other out: if a peer has too many without a valid token, its longest unused
ones are closed, and if all places are taken, the longest unused of all, first among those without a
token. Those of a peer with too many are closed even while they send a request, and if none is idle,
any without a token. Connections of trusted proxies, which carry the requests of many clients, stay
open.

A client may open many connections before it sends the first request on each, and a handshake takes
time: a new connection is closed only if all places are taken.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

PEER = "anaphora.peer"
"""In the scope of a request at a Unix socket: the `PeerCredentials`."""
#: Linux: process, user and group of the peer.
_CREDENTIALS = struct.Struct("3i")

CONNECTION = "anaphora.connection"
"""In the scope of a request: the `ConnectionPlace` of its connection."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Limits of a server's connections."""

    connections: int = 1024
    """In total."""
    strangers_of_peer: int = 32
    """Without a valid token."""
    trusted: tuple[str, ...] = ()
    """Addresses and networks of proxies."""
    header_bytes: int = 64 * 1024
    headers: int = 128
    idle_seconds: float = 75.0
    """Without a request; also the limit for the head of a request."""
    new_seconds: float = 2.0
    """A connection without a request so far counts as idle only after this many seconds."""


class ConnectionTable:
    """The connections of a server. For one event loop."""

    def __init__(
        self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self.clock = clock
        self._networks = [ipaddress.ip_network(each, strict=False) for each in limits.trusted]
        self.open: OrderedDict[ConnectionPlace, None] = OrderedDict()
        """The longest unused first."""
        self.strangers: dict[str, OrderedDict[ConnectionPlace, None]] = {}
        """Those without a valid token, by peer, in the same order."""

    def enter(
        self, peer: str, has_input: Callable[[], bool], close: Callable[[], None]
    ) -> ConnectionPlace | None:
        """A place for a new connection: `peer` is an IP address, or names a user. None if all
        places are taken by connections in use. `has_input` tells whether unanswered data has
        arrived; `close` closes the connection."""
        name = None if self._is_trusted(peer) else network_of(peer)
        if name is not None:
            self._close_strangers(name)
        if len(self.open) >= self._limits.connections and not self._make_room():
            return None
        return ConnectionPlace(self, name, has_input, close)

    def _close_strangers(self, peer: str) -> None:
        """Closes idle connections of a peer until it has a place without a token. Requests that
        arrive together show their tokens a moment later: a new connection is not closed."""
        own = self.strangers.get(peer, OrderedDict())
        before = self.clock() - self._limits.new_seconds
        surplus = len(own) + 1 - self._limits.strangers_of_peer
        if surplus > 0:
            old = (each for each in own if each.has_asked or each.opened < before)
            for place in list(itertools.islice((one for one in old if one.is_idle), surplus)):
                place.close()

    def _make_room(self) -> bool:
        """Closes a connection that is not of a trusted proxy: an idle one without a valid token,
        one of a peer that has too many of these, another idle one, or one without a token that
        sends a request."""
        places, most = [one for one in self.open if not one.keeps], self._limits.strangers_of_peer
        strangers = [place for place in places if place.app is None]
        surplus = (one for own in self.strangers.values() if len(own) > most for one in own)
        idle = (one for one in strangers if one.is_idle), (one for one in places if one.is_idle)
        found = next(itertools.chain(idle[0], surplus, idle[1], strangers), None)
        if found is not None:
            found.close()
        return found is not None

    def _is_trusted(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


class ConnectionPlace:
    """The place of one connection."""

    __slots__ = (
        "_close", "_has_input", "_peer", "_table", "app", "busy", "has_asked", "keeps", "opened",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        peer: str | None,
        has_input: Callable[[], bool],
        close: Callable[[], None],
    ) -> None:
        """Without `peer`, it is a trusted proxy's."""
        self._table = table
        self._peer = peer
        self._has_input = has_input
        self._close = close
        self.keeps = peer is None
        """It is not closed for being idle."""
        self.app: str | None = None
        self.busy = self.has_asked = False
        """It is sending a request; it has sent one."""
        self.opened = table.clock()
        table.open[self] = None
        if peer is not None:
            table.strangers.setdefault(peer, OrderedDict())[self] = None

    @property
    def is_idle(self) -> bool:
        return not self.busy and not self._has_input()

    def begin(self) -> None:
        """A request is being answered."""
        self.busy = self.has_asked = True

    def end(self) -> None:
        self.busy = False
        if self in self._table.open:
            self._table.open.move_to_end(self)
        if self in (own := self._own_strangers()):
            own.move_to_end(self)

    def use(self, app: str) -> None:
        """It has shown a valid token of an app."""
        self.app = app
        self._forget_stranger()

    def close(self) -> None:
        """Closes the connection to make room for another one."""
        self.leave()
        self._close()

    def leave(self) -> None:
        """The connection is closed. May be called more than once."""
        self._table.open.pop(self, None)
        self._forget_stranger()

    def _own_strangers(self) -> OrderedDict[ConnectionPlace, None]:
        return self._table.strangers.get(self._peer or "", OrderedDict())

    def _forget_stranger(self) -> None:
        own = self._own_strangers()
        own.pop(self, None)
        if not own:
            self._table.strangers.pop(self._peer or "", None)


def network_of(peer: str) -> str:
    """The address as a peer; peers in one IPv6 network (/64) count as one."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return peer


# ── Peers ────────────────────────────────────────────────────────────────────────────────────────


class PeerCredentials(msgspec.Struct, frozen=True):
    """The process at the other end of a Unix socket."""

    pid: int
    uid: int
    gid: int


def connection_scope(transport: asyncio.BaseTransport) -> dict[str, Any]:
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "root_path": "",
        "extensions": {},
        "client": None,
        "server": None,
    }
    connection = transport.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        if hasattr(socket, "SO_PEERCRED"):
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            scope[PEER] = PeerCredentials(*_CREDENTIALS.unpack(data))
    else:
        scope["client"] = tuple(transport.get_extra_info("peername")[:2])
        scope["server"] = tuple(transport.get_extra_info("sockname")[:2])
    return scope


def peer_of(scope: dict[str, Any]) -> str:
    """An address, or the user of a Unix socket."""
    credentials: PeerCredentials | None = scope.get(PEER)
    if credentials is not None:
        return f"uid {credentials.uid}"
    return "" if scope["client"] is None else str(scope["client"][0])
