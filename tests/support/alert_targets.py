"""A receiver of alerts.

with webhook_receiver() as receiver:
    receiver.statuses = [500]          # of the next answers; afterwards 204
    receiver.wait(2)                   # the facts of the first two requests
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from .waiting import PATIENCE, wait_until

KEY = "canary-key-of-the-webhook-0815"
PATH = "/services/canary-path-of-the-webhook-4712"


class WebhookReceiver:
    def __init__(self) -> None:
        self.url = ""
        self.statuses: list[int] = []
        self.requests: list[tuple[str, bytes]] = []
        """The signature and the body of each."""
        self.answers = threading.Event()
        """Cleared: answers are held back."""
        self.answers.set()

    def facts(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(body) for _, body in list(self.requests)]

    def ids(self) -> list[str]:
        return [one["id"] for one in self.facts()]

    def wait(self, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.requests) >= count, f"{count} alerts arrive")
        return self.facts()


def is_signed(signature: str, body: bytes) -> bool:
    """As a receiver would check it, from the documentation."""
    parts = dict(part.split("=", 1) for part in signature.split(","))
    signed = parts["t"].encode() + b"." + body
    expected = hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts["v1"])


@contextlib.contextmanager
def webhook_receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            receiver.requests.append((self.headers["anaphora-signature"], body))
            receiver.answers.wait(PATIENCE)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("location", f"{receiver.url}/elsewhere")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}{PATH}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.answers.set()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def add_secrets(home: Path, receiver: WebhookReceiver) -> None:
    for name, value in (("HOOK_URL", receiver.url), ("HOOK_KEY", KEY)):
        file = home / "secrets" / f"{name}.txt"
        file.touch(mode=0o600)
        file.write_text(value)


HOOK: dict[str, Any] = {"url": {"secret": "HOOK_URL"}, "key": {"secret": "HOOK_KEY"}}
