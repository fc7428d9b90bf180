"""A provider of Chat Completions whose streams a test controls by the text of the last message.

"count 5 9"   five deltas with 9 wide characters more each, then the end
"hang"        two deltas, and no more until the connection is closed
"silence"     nothing until the connection is closed
"break"       two deltas, and the connection breaks
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from .socket_upstream import UpstreamConnection, socket_upstream
from .waiting import PATIENCE

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class StreamingProvider:
    def __init__(self) -> None:
        self.url = ""
        self.sent = 0
        """Deltas that were given to the operating system."""
        self._asked = threading.Semaphore(0)
        self._closed = threading.Semaphore(0)

    def forget(self) -> int:
        """Forgets the requests so far; how many they were."""
        count = 0
        while self._asked.acquire(blocking=False):
            count += 1
        return count

    def wait_asked(self) -> None:
        assert self._asked.acquire(timeout=PATIENCE), "no request arrived"

    def wait_closed(self) -> None:
        """Until a connection was closed before its stream had ended."""
        assert self._closed.acquire(timeout=PATIENCE), "no connection was closed"

    def handle(self, connection: UpstreamConnection) -> None:
        request = connection.read_request()
        try:
            body = json.loads(request.partition(b"\r\n\r\n")[2])
        except ValueError:  # cancelled before it was sent
            return
        text = _text(body["messages"][-1]["content"])
        order, count, size = text.split(" ") if " " in text else (text, "2", "0")
        self._asked.release()
        hangs = order in ("hang", "silence")
        if order != "silence":
            # What hangs may be cancelled, and the connection closed, before all is sent.
            with contextlib.suppress(*[OSError] * hangs):
                connection.send(_HEAD)
                self._send_deltas(connection, int(count), int(size))
        if hangs:
            connection.wait_closed()
            self._closed.release()
        elif order == "count":
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            connection.send(_chunk({}, finish_reason="stop", usage=usage) + b"data: [DONE]\n\n")

    def _send_deltas(self, connection: UpstreamConnection, count: int, padding: int) -> None:
        self.sent = 0
        for number in range(count):
            connection.send(_chunk({"content": f"{number} " + "漢" * padding}))
            self.sent += 1


def _text(content: Any) -> str:
    return content if isinstance(content, str) else str(content[0]["text"])


def _chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    fields = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "gpt-5.2"}
    return b"data: %b\n\n" % json.dumps({**fields, "choices": [choice], **more}).encode()


@contextlib.contextmanager
def streaming_provider() -> Iterator[StreamingProvider]:
    provider = StreamingProvider()
    with socket_upstream(provider.handle) as upstream:
        provider.url = upstream.url
        yield provider
