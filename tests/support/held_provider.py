"""A provider of every wire that stops in the middle of each answer, until a test lets it go on.

with held_provider() as provider:
    ...                        # a stream has sent half of its text; another answer nothing
    provider.wait_asked()
    provider.go_on()           # all answers go on to their usage
    provider.wait_ended()      # "whole": all was sent; "cut": the connection was closed before

It bills as providers do that go on: every request that arrived costs its whole answer.
"""

from __future__ import annotations

import contextlib
import json
import queue
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

from anaphora import wire
from anaphora.values import (
    Event,
    Message,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
    Usage,
    UsageUpdate,
)

from .socket_upstream import UpstreamConnection, socket_upstream
from .waiting import PATIENCE

_PATHS = {
    "/messages": "anthropic",
    "/chat/completions": "openai_chat",
    "/responses": "openai_responses",
    "generateContent": "gemini",
    "streamGenerateContent": "gemini",
}
#: Characters of a delta.
_PIECE = 10_000
USAGE = Usage(uncached=1000, output=200)


class HeldProvider:
    def __init__(self) -> None:
        self.url = ""
        self.open = 0
        """Requests that are being answered."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets everything, and holds answers back."""
        self.half = "harbour " * 20
        """Half of a text."""
        self.usage = USAGE
        self.late_error: bytes | None = None
        """Sent in place of the second half: a whole response, or the rest of a stream."""
        self.bodies: list[dict[str, Any]] = []
        self._asked = threading.Semaphore(0)
        self._going = threading.Event()
        self._ended: queue.Queue[str] = queue.Queue()

    def hold(self) -> None:
        """Holds further answers back."""
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    def wait_asked(self) -> None:
        assert self._asked.acquire(timeout=PATIENCE), "no request arrived"

    def wait_ended(self) -> str:
        """How an answer has ended."""
        return self._ended.get(timeout=PATIENCE)

    @property
    def is_answering(self) -> bool:
        """Whether no answer has ended that a test has not seen."""
        return self._ended.empty()

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def handle(self, connection: UpstreamConnection) -> None:
        if request := connection.read_request():
            with self._lock:
                self.open += 1
            try:
                self._answer(connection, request)
            finally:
                with self._lock:
                    self.open -= 1

    def _answer(self, connection: UpstreamConnection, request: bytes) -> None:
        head, _, data = request.partition(b"\r\n\r\n")
        path = head.split(b" ")[1].decode().partition("?")[0]
        body = json.loads(data)
        self.bodies.append(body)
        name = next(wire for end, wire in _PATHS.items() if path.endswith(end))
        streamed = body.get("stream", False) or "streamGenerate" in path
        first, rest = self._stream(name) if streamed else (b"", self._whole(name))
        with contextlib.suppress(OSError):
            connection.send(first)
            self._asked.release()
            if not self._may_go_on(connection):
                self._ended.put("cut")
                return
            connection.send(self.late_error or rest)
            self._ended.put("whole")
            return
        self._ended.put("cut")

    def _may_go_on(self, connection: UpstreamConnection) -> bool:
        """When the test says so; False where the connection was closed before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._going.wait(0.01):
                return True
            if select.select([connection._socket], [], [], 0)[0] and not connection._more():
                return False
        return False

    def _whole(self, name: str) -> bytes:
        body = wire.get(name).write_reply(self._reply(2))
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        return f"{head}content-type: application/json\r\n\r\n".encode() + body

    def _stream(self, name: str) -> tuple[bytes, bytes]:
        writer = wire.get(name).writer()
        pieces = [self.half[at : at + _PIECE] for at in range(0, len(self.half), _PIECE)]
        half = [TextDelta(0, piece) for piece in pieces]
        beginning: list[Event] = [ReplyStart("reply_1", "m"), PartStart(0, "text")]
        if name == "anthropic":  # which reports the input at once
            beginning.insert(1, UsageUpdate(Usage(uncached=self.usage.uncached, output=1)))
        first = b"".join(map(writer.write, [*beginning, *half]))
        reply = self._reply(2)
        end: list[Event] = [*half, PartEnd(0, reply.message.parts[0]), ReplyEnd(reply)]
        rest = b"".join(map(writer.write, end))
        head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: "
        head += "text/event-stream"
        return head.encode() + b"\r\n\r\n" + first, rest

    def _reply(self, halves: int) -> Reply:
        text = Text(self.half * halves)
        message = Message(id="reply_1", role="assistant", parts=(text,))
        return Reply(id="reply_1", model="", message=message, stop_reason="end", usage=self.usage)


@contextlib.contextmanager
def held_provider() -> Iterator[HeldProvider]:
    provider = HeldProvider()
    with socket_upstream(provider.handle) as upstream:
        provider.url = upstream.url
        yield provider
        provider.go_on()
