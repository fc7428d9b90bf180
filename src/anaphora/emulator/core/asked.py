"""What comes in and what goes out: a request as it came, and an answer piece by piece."""

from __future__ import annotations

import functools

import msgspec

from anaphora.errors import RequestRejected
from anaphora.wire.reading import DECODE_ERRORS

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"


class Asked(msgspec.Struct, frozen=True, kw_only=True, dict=True):
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

    @functools.cached_property
    def fields(self) -> dict[str, msgspec.Raw]:
        """The outermost fields of the body, which several ask for."""
        return members(self.body)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def members(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The outermost fields of a body; none of an empty one."""
    try:
        return _members(body or b"{}")
    except DECODE_ERRORS as problem:
        raise RequestRejected(f"the body is no JSON object: {problem}", status=400) from None


class Chunk(msgspec.Struct, frozen=True, gc=False):
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
