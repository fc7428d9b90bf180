"""Following an audit log from a stored position, and reading single rows of it.

A position is the last row read, with its hash: if that row is missing, rows were pruned, or the log
is another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from anaphora.audit.envelope import AuditEnvelope, decode, decode_number
from anaphora.audit.log_file import segments_of
from anaphora.errors import ChainBroken, OtherSchema

Place: TypeAlias = tuple[int, int]
"""Place of a row: its segment and byte offset."""
PlacedRow: TypeAlias = tuple[int, int, int]
"""Its number, and its place."""

#: More than the rows of any log.
_MOST_ROWS = 2**62
#: Bytes of a log read at a time.
_CHUNK = 256 * 1024


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log was read."""

    first: int = 0
    """The first segment of the log: it grows by pruning."""
    segment: int = 0
    end: int = 0
    """Offset of the next row."""
    last: int = 0
    """Offset of the last row read, and"""
    hash: str = ""
    """its hash; empty before the first one."""


class ReadRows(msgspec.Struct, kw_only=True):
    """The calls after a position, and the position after them."""

    calls: list[tuple[int, AuditEnvelope, Place]]
    """With their numbers."""
    position: Position
    lines: int = 0
    """Number of rows read."""
    unreadable: int = 0
    """Lines among them that are not rows."""
    newer: str = ""
    """A row of a newer version of this package follows, which cannot be read."""


def _add_line(read: ReadRows, line: bytes, place: Place) -> bool:
    """True if the next row can be read."""
    try:
        row = decode(line)
    except OtherSchema as problem:
        read.newer = str(problem)
        return False
    except ChainBroken:
        read.unreadable += 1
    else:
        if isinstance(row.content, AuditEnvelope):
            if 0 < row.seq < _MOST_ROWS:
                read.calls.append((row.seq, row.content, place))
            else:
                read.unreadable += 1
    read.lines += 1
    return True


class LogTail:
    """The tail of a folder of segments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:06d}.jsonl"

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in segments_of(self._folder)]

    def signature(self) -> object:
        """Changes with the log; None if there is no log. Cheap to compute."""
        try:
            names = sorted(
                entry.name for entry in os.scandir(self._folder) if entry.name.endswith(".jsonl")
            )
            if not names:
                return None
            found = os.stat(self._folder / names[-1])
        except FileNotFoundError:
            return None
        return names[0], names[-1], found.st_ino, found.st_size, found.st_mtime_ns

    def is_at(self, position: Position) -> bool:
        """Whether the row of a position is still there, and nothing before it was pruned."""
        if not position.hash:
            return position.first == 0
        if position.first != min(self._segments(), default=0):
            return False
        try:
            with self._path(position.segment).open("rb") as file:
                file.seek(position.last)
                line = file.read(position.end - position.last)
        except FileNotFoundError:
            return False
        return _hash_of(line) == position.hash

    def after(self, position: Position, most: int) -> ReadRows:
        segments = self._segments()
        read = ReadRows(calls=[], position=position)
        if not segments:
            return read
        if not position.hash:
            position = Position(first=segments[0], segment=segments[0])
            read.position = position
        for segment in [number for number in segments if number >= position.segment]:
            begin = position.end if segment == position.segment else 0
            if not self._read(read, segment, begin, most):
                break
        return read

    def _read(self, read: ReadRows, segment: int, begin: int, most: int) -> bool:
        """True if the segment was read to its end."""
        end, line, complete = begin, b"", False
        with self._path(segment).open("rb") as file:
            file.seek(begin)
            while read.lines < most and not complete:
                following = file.readline()
                if not following.endswith(b"\n"):  # the end, or a row that is being written
                    complete = True
                elif _add_line(read, following[:-1], (segment, end)):
                    line, end = following, end + len(following)
                else:
                    break
        if line:
            read.position = Position(
                first=read.position.first,
                segment=segment,
                end=end,
                last=end - len(line),
                hash=_hash_of(line),
            )
        return complete

    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        """The calls of these rows; None if one is no longer there."""
        opened: tuple[int, int] | None = None
        try:
            for seq, segment, place in rows:
                if opened is None or opened[0] != segment:
                    if opened is not None:
                        os.close(opened[1])
                        opened = None
                    try:
                        opened = segment, os.open(self._path(segment), os.O_RDONLY)
                    except FileNotFoundError:
                        yield None
                        continue
                yield _call_of(_line_at(opened[1], place), seq)
        finally:
            if opened is not None:
                os.close(opened[1])


def _line_at(file: int, place: int) -> bytes:
    data = b""
    size = 4_096
    while b"\n" not in data and (more := os.pread(file, size, place + len(data))):
        data += more
        size = _CHUNK
    return data.partition(b"\n")[0]


def _hash_of(line: bytes) -> str:
    """The hash of a row; `?` for a line that is not a row."""
    try:
        return decode_number(line).hash
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "?"


def _call_of(line: bytes, seq: int) -> AuditEnvelope | None:
    try:
        row = decode(line)
    except (ChainBroken, OtherSchema):
        return None
    return row.content if row.seq == seq and isinstance(row.content, AuditEnvelope) else None
