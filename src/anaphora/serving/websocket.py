"""One WebSocket of a client over ASGI."""

from __future__ import annotations

from typing import Any

from .exchange import CompleteResponse

#: The server is stopping (RFC 6455).
GOING_AWAY = 1001


class ServedWebSocket:
    """Accepted or denied first; then messages go both ways until one side closes it."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.header_pairs: list[tuple[str, str]] = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in scope["headers"]
        ]
        self.headers = dict(self.header_pairs)
        self.protocols: list[str] = list(scope.get("subprotocols") or ())
        self._receive = receive
        self._send = send
        self._accepted = self._closed = False

    @property
    def raw_path(self) -> str:
        """The percent-encoded path."""
        return str(self.scope["raw_path"].decode("latin-1"))

    async def accept(self, protocol: str | None = None) -> None:
        await self._receive()  # websocket.connect
        self._accepted = True
        await self._send({"type": "websocket.accept", "subprotocol": protocol, "headers": []})

    async def deny(self, response: CompleteResponse) -> None:
        """Answers the handshake with an HTTP response."""
        await self._receive()
        headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
        start = {"type": "websocket.http.response.start", "status": response.status}
        await self._send({**start, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": response.body})

    async def receive(self) -> str | bytes | None:
        """The next message; None when the client has closed."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._closed = True
            return None
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    async def send(self, message: str | bytes) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        await self._send({"type": "websocket.send", kind: message})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self._accepted and not self._closed:
            self._closed = True
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
