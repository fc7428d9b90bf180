"""An HTTP server on loopback whose answers a function makes: status, headers and JSON.

with local_server(lambda request: (200, {}, {"ok": True})) as server:
    ...server.url, server.requests
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from support.waiting import PATIENCE


class SeenRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class LocalServer:
    def __init__(self) -> None:
        self.url = ""
        self.requests: list[SeenRequest] = []


Answers = Callable[[Any], tuple[int, dict[str, str], Any]]


@contextmanager
def local_server(answer: Answers) -> Iterator[LocalServer]:
    """`answer` gets the request handler, with the body as `body`."""
    server = LocalServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append(SeenRequest(self.path, headers, self.body))
            status, more, value = answer(self)
            data = json.dumps(value).encode()
            self.send_response_only(status)
            for name, text in {"Content-Type": "application/json", **more}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        server.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            running.shutdown()
            thread.join(PATIENCE)
