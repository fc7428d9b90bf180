"""Limits for files that others wrote: of a line, of what a packed file unpacks to, of a small file.

Memory, disk and time to read a file are a small multiple of its size.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

#: Bytes of a line, of a row, and of a file with one JSON value.
MOST_LINE = 64 * 1024 * 1024
#: What a packed file may unpack to: bytes, or times its size if that is more.
_UNPACKED, _UNPACKED_TIMES = 2 * MOST_LINE, 200
_PIECE = 1024 * 1024


def too_long() -> str:
    return f"skipped: longer than {MOST_LINE:,} bytes"


def most_unpacked(size: int) -> int:
    return max(_UNPACKED, _UNPACKED_TIMES * size)


def lines_in(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each line, and its length. Of a line that is too long, only its line end is kept."""
    while line := file.readline(MOST_LINE + 1):
        size = len(line)
        if size > MOST_LINE:
            while not line.endswith(b"\n") and (line := file.readline(_PIECE)):
                size += len(line)
            line = line[-1:] if line.endswith(b"\n") else b""
        yield line, size


def unpacked(file: IO[bytes], size: int | None = None) -> io.BufferedReader:
    """The content of a gzipped file of `size` bytes, by default that of the open file; a pipe has
    no limit. Raises `gzip.BadGzipFile` if it unpacks to too much."""
    if size is None:
        found = os.fstat(file.fileno())
        size = found.st_size if stat.S_ISREG(found.st_mode) else sys.maxsize
    return io.BufferedReader(_Unpacked(file, most_unpacked(size)), _PIECE)


class _Unpacked(io.RawIOBase):
    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._left, self._most = gzip.GzipFile(fileobj=file), most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        # Not more at once than there is: what follows may be damaged.
        data = self._file.read1(min(len(buffer), max(1, self._left)))
        if data and not self._left:
            raise gzip.BadGzipFile(f"it unpacks to more than {self._most:,} bytes")
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def content_of(path: Path, most: int = MOST_LINE) -> bytes:
    """The content of a small regular file. Raises `OSError`: reading a pipe or a device may never
    end."""
    if not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes")
    return data
