"""A TCP forwarder that keeps the HTTP requests which pass it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

#: Headers of a connection, which a proxy does not pass on, and the host, which it rewrites.
_OF_CONNECTION = frozenset(
    "host connection keep-alive transfer-encoding content-length te trailer upgrade expect".split()
)


class TappedRequest(NamedTuple):
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    """In their order, names in lower case, without those of a connection."""
    body: bytes


class Tap:
    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._connections: list[list[tuple[float, bytes]]] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self) -> list[TappedRequest]:
        """What has passed since the last time, in the order it began."""
        taken, self._connections = self._connections, []
        found = [one for chunks in taken for one in _parsed(chunks)]
        return [request for _, request in sorted(found, key=lambda one: one[0])]

    def close(self) -> None:
        self._listening.close()
        for one in self._sockets:
            _shut_down(one)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                kept: list[tuple[float, bytes]] = []
                self._connections.append(kept)
                self._sockets += client, server
                for words in ((client, server, kept), (server, client, None)):
                    thread = threading.Thread(target=_pump, args=words, daemon=True)
                    thread.start()
                    self._threads.append(thread)


def _pump(
    source: socket.socket, sink: socket.socket, kept: list[tuple[float, bytes]] | None
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept.append((time.monotonic(), data))
            sink.sendall(data)
    _shut_down(source)
    _shut_down(sink)


def _shut_down(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _parsed(chunks: list[tuple[float, bytes]]) -> Iterator[tuple[float, TappedRequest]]:
    data = b"".join(chunk for _, chunk in chunks)
    at = 0
    while b"\r\n\r\n" in data[at:]:
        began, length = 0.0, 0
        for when, chunk in chunks:
            length += len(chunk)
            if length > at:
                began = when
                break
        end = data.index(b"\r\n\r\n", at)
        first, *lines = data[at:end].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        body, at = _body(data, end + 4, dict(headers))
        kept = tuple(one for one in headers if one[0] not in _OF_CONNECTION)
        yield began, TappedRequest(method, path, kept, body)


def _body(data: bytes, at: int, headers: dict[str, str]) -> tuple[bytes, int]:
    """The body that begins there, and where it ends."""
    if headers.get("transfer-encoding") != "chunked":
        length = int(headers.get("content-length", 0))
        return data[at : at + length], at + length
    made = b""
    while (found := re.compile(rb"([0-9a-fA-F]+)[^\r]*\r\n").match(data, at)) is not None:
        size, at = int(found[1], 16), found.end()
        made += data[at : at + size]
        at += size + 2
        if not size:
            break
    return made, at
