"""The emulator's Bedrock and Vertex AI behind a server that keeps every request, and can refuse the next
ones. Streams arrive in pieces that end in the middle of frames."""

from __future__ import annotations

import contextlib
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from anaphora.wire.eventstream import CONTENT_TYPE

from .waiting import PATIENCE

_OWN = ("host", "content-length", "connection", "accept-encoding")


def frame(payload: bytes, kind: str = "chunk") -> bytes:
    """One event of AWS's binary stream."""
    fields = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in fields.items()
    )
    size = 12 + len(headers) + len(payload) + 4
    prelude = struct.pack(">II", size, len(headers))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return head + struct.pack(">I", zlib.crc32(head))


class BedrockServer:
    def __init__(self, emulator_url: str) -> None:
        self.emulator_url = emulator_url
        self.url = ""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.failures: list[int] = []
        """Statuses of the next answers, before they are answered."""


@contextlib.contextmanager
def bedrock_server(emulator_url: str) -> Iterator[BedrockServer]:
    bedrock = BedrockServer(emulator_url)

    class Handler(_Handler):
        state = bedrock

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bedrock.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield bedrock
        finally:
            server.shutdown()
            thread.join(PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: BedrockServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.state.requests.append((self.path, dict(self.headers), body))
        if self.state.failures:
            status = self.state.failures.pop(0)
            return self._answer(status, b'{"message":"busy"}', "ThrottlingException")
        sent = {name.lower(): value for name, value in self.headers.items()}
        kept = {name: value for name, value in sent.items() if name not in _OWN}
        kept.setdefault("authorization", "Bearer emulated")
        answer = httpx.post(
            self.state.emulator_url + self.path, content=body, headers=kept, timeout=PATIENCE
        )
        kind = answer.headers["content-type"]
        if kind == CONTENT_TYPE:
            return self._stream(answer.content)
        error = answer.headers.get("x-amzn-errortype", "").partition(":")[0]
        return self._answer(answer.status_code, answer.content, error, kind)

    def _answer(
        self, status: int, data: bytes, error: str = "", kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        if error:
            self.send_header("x-amzn-errortype", f"{error}:http://internal.amazon.com/coral/")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, data: bytes) -> None:
        """In pieces that end anywhere."""
        self.send_response(200)
        self.send_header("content-type", CONTENT_TYPE)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for start in range(0, len(data), 300):
            piece = data[start : start + 300]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
