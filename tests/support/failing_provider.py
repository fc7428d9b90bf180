"""A provider that answers every request with the bytes that a test sets.

with failing_daemon(folder) as (daemon, provider):
    provider.fail(429, {"error": …}, "retry-after: 7")
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .daemon import GRANT, TestedDaemon, llm_yaml, running_daemon
from .socket_upstream import UpstreamConnection, socket_upstream


class FailingProvider:
    """Sends the bytes that a test sets, and closes the connection."""

    def __init__(self) -> None:
        self.data = b""
        self.url = ""
        self.streamed = ""
        """A stream that tests may send."""
        self.requests: list[bytes] = []
        self.later: tuple[bytes, ...] = ()
        self.hangs = False
        self.closed = threading.Event()
        """The daemon has closed the connection of a provider that hangs."""

    def __call__(self, connection: UpstreamConnection) -> None:
        if request := connection.read_request():
            self.requests.append(request)
            connection.send(self.data)
            for piece in self.later:
                time.sleep(0.02)
                connection.send(piece)
            if self.hangs:
                connection.wait_closed()
                self.closed.set()

    def fail(self, status: int, body: Any, *headers: str) -> None:
        self.later = ()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = f"content-length: {len(data)}"
        # A client that keeps the connection would find it closed.
        lines = [f"HTTP/1.1 {status} x", length, "connection: close", *headers]
        self.data = "\r\n".join([*lines, "", ""]).encode() + data

    def stream_pieces(self, first: str, *later: str) -> None:
        """Pieces that arrive one after the other."""
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        self.data = f"{head}{first}".encode()
        self.later = tuple(each.encode() for each in later)

    def stream(self, *events: Any) -> None:
        self.later = ()
        lines = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        # Longer than what is sent: the connection breaks.
        self.data = f"{head}content-length: 9999\r\n\r\n{lines}".encode()


@contextlib.contextmanager
def failing_daemon(
    folder: Path, *, extensions: dict[str, Any] | None = None, ui: dict[str, Any] | None = None
) -> Iterator[tuple[TestedDaemon, FailingProvider]]:
    """A daemon whose providers all answer so. Nothing is tried twice."""
    provider = FailingProvider()
    with socket_upstream(provider) as upstream:
        llm = llm_yaml(upstream.url)
        llm["daemon"]["ui"] = ui or {}
        for one in llm["providers"].values():
            one["retry"] = {"max_attempts": 1}
            one["breaker"] = {"failures": 1_000}
        grants = extensions or {"demo": GRANT}
        with running_daemon(folder, upstream, extensions=grants, llm=llm) as tested:
            provider.url = upstream.url
            yield tested, provider
