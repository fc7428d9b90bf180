"""A local HTTP server that answers with given bytes, for the official SDKs to read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def byte_server(
    body: bytes,
    content_type: str,
    status: int = 200,
    headers: dict[str, str] | None = None,
    seen: list[tuple[str, str, bytes]] | None = None,
) -> Iterator[str]:
    """The URL of a local server that gives this response to every request and appends
    method, path and body of each request to `seen`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request_body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if seen is not None:
                seen.append((self.command, self.path, request_body))
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_PATCH = do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
