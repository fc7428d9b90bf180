"""Following an audit log from a remembered position, and reading single rows of it.

A position is the last row that was read, with its hash: where that row is no longer there, rows
were pruned, or the log is another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.audit.envelope import SCHEMA_VERSION, AuditEnvelope, decode, decode_number
from anaphora.audit.log_file import segments_of
from anaphora.errors import ChainBroken, NewerSchema

Place: TypeAlias = tuple[int, int]
"""Of a row: its segment and the byte at which it begins; in PostgreSQL, its chain and its number in
that."""
PlacedRow: TypeAlias = tuple[int, int, int]
"""Its number, and its place."""

#: No log has so many rows.
_MOST_ROWS = 2**62
#: Bytes of a log that are read at a time.
_CHUNK = 256 * 1024


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log was read."""

    first: int = 0
    """The first segment of the log, or the number before its first row: it grows by pruning."""
    segment: int = 0
    end: int = 0
    """Where the next row begins."""
    last: int = 0
    """Where the last row begins that was read, and"""
    hash: str = ""
    """its hash; empty before the first one."""
    chains: dict[int, int] = {}
    """Of a log in PostgreSQL: the last row of each chain that was read, but for"""
    done: int = 0
    """chains up to this one, which are closed and were read to their ends."""
    read: int = 0
    """How many rows of all chains were read."""


class NumberedCall(AuditEnvelope, frozen=True, kw_only=True, tag="call"):
    """A call with what the log adds to its row."""

    schema_version: int
    seq: int


_decode_call = msgspec.json.Decoder(NumberedCall).decode


class ReadRows(msgspec.Struct, kw_only=True):
    """The calls after a position, and the position after them."""

    calls: list[tuple[NumberedCall, Place]]
    position: Position
    lines: int = 0
    """That were read."""
    unreadable: int = 0
    """Lines among them that are no rows."""
    newer: str = ""
    """A row of a newer version of this package follows, which cannot be read."""


class LogTail(Protocol):
    def signature(self) -> object:
        """Changes with the log; None where there is none. Costs little."""
        ...

    def is_at(self, position: Position) -> bool:
        """Whether the row of a position is still there, and nothing before it was pruned."""
        ...

    def after(self, position: Position, most: int) -> ReadRows: ...
    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        """The calls of these rows; None where one is no longer there."""
        ...


def add_line(read: ReadRows, line: bytes, place: Place, number: int | None = None) -> bool:
    """Whether the next row can be read. `number` replaces that of the row."""
    try:
        call = _decode_call(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # another row, or none
        call = None
    if call is None or call.schema_version > SCHEMA_VERSION:
        try:
            decode(line)
        except NewerSchema as problem:
            read.newer = str(problem)
            return False
        except ChainBroken:
            read.unreadable += 1
    elif 0 < call.seq < _MOST_ROWS:
        read.calls.append((call if number is None else replace(call, seq=number), place))
    else:
        read.unreadable += 1
    read.lines += 1
    return True


class FolderTail:
    """Of a folder of segments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:06d}.jsonl"

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in segments_of(self._folder)]

    def signature(self) -> object:
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
        return hash_of(line) == position.hash

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
        """Whether the segment was read to its end."""
        end, line, complete = begin, b"", False
        with self._path(segment).open("rb") as file:
            file.seek(begin)
            while read.lines < most and not complete:
                following = file.readline()
                if not following.endswith(b"\n"):  # the end, or a row that is being written
                    complete = True
                elif add_line(read, following[:-1], (segment, end)):
                    line, end = following, end + len(following)
                else:
                    break
        if line:
            read.position = Position(
                first=read.position.first,
                segment=segment,
                end=end,
                last=end - len(line),
                hash=hash_of(line),
            )
        return complete

    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
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
                yield call_of(_line_at(opened[1], place), seq)
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


def hash_of(line: bytes) -> str:
    """Of a row; `?` for a line that is none."""
    try:
        return decode_number(line).hash
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "?"


def call_of(line: bytes, seq: int) -> AuditEnvelope | None:
    try:
        row = decode(line)
    except (ChainBroken, NewerSchema):
        return None
    return row.content if row.seq == seq and isinstance(row.content, AuditEnvelope) else None
