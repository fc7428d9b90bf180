"""Decompresses response bodies. aiohttp would accept a body whose compressed data ends early."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

#: The accepted encodings, and the window bits of each for zlib.
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ACCEPT_ENCODING = "gzip, deflate"


class InvalidCompression(Exception):
    """The compressed data is broken, or ends early."""


class UnknownCompression(Exception):
    """The body has a content encoding that is not supported."""


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
#: Bytes that such a module gets at a time, since not all support a limit.
_PIECE = 4096


def encodings(header: str) -> list[str]:
    """The encodings in a Content-Encoding header, in the order they were applied."""
    names = (each.strip().lower() for each in header.split(","))
    return [each for each in names if each not in ("", "identity")]


def decoded(body: bytes, header: str, most: int) -> bytes:
    """A whole body, decoded: the last content encoding is undone first.
    Raises `InvalidCompression`, also for more than `most` bytes, and `UnknownCompression`."""
    for name in reversed(encodings(header)):
        decompressor = any_decompressor(name)
        body = decompressor.feed(body, most)
        if len(body) > most:
            raise InvalidCompression(f"the decompressed data is larger than {most:,} bytes")
        decompressor.finish()
    return body


def any_decompressor(name: str) -> Decompressor | _OtherDecompressor:
    """The decompressor of an encoding. Raises `UnknownCompression`."""
    return Decompressor.of(name) or _OtherDecompressor(name)


class _OtherDecompressor:
    """Like `Decompressor`, with one of the optional modules."""

    def __init__(self, name: str) -> None:
        for module, made, method in _MODULES.get(name, ()):
            try:
                reader: Any = getattr(importlib.import_module(module), made)()
            except ImportError:
                continue
            if method == "decompressobj":
                reader, method = reader.decompressobj(), "decompress"
            self._reader, self._method, self._name = reader, method, name
            self._began = False
            return
        packages = [module for module, *_ in _MODULES.get(name, ()) if module != "compression.zstd"]
        hint = f"; install {packages[0]} to read it" if packages else ""
        raise UnknownCompression(f"compressed with {name}{hint}")

    def feed(self, data: bytes, most: int) -> bytes:
        self._began = self._began or bool(data)
        pieces: list[bytes] = []
        for at in range(0, len(data), _PIECE):
            try:
                piece = getattr(self._reader, self._method)(data[at : at + _PIECE])
            except Exception:  # each module has its own error class
                raise InvalidCompression("the compressed data is broken") from None
            pieces.append(piece)
            most -= len(piece)
            if most < 0:
                break
        return b"".join(pieces)

    def finish(self) -> None:
        ended = self._reader.is_finished() if self._name == "br" else self._reader.eof
        if self._began and not ended:
            raise InvalidCompression("the compressed data ends early")


class Decompressor:
    """The decompressor of one body: `feed` all of it, then `finish`."""

    @classmethod
    def of(cls, encoding: str | None) -> Decompressor | None:
        """None for a body without compression, or with one that was not requested."""
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
