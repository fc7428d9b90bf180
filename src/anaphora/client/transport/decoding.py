"""Decompresses response bodies. aiohttp would accept a body whose compressed data ends early."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

#: What requests accept, and how zlib reads it.
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ACCEPT_ENCODING = "gzip, deflate"


class InvalidCompression(Exception):
    """The compressed data is broken, or ends early."""


class UnknownCompression(Exception):
    """The body is compressed in a way that cannot be read here."""


#: The modules that read other encodings, the first that is installed is used: their class, and its
#: method. Programs whose responses are relayed may accept these encodings.
_MODULES = {
    "br": (("brotli", "Decompressor", "process"), ("brotlicffi", "Decompressor", "process")),
    "zstd": (
        ("compression.zstd", "ZstdDecompressor", "decompress"),
        ("backports.zstd", "ZstdDecompressor", "decompress"),
        ("zstandard", "ZstdDecompressor", "decompressobj"),
    ),
}
#: Bytes that such a module is given at a time, since not all take a limit.
_PIECE = 4096


def decoded(body: bytes, encoding: str, most: int) -> bytes:
    """A whole body as it was before its content encodings, the last of which is undone first.
    Raises `InvalidCompression`, also for more than `most` bytes, and `UnknownCompression`."""
    for name in reversed([each.strip().lower() for each in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        decompressor = Decompressor.of(name)
        if decompressor is None:
            body = _decoded_by_module(body, name, most)
        else:
            body = decompressor.feed(body, most)
            if len(body) <= most:
                decompressor.finish()
        if len(body) > most:
            raise InvalidCompression(f"the decompressed data is larger than {most:,} bytes")
    return body


def _decoded_by_module(body: bytes, name: str, most: int) -> bytes:
    decompressor, method = _other_decompressor(name)
    read, size, pieces = getattr(decompressor, method), 0, []
    try:
        for at in range(0, len(body), _PIECE):
            pieces.append(read(body[at : at + _PIECE]))
            size += len(pieces[-1])
            if size > most:
                return b"".join(pieces)
        done = decompressor.is_finished() if name == "br" else decompressor.eof
    except Exception:  # each module has an error of its own
        raise InvalidCompression("the compressed data is broken") from None
    if body and not done:
        raise InvalidCompression("the compressed data ends early")
    return b"".join(pieces)


def _other_decompressor(name: str) -> tuple[Any, str]:
    for module, made, method in _MODULES.get(name, ()):
        try:
            decompressor = getattr(importlib.import_module(module), made)()
        except ImportError:
            continue
        if method == "decompressobj":
            decompressor, method = decompressor.decompressobj(), "decompress"
        return decompressor, method
    installable = [module for module, *_ in _MODULES.get(name, ()) if "compression" not in module]
    hint = f"; install {installable[0]} to read it" if installable else ""
    raise UnknownCompression(f"compressed with {name}{hint}")


class Decompressor:
    """The decompressor of one body: `feed` all of it, then `finish`."""

    @classmethod
    def of(cls, encoding: str | None) -> Decompressor | None:
        """None for a body that is not compressed, or in a way that was not requested."""
        name = (encoding or "").strip().lower()
        return cls(name) if name in _WINDOW else None

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._window = _WINDOW[encoding]
        self._stream = zlib.decompressobj(self._window)
        self._began = False

    def feed(self, data: bytes, most: int) -> bytes:
        """The decompressed data, up to one byte more than `most`."""
        if not data:
            return b""
        if not self._began and self._encoding == "deflate" and data[0] & 0xF != 8:
            # Some servers leave out the header.
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._began = True
        pieces: list[bytes] = []
        while data:
            if self._stream.eof:  # a gzip file may have several members
                self._stream = zlib.decompressobj(self._window)
            try:
                piece = self._stream.decompress(data, max(1, most + 1))
            except zlib.error:
                raise InvalidCompression("the compressed data is broken") from None
            pieces.append(piece)
            most -= len(piece)
            if most < 0:
                break
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        return b"".join(pieces)

    @property
    def is_complete(self) -> bool:
        return self._stream.eof or not self._began

    def finish(self) -> None:
        if not self.is_complete:
            raise InvalidCompression("the compressed data ends early")
