"""Newline-delimited JSON, from bytes to lines, however the bytes are cut.

A line ends with a line feed, a carriage return before it counts as nothing, and blank lines are
passed over. The last line may go without its end. A line beyond the bound is an error, not a memory
leak.
"""

from __future__ import annotations

from anaphora.errors import Parse

#: No single line of any provider comes near this.
LIMIT = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class LineDecoder:
    """Decodes bytes into complete lines. `close` gives the one that was not ended."""

    __slots__ = ("_first", "_limit", "_pieces", "_size")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._first = True
        self._pieces: list[bytes] = []
        """The pieces of the incomplete line,"""
        self._size = 0
        """and their length."""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends; none of them is blank."""
        if not data:
            return []
        begun, *rest = data.split(b"\n")
        self._pieces.append(begun)
        self._size += len(begun)
        if self._size > self._limit:
            raise Parse(f"a line of more than {self._limit} bytes", path="stream")
        if not rest:
            return []
        lines = [self._joined(), *rest[:-1]]
        self._pieces, self._size = [rest[-1]], len(rest[-1])
        if max(map(len, lines), default=0) > self._limit or self._size > self._limit:
            raise Parse(f"a line of more than {self._limit} bytes", path="stream")
        return [line for line in map(bytes.strip, lines) if line]

    def close(self) -> list[bytes]:
        """The line that the stream ended in; none where it ended between two."""
        line = self._joined().strip()
        self._pieces, self._size = [], 0
        return [line] if line else []

    def _joined(self) -> bytes:
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._first:
            self._first = False
            return line.removeprefix(_BOM)
        return line


def encode_line(data: bytes) -> bytes:
    """One line of JSON. A line break in it is white space between tokens and becomes a space."""
    return data.replace(b"\n", b" ") + b"\n"
