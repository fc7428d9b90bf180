"""The ASGI application: everything goes to the engine, apart from the look inside."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import parse_qsl

from anaphora.emulator.core.asked import Answer, Asked
from anaphora.emulator.core.engine import Engine

from .inside import INSIDE, inside

#: No provider takes more; what is longer is not read to its end.
_MOST = 128 * 1024 * 1024
#: No client waits for longer.
_HANGING = 900.0
#: How often it is looked whether the last answers are out, a hundredth of a second each.
_LAST_CALLS = 100


class Cut(Exception):
    """The connection ends here, because the answer says so."""


class App:
    """ASGI by hand: a router would cost more than most answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inside = inside(engine)
        self._closing = asyncio.Event()
        self._under_way = 0

    async def close(self) -> None:
        """Ends what still waits: the server may go only when nobody is being answered."""
        self._closing.set()
        for _ in range(_LAST_CALLS):
            if not self._under_way:
                break
            await asyncio.sleep(0.01)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path in ("/", INSIDE) or path.startswith(INSIDE + "/"):
            await self._inside(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            await _say(send, 413, b'{"error":{"message":"the body is too large"}}')
            return
        asked = Asked(
            method=scope["method"],
            path=path,
            query=_query(scope["query_string"]),
            headers={
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in scope["headers"]
            },
            body=body,
            at=time.time(),
        )
        self._under_way += 1
        try:
            await self._send(self.engine.answer(asked), send)
        finally:
            self._under_way -= 1

    async def _send(self, answer: Answer, send: Any) -> None:
        if answer.hang:
            await self._wait(_HANGING)
            raise Cut
        cut = 0 if answer.reset and answer.cut_after is None else answer.cut_after
        chunks = answer.chunks if cut is None else answer.chunks[:cut]
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        if not answer.stream:
            size = sum(len(chunk.data) for chunk in answer.chunks)
            headers.append((b"content-length", b"%d" % size))
        if chunks and chunks[0].delay:
            await self._wait(chunks[0].delay)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        pending: list[bytes] = []
        for index, chunk in enumerate(chunks):
            if index and chunk.delay:
                # What needs no wait in between goes out together.
                await _more(send, pending)
                await self._wait(chunk.delay)
            pending.append(chunk.data)
        if cut is not None:
            await _more(send, pending)
            raise Cut
        await send({"type": "http.response.body", "body": b"".join(pending), "more_body": False})

    async def _wait(self, seconds: float) -> None:
        """So long, unless the server closes meanwhile."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return
        raise Cut


def _query(said: bytes) -> dict[str, str]:
    return dict(parse_qsl(said.decode("latin-1"))) if said else {}


async def _read(receive: Any) -> bytes | None:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        piece = message.get("body", b"")
        size += len(piece)
        if size > _MOST:
            return None
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _more(send: Any, pending: list[bytes]) -> None:
    body = b"".join(pending)
    pending.clear()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _say(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
