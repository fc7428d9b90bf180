"""Reads the bills of a file, from the position up to which it was read before."""

from __future__ import annotations

import gzip
import io
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec
from blake3 import blake3

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.wire.reading import DECODE_ERRORS

from .bounded_files import lines_in, too_long, unpacked
from .log_files import lines_of, records_of
from .opencode_files import database_replies, is_database_file
from .places import SessionFile
from .programs import READERS, bills
from .programs.lines import BillReader
from .programs.opencode import OpencodeBills
from .records import CallBill, moment

_GZIP = b"\x1f\x8b"
_DAMAGED = EOFError, zlib.error, gzip.BadGzipFile
#: Bytes that are read of a file at once.
PIECE = 16_000_000
#: Lines are often longer than the default.
_BUFFER = 1 << 16
#: Bytes at the beginning and before the end of what was read that identify a file.
_COMPARED = 4096
#: Broken lines that are named of a file.
_NAMED = 5
#: Nanoseconds: a file may change again without another time of change.
_JUST_CHANGED = 2_000_000_000
#: Seconds before the last reading in which a change may have been made, but not committed.
_UNCOMMITTED = 60.0


class ReadPosition(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How far a file was read, and what is needed to read on."""

    inode: int = 0
    size: int = 0
    """The bytes that were read, with an unfinished last line."""
    mtime: int = 0
    """In nanoseconds; 0 if the file was changed just before it was read."""
    offset: int = 0
    """After the last whole line."""
    lines: int = 0
    digest: bytes = b""
    """Of the first bytes, and of the last ones before `size`."""
    state: bytes = b"\xc0"
    """What the program's reader knows between two lines, packed."""
    began: float | None = None
    problems: tuple[str, ...] = ()
    """The first broken lines."""
    broken: int = 0
    """How many lines are broken."""
    unfinished: bool = False
    """The last line is not complete."""
    read_at: float = 0.0
    """Of a file that is read as a whole."""


class FilePiece(msgspec.Struct, kw_only=True):
    """What was read of a file at once."""

    path: str
    known: bytes
    """The position that was known before, as `known` has it; empty if there was none."""
    anew: bool
    """The file was read from its beginning: earlier bills are gone."""
    position: ReadPosition
    program: ProgramName
    calls: list[CallBill]
    finished: bool = True
    """The whole file was read."""


pack = msgspec.msgpack.Encoder().encode
unpack_position = msgspec.msgpack.Decoder(ReadPosition).decode


class _Timed(msgspec.Struct):
    timestamp: Any = None


_decode_timed = msgspec.json.Decoder(_Timed).decode


class _Lines:
    """The whole lines of a file from a position on, and how far they were read."""

    def __init__(self, stream: IO[bytes], position: ReadPosition, most: float) -> None:
        self._stream, self._most = stream, most
        self.offset, self.lines, self.began = position.offset, position.lines, position.began
        self.rest, self.rest_size = b"", 0
        """The last line, if it is not complete."""
        self.too_long: list[int] = []
        """Numbers of lines that are left out."""
        self.finished = True

    def __iter__(self) -> Iterator[bytes]:
        end = self.offset + self._most
        for line, size in lines_in(self._stream):
            if not line.endswith(b"\n"):
                self.rest, self.rest_size = line, size
                return
            self.offset += size
            self.lines += 1
            if size > len(line):
                self.too_long.append(self.lines)
            if self.began is None:
                self.began = _began(line)
            yield line
            if self.offset >= end:
                self.finished = False
                return


class _Found:
    """The bills and problems of a piece, each answer once."""

    def __init__(self, position: ReadPosition) -> None:
        self.calls: dict[bytes, CallBill] = {}
        self.problems, self.broken = [*position.problems], position.broken

    def add(self, found: Iterable[CallBill | Problem]) -> None:
        calls = self.calls
        for one in found:
            if isinstance(one, Problem):
                self.add_problem(one)
            elif (known := calls.get(one.key)) is None or (known.partial, one.output) >= (
                one.partial,
                known.output,
            ):
                calls[one.key] = one

    def add_problem(self, problem: Problem) -> None:
        if str(problem) in self.problems:  # of a last line, which is read again
            return
        self.broken += 1
        if len(self.problems) < _NAMED:
            self.problems.append(str(problem))


class FileState(msgspec.Struct, frozen=True):
    """Tells whether a file was changed."""

    inode: int
    size: int
    mtime: int
    """In nanoseconds."""
    whole: bool
    """It has no lines that are appended: it is read as a whole."""


def file_state(file: SessionFile) -> FileState:
    """Raises `OSError`."""
    if is_whole(file.path, file.program):
        return FileState(0, file.size, int(file.mtime * 1e9), whole=True)
    found = os.stat(file.path)
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns, whole=False)


def is_unchanged(known: ReadPosition, found: FileState) -> bool:
    now = found.inode, found.size, found.mtime
    return (known.inode, known.size, known.mtime) == now


def read_piece(
    path: str, program: ProgramName, known: bytes, state: FileState, most: int = PIECE
) -> FilePiece:
    """Reads on from the position `known`, or from the beginning if the file was rewritten. Raises
    `OSError`."""
    if state.whole:
        return _read_whole(path, program, known, state)
    position = unpack_position(known) if known else ReadPosition()
    reader: BillReader = READERS[program]()
    with io.BufferedReader(io.FileIO(path), _BUFFER) as file:
        stat = os.fstat(file.fileno())
        packed = file.peek(2)[:2] == _GZIP
        anew = packed or not _continues(file, position, stat)
        if anew:
            position = ReadPosition()
        elif position.offset:
            reader.restore(msgspec.msgpack.decode(position.state))
            file.seek(position.offset)
        stream = unpacked(file) if packed else file
        lines = _Lines(stream, position, float("inf") if packed else most)
        found = _Found(position)
        try:
            found.add(bills(reader, lines, path, position.lines + 1))
        except _DAMAGED as problem:
            found.add_problem(Problem(path, f"the file is cut off or damaged: {problem}"))
        for number in lines.too_long:
            found.add_problem(Problem(f"{path}:{number}", too_long()))
        if lines.rest_size > len(lines.rest):
            found.add_problem(Problem(f"{path}:{lines.lines + 1}", too_long()))
        kept = pack(reader.known)  # now: the rest changes it
        unfinished = bool(lines.rest_size) and not _add_rest(reader, lines, found)
        size = stat.st_size if packed else lines.offset + lines.rest_size
        position = ReadPosition(
            inode=stat.st_ino,
            size=size,
            mtime=_settled(stat.st_mtime_ns),
            offset=0 if packed else lines.offset,
            lines=lines.lines,
            digest=_digest(file, size),
            state=kept,
            began=lines.began,
            problems=tuple(found.problems),
            broken=found.broken,
            unfinished=unfinished,
        )
    return _piece(path, program, known, anew, position, found, finished=lines.finished)


def _settled(mtime: int) -> int:
    return 0 if time.time_ns() - mtime < _JUST_CHANGED else mtime


def _read_whole(path: str, program: ProgramName, known: bytes, state: FileState) -> FilePiece:
    """A JSON file or a tree of files, or of a database what was changed since it was read. Calls
    that were deleted from a database stay in the index: they were billed."""
    before = unpack_position(known) if known else ReadPosition()
    anew = not (known and is_database_file(Path(path)))
    now = time.time()
    found = _Found(ReadPosition())
    found.add(read_file(Path(path), program, None if anew else before.read_at))
    times = [call.at for call in found.calls.values() if call.at is not None]
    times += [] if anew or before.began is None else [before.began]
    position = ReadPosition(
        size=state.size,
        mtime=_settled(state.mtime),
        began=min(times, default=None),
        problems=tuple(found.problems),
        broken=found.broken,
        read_at=now,
    )
    return _piece(path, program, known, anew, position, found, finished=True)


def _piece(
    path: str,
    program: ProgramName,
    known: bytes,
    anew: bool,
    position: ReadPosition,
    found: _Found,
    *,
    finished: bool,
) -> FilePiece:
    return FilePiece(
        path=path,
        known=known,
        anew=anew,
        position=position,
        program=program,
        calls=[*found.calls.values()],
        finished=finished,
    )


def _continues(file: BinaryIO, known: ReadPosition, stat: os.stat_result) -> bool:
    if not known.size or stat.st_ino != known.inode or stat.st_size < known.size:
        return False
    if _digest(file, known.size) != known.digest:
        return False
    if known.size == known.offset or known.unfinished:
        return True
    # The last line had no end, and its bill counted: it has to be the whole line.
    file.seek(known.size)
    follows = file.read(1)
    file.seek(0)
    return follows in (b"", b"\r", b"\n")


def _digest(file: BinaryIO, size: int) -> bytes:
    """Of the bytes at the beginning and before `size`. Moves the file's position."""
    file.seek(0)
    hashed = blake3(file.read(min(_COMPARED, size)))
    file.seek(max(0, size - _COMPARED))
    hashed.update(file.read(min(_COMPARED, size)))
    file.seek(0)
    return hashed.digest(16)


def _add_rest(reader: BillReader, lines: _Lines, found: _Found) -> bool:
    """Reads a last line without a line end, which the next run reads again: it may be complete.
    Returns whether it is."""
    try:
        _decode_timed(lines.rest)
    except DECODE_ERRORS:
        return False
    if lines.began is None:
        lines.began = _began(lines.rest)
    found.add(bills(reader, [lines.rest], "", lines.lines + 1))
    return True


def _began(line: bytes) -> float | None:
    try:
        return moment(_decode_timed(line).timestamp)
    except DECODE_ERRORS:
        return None


# ── Files that are read as a whole ───────────────────────────────────────────────────────────────


def is_whole(path: Path, program: ProgramName) -> bool:
    """Whether a file is read as a whole when it has changed, by `read_file`: not lines that a
    program appends, but an older file of Gemini CLI, or opencode's database or tree."""
    return program == "opencode" or path.suffix == ".json"


def read_file(
    path: Path, program: ProgramName, since: float | None = None
) -> Iterator[CallBill | Problem]:
    """The bills of a whole file. `since` is when it was read before: of a database, only replies
    that were changed since then are read; other files are read again."""
    problems: list[Problem] = []
    if is_database_file(path):
        changed = None if since is None else since - _UNCOMMITTED
        opencode = OpencodeBills()
        for reply in database_replies(path, problems, changed):
            try:
                yield from opencode.reply(reply)
            except ValueError as problem:
                yield Problem(f"{path}:{reply.number}", f"a message of the session: {problem}")
    else:
        reader = READERS[program]()
        reader.begin(str(path))
        for line in (lines_of if path.is_dir() else records_of)(path, problems):
            try:
                yield from reader.read(line.data, int(line.place.rpartition(":")[2]))
            except ValueError as problem:
                yield Problem(line.place, str(problem))
    yield from problems
