"""A provider of every wire that keeps what it is sent and answers as a test says.

with scripted_provider() as provider:
    provider.usage = Usage(uncached=10, output=5)
    provider.error = 429, b'{"error": …}'        # of the next request
    ...provider.url, provider.bodies
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from anaphora import wire
from anaphora.values import Message, Reply, Usage

from .socket_upstream import UpstreamConnection, socket_upstream

#: The end of a path, and its wire.
_PATHS = {
    "/v1/messages": "anthropic",
    "/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
    ":generateContent": "gemini",
}


class ScriptedProvider:
    def __init__(self) -> None:
        self.url = ""
        self.reset()

    def reset(self) -> None:
        self.text = "Hello."
        self.model: str | None = None
        """The model that answers; by default the requested one."""
        self.usage = Usage(uncached=10, output=5)
        self.fields: dict[str, Any] = {}
        """Of replies, beside the others."""
        self.error: tuple[int, bytes] | None = None
        """Status and body of the next response."""
        self.bodies: list[dict[str, Any]] = []

    @property
    def body(self) -> dict[str, Any]:
        """Of the only request so far."""
        (body,) = self.bodies
        return body

    def handle(self, connection: UpstreamConnection) -> None:
        while request := connection.read_request():
            head, _, data = request.partition(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            self.bodies.append(json.loads(data))
            connection.send(self._response(path))

    def _response(self, path: str) -> bytes:
        if self.error is not None:
            status, body = self.error
            self.error = None
        elif path.endswith("/count_tokens"):
            status, body = 200, b'{"input_tokens":12}'
        elif path.endswith(("/input_tokens", ":countTokens")):
            status, body = 404, b"{}"  # these wires count no tokens here
        else:
            status, body = 200, self._reply(path)
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    def _reply(self, path: str) -> bytes:
        name = next(wire for end, wire in _PATHS.items() if path.partition("?")[0].endswith(end))
        asked = self.bodies[-1].get("model") or path.rpartition("/")[2].partition(":")[0]
        reply = Reply(
            id="reply_1",
            model=self.model or asked,
            message=Message.assistant(self.text),
            stop_reason="end",
            usage=self.usage,
        )
        written = wire.get(name).write_reply(reply)
        return json.dumps(json.loads(written) | self.fields).encode() if self.fields else written


@contextlib.contextmanager
def scripted_provider() -> Iterator[ScriptedProvider]:
    provider = ScriptedProvider()
    with socket_upstream(provider.handle) as upstream:
        provider.url = upstream.url
        yield provider
