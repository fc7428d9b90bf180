"""Bodies without their content encoding, piece by piece."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from anaphora.client.transport.decoding import Decompressor
from anaphora.errors import Parse

from .fixture import FixturePiece

#: A decompressed body beyond this is not recorded.
_MOST_BYTES = 256 * 2**20

#: The packages that can read an encoding which Python itself does not, if one is installed: module,
#: class or function that makes a decompressor, and its method.
_OTHERS = {
    "br": (("brotli", "Decompressor", "process"), ("brotlicffi", "Decompressor", "process")),
    "zstd": (
        ("compression.zstd", "ZstdDecompressor", "decompress"),
        ("backports.zstd", "ZstdDecompressor", "decompress"),
        ("zstandard", "ZstdDecompressor", "decompressobj"),
    ),
}


def is_decodable(encoding: str) -> bool:
    try:
        for name in _names(encoding):
            _decoder(name)
    except Parse:
        return False
    return True


def decoded(pieces: Sequence[FixturePiece], encoding: str) -> tuple[FixturePiece, ...]:
    """The pieces after decompression. Raises `Parse` for an encoding that is not known here, and
    for broken data; a body that ends early is decoded as far as it goes."""
    for name in reversed(_names(encoding)):
        feed = _decoder(name)
        left = _MOST_BYTES
        made = []
        for piece in pieces:
            try:
                data = feed(piece.data, left)
            except Exception as problem:  # each package has its own
                raise Parse(f"not recorded: content-encoding {name}: {problem}") from None
            left -= len(data)
            if left < 0:
                raise Parse(f"not recorded: the body is larger than {_MOST_BYTES >> 20} MB")
            if data:
                made.append(FixturePiece(piece.seconds, data))
        pieces = made
    return tuple(pieces)


def _names(encoding: str) -> list[str]:
    names = (each.strip().lower() for each in encoding.split(","))
    return [each for each in names if each not in ("", "identity")]


def _decoder(name: str) -> Callable[[bytes, int], bytes]:
    decompressor = Decompressor.of(name)
    if decompressor is not None:
        return decompressor.feed
    for module, maker, method in _OTHERS.get(name, ()):
        try:
            made: Any = getattr(importlib.import_module(module), maker)()
        except ImportError:
            continue
        made = made.decompressobj() if method == "decompressobj" else made
        feed = getattr(made, "decompress" if method == "decompressobj" else method)
        return lambda data, _: feed(data)
    raise Parse(
        f"not recorded: the body has content-encoding {name}, which cannot be read here and may"
        " hold a secret; ask for gzip"
    )
