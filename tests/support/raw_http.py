"""Requests as bytes on a socket, for what no HTTP client sends."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
from support.waiting import PATIENCE


class RawResponse(msgspec.Struct, frozen=True):
    status: int
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def request_bytes(
    method: str, path: str, body: bytes = b"", *, host: str = "localhost", **headers: str
) -> bytes:
    """A request; `_` in a header's name stands for `-`."""
    named = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body or method == "POST":
        named = {"content-length": str(len(body)), **named}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def exchange(port: int, data: bytes, host: str = "127.0.0.1") -> RawResponse:
    """Sends bytes, and reads one response to its end."""
    with socket.create_connection((host, port), PATIENCE) as connection:
        connection.sendall(data)
        return read_response(connection)


def read_response(connection: socket.socket) -> RawResponse:
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        if end and _is_complete(head, body):
            break
        piece = connection.recv(65_536)
        if not piece:
            break
        received += piece
    assert received.startswith(b"HTTP/1."), received[:200]
    return RawResponse(int(head[9:12]), head.decode("latin-1").lower(), body)


def _is_complete(head: bytes, body: bytes) -> bool:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")
