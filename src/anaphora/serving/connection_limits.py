"""How many connections a server keeps open, for which peers, and which one is closed for a new one.

    limits = ConnectionLimits(connections=1024, trusted=("10.0.0.0/8",))
    table = ConnectionTable(limits)
    place = table.enter(peer, has_input, close)    None if there is no place
    place.begin(), place.end()                 a request on it
    place.use("app")                           it has shown a valid token of that app
    place.leave()                              it is closed

Connections of trusted proxies, which carry the requests of many clients, have half of the places
and are not closed for being idle. If the group of any other connection is full, its longest idle
connection is closed for the new one, so idle connections keep no other out. If all connections
without a valid token are sending a request, the oldest of them is closed.

A client may open many connections before it sends the first request on each, and a handshake takes
time: a new connection does not count as idle for a moment. Meanwhile, a peer may have more places
than its own; if all are taken, the peer with the most gives one back.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
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
    """In total; half of it for `trusted`."""
    strangers: int = 256
    """Without a valid token, of all peers together."""
    strangers_of_peer: int = 32
    of_app: int = 256
    trusted: tuple[str, ...] = ()
    """Addresses and networks of proxies."""
    header_bytes: int = 64 * 1024
    headers: int = 128
    idle_seconds: float = 75.0
    """Without a request; also the limit for the head of a request."""
    new_seconds: float = 2.0
    """A connection without a request so far counts as idle only after this many seconds."""


class _Group:
    """Connections that share a number of places."""

    __slots__ = ("closes_busy", "idle", "most", "places")

    def __init__(self, most: int, *, closes_busy: bool = False) -> None:
        self.most = most
        self.closes_busy = closes_busy
        self.places: OrderedDict[ConnectionPlace, None] = OrderedDict()
        self.idle: OrderedDict[ConnectionPlace, None] = OrderedDict()
        """The longest idle first."""

    @property
    def size(self) -> int:
        return len(self.places)

    def make_room(self, opened_before: float = math.inf) -> bool:
        """Whether there is a place. To make one, an idle connection may be closed; among those that
        have sent no request, only one opened before that time."""
        while self.size >= self.most:
            if not self.close_oldest(opened_before):
                return False
        return True

    def close_oldest(self, opened_before: float = math.inf) -> bool:
        """Whether there was one to close."""
        old = (each for each in self.idle if each.has_asked or each.opened < opened_before)
        oldest = next((each for each in old if not each.has_input()), None)
        if oldest is None and self.closes_busy:
            oldest = next(iter(self.places), None)
        if oldest is None:
            return False
        oldest.close()
        return True


class ConnectionTable:
    """The connections of a server. For one event loop."""

    def __init__(
        self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._networks = [ipaddress.ip_network(each, strict=False) for each in limits.trusted]
        trusted = limits.connections // 2 if self._networks else 0
        self._trusted = _Group(trusted)
        self._all = _Group(limits.connections - trusted)
        strangers = min(limits.strangers, self._all.most)
        self._strangers = _Group(strangers, closes_busy=True)
        self._peers: dict[str, _Group] = {}
        self._apps: dict[str, _Group] = {}
        self.closed = 0
        """Idle connections that were closed for new ones."""

    def enter(
        self, peer: str, has_input: Callable[[], bool], close: Callable[[], None]
    ) -> ConnectionPlace | None:
        """A place for a new connection: `peer` is an IP address, or names a user. None if all
        places are taken by connections that are not idle. `has_input` tells whether unanswered data
        has arrived; `close` closes the connection while it is idle."""
        if self._networks and self._is_trusted(peer):
            if self._trusted.size >= self._trusted.most:
                return None
            return ConnectionPlace(self, (self._trusted,), has_input, close, keeps=True)
        name, now = network_of(peer), self._clock()
        group = self._peers.get(name)
        if group is None:
            group = _Group(self._limits.strangers_of_peer)
        # Requests that arrive together show their tokens a moment later: none is closed for another
        # one of the same peer.
        group.make_room(now - self._limits.new_seconds)
        if self._strangers.size >= self._strangers.most:
            self._close_of_largest()
        if not (self._strangers.make_room() and self._all.make_room()):
            return None
        self._peers[name] = group
        groups = self._all, self._strangers, group
        return ConnectionPlace(self, groups, has_input, close, peer=name, opened=now)

    def close_surplus(self, peer: str) -> None:
        """Closes idle connections of a peer that exceeds its places."""
        group = self._peers.get(peer)
        if group is None:
            return
        before = self._clock() - self._limits.new_seconds
        while group.size > group.most and group.close_oldest(before):
            pass

    def _close_of_largest(self) -> None:
        """Closes one of the peer with the most connections, if it exceeds its places."""
        largest = max(self._peers.values(), key=lambda group: len(group.places), default=None)
        if largest is not None and largest.size > largest.most:
            largest.close_oldest()

    def use(self, place: ConnectionPlace, app: str) -> bool:
        """Counts a connection as one of an app. False if the app has too many."""
        group = self._apps.get(app)
        if group is None:
            group = _Group(self._limits.of_app)
        if not group.make_room():
            return False
        self._apps[app] = group
        place.move((self._all, group), app=app)
        return True

    def forget(self, place: ConnectionPlace) -> None:
        """Removes empty groups."""
        for groups, name in ((self._peers, place.peer), (self._apps, place.app)):
            if name is not None and (group := groups.get(name)) is not None and not group.places:
                del groups[name]

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
        "_close", "_table", "app", "busy", "groups", "has_asked", "has_input", "keeps", "opened",
        "peer",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        groups: tuple[_Group, ...],
        has_input: Callable[[], bool],
        close: Callable[[], None],
        *,
        peer: str | None = None,
        keeps: bool = False,
        opened: float = 0.0,
    ) -> None:
        """`keeps`: it is not closed for being idle."""
        self._table = table
        self.has_input = has_input
        self._close = close
        self.groups: tuple[_Group, ...] = ()
        self.keeps = keeps
        self.peer = peer
        self.app: str | None = None
        self.busy = False
        self.opened = opened
        self.has_asked = False
        """It has sent a request."""
        self.move(groups)

    def begin(self) -> None:
        """A request is being answered."""
        self.busy = self.has_asked = True
        for group in self.groups:
            group.idle.pop(self, None)

    def end(self) -> None:
        self.busy = False
        if not self.keeps:
            for group in self.groups:
                group.idle[self] = None

    def use(self, app: str) -> bool:
        """It has shown a valid token of an app. False if the app has too many connections; a
        proxy's connections stay the proxy's."""
        return app == self.app or self.keeps or self._table.use(self, app)

    def move(self, groups: tuple[_Group, ...], app: str | None = None) -> None:
        """Moves to other groups."""
        left, self.groups = self.groups, groups
        for group in left:
            group.idle.pop(self, None)
            del group.places[self]
        for group in groups:
            group.places[self] = None
            if not self.busy and not self.keeps:
                group.idle[self] = None
        if left:
            self._table.forget(self)
        self.app = app

    @property
    def is_surplus(self) -> bool:
        """Whether its peer has more connections than it may keep."""
        return any(len(group.places) > group.most for group in self.groups)

    def close_surplus(self) -> None:
        """Closes idle connections of the same peer if there are too many."""
        if self.peer is not None:
            self._table.close_surplus(self.peer)

    def close(self) -> None:
        """Closes the connection to make room for another one."""
        self.leave()
        self._table.closed += 1
        self._close()

    def leave(self) -> None:
        """The connection is closed. May be called more than once."""
        self.move(())


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
