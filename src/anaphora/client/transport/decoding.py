"""Decompresses response bodies. aiohttp would accept a body whose compressed data ends early."""

from __future__ import annotations

import zlib

#: What requests accept, and how zlib reads it.
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ACCEPT_ENCODING = "gzip, deflate"


class InvalidCompression(Exception):
    """The compressed data is broken, or ends early."""


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
