"""Servers at a port or a Unix socket, which stop accepting connections before they end.

server = SocketServer.at_port(app, host="127.0.0.1", port=7707)
await server.listen()
server.connections.ends_each = lambda: True     responses end their connections
await server.stop_listening()                   open connections are still served
server.close_idle(5.0)
await server.close()

A connection that waits in the queue of the listening socket at `stop_listening` is served; `close`
alone would reset it. A later one is refused, so that a balancer knows that nothing was sent, and
tries another server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from anaphora.errors import Io

from .asyncio_server import CLOSE_SECONDS, ServedConnections
from .connection_limits import ConnectionLimits
from .server import ServerAddress, StoppableApp, bound_socket

#: Maximum bytes of a socket's path, without the final zero.
_LONGEST_PATH = 107
#: Connections accepted at a time, and the length of the queue.
_ACCEPTED_AT_ONCE, _WAITING = 16, 1024
#: Seconds until an accepted connection is registered.
_ACCEPT_SECONDS = 0.01


class SocketServer:
    """For one event loop."""

    def __init__(
        self,
        app: StoppableApp,
        bind: Callable[[], socket.socket],
        limits: ConnectionLimits | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Use `at_port` or `at_path`."""
        self.connections = ServedConnections(app, limits or ConnectionLimits(), tls)
        self._bind = bind
        self._socket: socket.socket | None = bind()
        self._server: asyncio.Server | None = None

    @classmethod
    def at_port(
        cls,
        app: StoppableApp,
        *,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
        is_shared: bool = False,
    ) -> SocketServer:
        """At any free port if `port` is 0. New connections use the current content of `tls`. Raises
        `Io` if the port cannot be used."""
        bound = [port]

        def bind() -> socket.socket:
            found = bound_socket(host, bound[0], is_shared=is_shared)
            bound[0] = found.getsockname()[1]  # the same one, when it listens again
            return found

        return cls(app, bind, limits, tls)

    @classmethod
    def at_path(
        cls,
        app: StoppableApp,
        path: Path,
        *,
        mode: int = 0o600,
        limits: ConnectionLimits | None = None,
    ) -> SocketServer:
        """At a Unix socket. The file of an earlier server is replaced: the caller has made sure
        that no other server is running."""
        return cls(app, lambda: bound_path(path, mode), limits)

    @property
    def port(self) -> int:
        assert self._socket is not None
        found: int = self._socket.getsockname()[1]
        return found

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    async def listen(self) -> None:
        """Accepts connections, also after `stop_listening`. Raises `Io` if another program has
        taken the port meanwhile."""
        if self._server is not None:
            return
        listener = self._socket = self._socket or self._bind()
        self._server = await asyncio.get_running_loop().create_server(
            self.connections.accept, sock=listener, backlog=_ACCEPTED_AT_ONCE
        )
        listener.listen(_WAITING)

    async def stop_listening(self) -> None:
        """Returns when new connections are refused. Those in the queue are accepted."""
        listener, server = self._socket, self._server
        if listener is None:
            return
        while server is not None:
            # The loop accepts connections, and serves them later: not after `server.close`.
            await asyncio.sleep(_ACCEPT_SECONDS)
            if not _has_waiting(listener):
                break
        self._close_listener()

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._server = None

    def close_idle(self, seconds: float) -> int:
        """Closes connections that were idle for this long; returns how many are left."""
        self.connections.close_idle(seconds)
        return len(self.connections.open)

    async def close(self) -> None:
        """Ends all connections."""
        self._close_listener()
        self.connections.pre_shutdown()
        await self.connections.shutdown(CLOSE_SECONDS)


@contextlib.asynccontextmanager
async def unix_server(
    app: StoppableApp, path: Path, *, mode: int = 0o600, limits: ConnectionLimits | None = None
) -> AsyncIterator[SocketServer]:
    """Serves at a Unix socket until the block ends: see `SocketServer.at_path`."""
    server = SocketServer.at_path(app, path, mode=mode, limits=limits)
    try:
        await server.listen()
        yield server
    finally:
        await server.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


@contextlib.asynccontextmanager
async def tcp_server(
    app: StoppableApp,
    *,
    host: str,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[ServerAddress]:
    """Serves at a port until the block ends: see `SocketServer.at_port`."""
    server = SocketServer.at_port(app, host=host, port=port, tls=tls, limits=limits)
    try:
        await server.listen()
        yield ServerAddress(host, server.port, scheme="http" if tls is None else "https")
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def connected_server(
    app: StoppableApp, limits: ConnectionLimits
) -> AsyncIterator[Callable[[socket.socket], Awaitable[None]]]:
    """Serves connections made by the caller, who passes each to the function, until the block
    ends."""
    connections, loop = ServedConnections(app, limits, None), asyncio.get_running_loop()

    async def serve(connection: socket.socket) -> None:
        await loop.connect_accepted_socket(connections.accept, connection)

    try:
        yield serve
    finally:
        connections.pre_shutdown()
        await connections.shutdown(CLOSE_SECONDS)


def bound_path(path: Path, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise Io(f"{path}: the path of a socket may have {_LONGEST_PATH} bytes; name a shorter one")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(mode)  # no connection is accepted before the socket listens
    except OSError as problem:
        listener.close()
        raise Io(f"cannot listen at {path}: {os.strerror(problem.errno or 0)}") from None
    return listener


def _has_waiting(listener: socket.socket) -> bool:
    """Whether an established connection has not been accepted yet."""
    waiting = select.poll()
    waiting.register(listener.fileno(), select.POLLIN)
    return bool(waiting.poll(0))
