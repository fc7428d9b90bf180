"""Requests: the envelope around the chunks, and the body as slices until it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.values import Notice

from .log import ChunkLog


class Envelope(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The body around the chunks, the headers, and the parameters the cache depends on."""

    source: Any
    """The parameters it was made from: equal ones have the same envelope."""
    method: str = "POST"
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    head: bytes
    """The body before the first run."""
    tail: bytes
    """The body after the last run."""
    cache_params: tuple[tuple[str, bytes], ...] = ()
    """Every parameter that affects the cache without being a chunk, as it is sent."""
    notices: tuple[Notice, ...] = ()
    plain: Envelope | None = None
    """The wire's own envelope, where a dialect changed it."""
    speaker: Any = None
    """The dialect codec that changed it."""


Piece = bytes | tuple[ChunkLog, int, int]


class Body:
    """The body of a request. `len()` is known without joining; `join()` gives the bytes.

    Iterating yields the slices without copying. A slice that is kept pins its buffer, and the next
    turn then has to copy that buffer; so do not keep slices.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return sum(
            len(piece) if isinstance(piece, bytes) else piece[2] - piece[1]
            for piece in self._pieces
        )

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._slices())

    def join(self) -> bytes:
        return b"".join(self._slices())

    def _slices(self) -> list[bytes | memoryview]:
        return [
            piece if isinstance(piece, bytes) else memoryview(piece[0].buffer)[piece[1] : piece[2]]
            for piece in self._pieces
        ]

    __bytes__ = join

    def __repr__(self) -> str:
        return f"<Body of {len(self)} bytes in {len(self._pieces)} slices>"


class Request(msgspec.Struct, frozen=True, eq=False):
    """Method, path, headers and body. The client adds the host and credentials."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: Body
