"""What comes in and what goes out: a request as it came, and an answer piece by piece."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str
    path: str
    """Without the query."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    """Names in lower case."""
    body: bytes = b""
    at: float = 0.0
    """When it came, in seconds since 1970, by the emulator's clock."""


class Chunk(NamedTuple):
    """A piece of an answer, and how long to wait before it is sent."""

    delay: float
    data: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. What is not the answer's content but the connection's misfortune is a flag."""

    status: int = 200
    headers: dict[str, str] = {}
    chunks: tuple[Chunk, ...] = ()
    """Of a stream one for each event; otherwise the body."""
    stream: bool = False
    wire: str = ""
    dialect: str = ""
    """Who speaks the wire, where that is not the provider whose wire it is."""
    hang: bool = False
    """Nothing is ever sent."""
    reset: bool = False
    """The connection is dropped: before anything is sent, or behind `cut_after` chunks."""
    cut_after: int | None = None
    """The connection ends behind so many chunks, without the end of the answer."""

    @property
    def body(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)


def whole(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None, wire: str = ""
) -> Answer:
    """An answer in one piece; JSON unless a header says otherwise."""
    said = {"content-type": JSON, **(headers or {})}
    return Answer(status=status, headers=said, chunks=(Chunk(0.0, body),), wire=wire)
