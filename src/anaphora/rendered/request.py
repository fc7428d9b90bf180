"""A request, ready to send: the body stays a handful of slices until someone needs it whole."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .log import ChunkLog

Piece = bytes | tuple[ChunkLog, int, int]


class Body:
    """The body of a request. `len()` is known without joining; `join()` gives the bytes.

    Iterating yields the slices without copying. A slice that is kept alive pins the buffer it
    looks into, and the next turn then has to copy that buffer; so send it, and let it go.
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
    """Method, path, headers and body. Address and authorisation are the client's."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: Body
