"""A log as a folder of segments: `000001.jsonl`, `000002.jsonl`, …, one row per line.

A segment begins with a row that has the hash of the last row before it. A new one is begun each day
and at a maximum size, so that old ones can be pruned.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO

import msgspec

from anaphora.errors import ChainBroken, InvalidRequest, Io

from .chain import ChainChecker, ChainHead
from .envelope import Boundary, SegmentRow, StopRow, StoredRow, decode
from .side_files import is_locked, sync_folder

SEGMENT_BYTES = 64 * 1024 * 1024

_NAME = re.compile(r"(\d{6,12})\.jsonl")
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
#: A longer line is not a row.
_LONGEST_LINE = 64 * 1024 * 1024
#: Bytes removed from the end of an incomplete line. `"}` may be there twice: written over the line
#: break.
_ENDS = b'"} \t\r'
#: Names that would be a file of rows; a log is a folder of such files.
_FILES = (".jsonl", ".json", ".ndjson", ".log", ".csv", ".txt", ".db", ".sqlite", ".sqlite3")


def check_name(path: Path) -> None:
    """Raises `InvalidRequest` for a name that cannot be a folder of segments."""
    if path.is_dir():
        return
    if path.exists():
        reason = "is a file; an audit log is a folder, such as `watch --audit` writes"
        raise InvalidRequest(reason, path=str(path))
    if path.suffix in _FILES:
        raise InvalidRequest(
            f"an audit log is a folder: write {path.with_suffix('')}", path=str(path)
        )


class Recovered(msgspec.Struct, frozen=True):
    """The state of a log when a writer opens it."""

    head: ChainHead = ChainHead()
    epoch: int = 0
    """Of the last row."""
    closed: bool = True
    """Whether the previous writer closed the log; True if there was none."""
    dropped: int = 0
    """Bytes of an unfinished row, which was removed."""


def segments_of(folder: Path) -> list[Path]:
    """The segments, the oldest first."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise Io(f"{folder}: cannot be read: {error.strerror or error}") from None
    numbered = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return [folder / name for _, name in numbered]


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.jsonl"


class FileReader:
    """Reads a log without changing it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.sections: Sequence[Path] = segments_of(folder)
        if not self.sections:
            raise Io(f"{folder}: holds no audit log")

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.sections)

    def start(self) -> ChainHead:
        """The row before the first one: for a pruned log, the last pruned row."""
        return _before(self.sections)

    def lines(self, section: Path, *, unfinished: bool = True) -> Iterator[bytes]:
        """The lines of a segment without their line breaks. `unfinished`: also a last line without
        a line break, shortened so that it cannot be a row; unless it is being written now."""
        with _opened(section) as file:
            while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
                yield line[:-1]
            if line and unfinished and not is_locked(self.path):
                yield line.rstrip(_ENDS)

    def place(self, section: Path, index: int) -> str:
        return f"{section.name}, line {index + 1:,}"


class FileStore:
    """Writes a log."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = folder
        self._segment_bytes = segment_bytes
        self._file = -1
        self._segment = 0
        self._size = 0
        """Committed size of the current segment."""
        self._day = ""
        """Day on which it was begun."""
        self._torn = False
        """A write failed, and may have left part of a row."""

    def open(self) -> Recovered:
        """Opens the last segment, removes an unfinished row at its end, and checks the others."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Io(f"{self.path}: cannot be created: {error.strerror or error}") from None
        dropped = 0
        for path in reversed(segments_of(self.path)):
            self._segment = int(path.stem)
            try:
                self._file = os.open(path, _FLAGS)
            except OSError as error:
                raise Io(f"{path}: cannot be opened: {error.strerror or error}") from None
            valid, first, last, head = self._check(path)
            size = os.fstat(self._file).st_size
            dropped += size - valid
            if size > valid:
                os.ftruncate(self._file, valid)
                os.fsync(self._file)
            if first is not None and last is not None:
                self._size = valid
                self._day = _day(first.content.at)
                closed = isinstance(last.content, StopRow) and not dropped
                return Recovered(head, last.content.epoch, closed, dropped)
            # A writer was killed before the segment had its first row.
            os.close(self._file)
            path.unlink()
        self._file, self._segment = -1, 0
        return Recovered(dropped=dropped, closed=not dropped)

    def _check(self, path: Path) -> tuple[int, StoredRow | None, StoredRow | None, ChainHead]:
        """The size of the segment's complete rows, the first and the last of them, and its head."""
        valid, last = 0, b""

        def lines() -> Iterator[bytes]:
            nonlocal valid, last
            with path.open("rb") as file:
                while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
                    yield line[:-1]
                    valid += len(line)
                    last = line[:-1]

        with path.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
        if not first.endswith(b"\n"):
            return 0, None, None, ChainHead()
        checker = ChainChecker(_before([path]))
        for _ in checker.check(lines(), lambda index: f"{path.name}, line {index + 1:,}"):
            pass
        return valid, decode(first), decode(last), checker.head

    def segment_due(self, now: float) -> int:
        """Number of the segment to begin before the next row; 0: none."""
        if self._file >= 0 and self._size < self._segment_bytes and _day(now) == self._day:
            return 0
        return self._segment + 1

    def append(self, lines: Sequence[bytes], segment: int = 0) -> None:
        """Commits rows: they are on disk when this returns. With a `segment`, the first row begins
        it. If it fails, the log is unchanged."""
        if segment:
            self._begin(segment)
        self._check_place()
        data = b"".join(line + b"\n" for line in lines)
        try:
            if self._torn:
                os.ftruncate(self._file, self._size)
            self._torn, written = True, 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError:
            if segment:  # the next attempt begins it again
                self.close()
                self._segment, self._torn = segment - 1, False
            else:  # part of a row may be there: removed now, or before the next attempt
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
            raise
        self._size, self._torn = self._size + len(data), False

    def _begin(self, segment: int) -> None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        path = segment_path(self.path, segment)
        fresh = os.open(path, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        self.close()
        self._file, self._segment, self._size, self._torn = fresh, segment, 0, False
        self._day = _day(time.time())
        sync_folder(self.path)

    def _check_place(self) -> None:
        """Raises if the segment was removed from the folder or truncated: a row written to it would
        be lost, or follow a gap. The next attempt begins a new segment."""
        path = segment_path(self.path, self._segment)
        try:
            found = os.stat(path)
            here = os.fstat(self._file)
        except OSError:
            self.close()
            raise
        if (found.st_dev, found.st_ino) != (here.st_dev, here.st_ino):
            self.close()
            raise FileNotFoundError(2, "the segment was replaced", str(path))
        if here.st_size < self._size:
            self.close()
            raise OSError(5, "the segment was truncated", str(path))

    def boundaries(self, before: float) -> tuple[Boundary, ...]:
        """Segments whose rows were all written before that time, except the current one."""
        found: list[Boundary] = []
        paths = segments_of(self.path)
        for path, following in pairwise(paths):
            with following.open("rb") as file:
                row = decode(file.readline(_LONGEST_LINE).rstrip(b"\n"), following.name)
            if not isinstance(row.content, SegmentRow) or row.content.at >= before:
                break
            found.append(Boundary(row.seq - 1, row.content.prev, int(path.stem)))
        return tuple(found)

    def remove(self, boundaries: Sequence[Boundary]) -> None:
        """Deletes segments, the oldest first: the rest is always the end of the chain."""
        for one in boundaries:
            segment_path(self.path, one.segment).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _opened(section: Path) -> IO[bytes]:
    try:
        if not section.is_file() and section.exists():  # a pipe: reading it might never end
            raise Io(f"{section}: cannot be read: not a regular file")
        return section.open("rb")
    except FileNotFoundError:
        raise Io(f"{section}: was deleted while the log was read; try again") from None
    except OSError as error:
        raise Io(f"{section}: cannot be read: {error.strerror or error}") from None


def _before(sections: Sequence[Path]) -> ChainHead:
    """The row before the first of these segments; number 0 if nothing names it, which then fails
    the check of the first row."""
    with _opened(sections[0]) as file:
        line = file.readline(_LONGEST_LINE).rstrip(b"\n")
    try:
        first = decode(line)
    except ChainBroken:
        return ChainHead()
    if isinstance(first.content, SegmentRow):
        return ChainHead(first.seq - 1, first.content.prev)
    return ChainHead()


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
