"""Bodies without their content encoding, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anaphora.client.transport.decoding import (
    InvalidCompression,
    UnknownCompression,
    any_decompressor,
    encodings,
)
from anaphora.errors import Parse

from .fixture import FixturePiece

#: A decompressed body beyond this is not recorded.
_MOST_BYTES = 256 * 2**20


def is_decodable(encoding: str) -> bool:
    try:
        for name in encodings(encoding):
            any_decompressor(name)
    except UnknownCompression:
        return False
    return True


def decoded(pieces: Sequence[FixturePiece], encoding: str) -> tuple[FixturePiece, ...]:
    """The pieces after decompression. Raises `Parse` for an encoding that is not known here, and
    for broken data; a body that ends early is decoded as far as it goes."""
    for name in reversed(encodings(encoding)):
        feed = _decoder(name)
        left = _MOST_BYTES
        made = []
        for piece in pieces:
            try:
                data = feed(piece.data, left)
            except InvalidCompression as problem:
                raise Parse(f"not recorded: content-encoding {name}: {problem}") from None
            left -= len(data)
            if left < 0:
                raise Parse(f"not recorded: the body is larger than {_MOST_BYTES >> 20} MB")
            if data:
                made.append(FixturePiece(piece.seconds, data))
        pieces = made
    return tuple(pieces)


def _decoder(name: str) -> Callable[[bytes, int], bytes]:
    try:
        return any_decompressor(name).feed
    except UnknownCompression:
        raise Parse(
            f"not recorded: the body has content-encoding {name}, which cannot be read here and may"
            " hold a secret; ask for gzip"
        ) from None
