"""A provider as bytes on sockets, for tests of the proxy: what arrives is kept unchanged, and a
test says what is sent when.

    with socket_upstream(answering(b"HTTP/1.1 200 OK\\r\\n…")) as upstream:
        ...upstream.url, upstream.requests
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from anaphora.traffic.calls import ProxyRoute, RelayedCall

from .waiting import PATIENCE


class UpstreamConnection:
    """One connection, of the side that is asked."""

    def __init__(self, sock: socket.socket, upstream: SocketUpstream) -> None:
        self._socket = sock
        self._upstream = upstream
        self._received = b""

    def read_head(self) -> bytes:
        """Request line and headers; empty where the peer is gone."""
        while b"\r\n\r\n" not in self._received:
            if not self._more():
                return b""
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def read(self, size: int) -> bytes:
        while len(self._received) < size:
            if not self._more():
                break
        data, self._received = self._received[:size], self._received[size:]
        return data

    def read_request(self) -> bytes:
        """The bytes of a whole request, chunks included; empty if the peer is gone."""
        head = self.read_head()
        if not head:
            return b""
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            while not self._received.endswith(b"0\r\n\r\n"):
                if not self._more():
                    break
            body, self._received = self._received, b""
        else:
            _, found, rest = lower.partition(b"content-length: ")
            body = self.read(int(rest.split(b"\r\n")[0])) if found else b""
        self._upstream.requests.append(head + body)
        return head + body

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait_closed(self) -> None:
        """Returns when the peer has closed the connection, however late; the server's end closes it
        as well."""
        self._socket.settimeout(None)
        while self._more():
            self._received = b""

    def reset(self) -> None:
        """Ends the connection without a farewell."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _more(self) -> bool:
        try:
            data = self._socket.recv(65_536)
        except OSError:
            return False
        self._received += data
        return bool(data)


Handler: TypeAlias = Callable[[UpstreamConnection], None]


class SocketUpstream:
    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[bytes] = []
        self.connections = 0

    def route(self, provider: str = "anthropic", prefix: str = "/up") -> ProxyRoute:
        return ProxyRoute(prefix=prefix, provider=provider, upstream=self.url)


@contextlib.contextmanager
def socket_upstream(
    handler: Handler, tls: ssl.SSLContext | None = None
) -> Iterator[SocketUpstream]:
    """A server whose connections are handled in threads."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    upstream = SocketUpstream(f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}")
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True)
                opened.append(sock)
            handler(UpstreamConnection(sock, upstream))
        with contextlib.suppress(OSError):
            sock.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE)
            opened.append(sock)
            upstream.connections += 1
            threads.append(threading.Thread(target=serve, args=(sock,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield upstream
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()
        for sock in opened:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in threads:
            thread.join(PATIENCE)


def answering(*answers: bytes) -> Handler:
    """Gives these answers one after the other on each connection, the last one again and again."""

    def handle(connection: UpstreamConnection) -> None:
        given = 0
        while connection.read_request():
            connection.send(answers[min(given, len(answers) - 1)])
            given += 1

    return handle


class CallList:
    """An observer that keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[RelayedCall] = []
        self._changed = threading.Condition()

    def call_ended(self, call: RelayedCall) -> None:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[RelayedCall]:
        """The calls, when there are as many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, PATIENCE)
            return list(self.calls)
