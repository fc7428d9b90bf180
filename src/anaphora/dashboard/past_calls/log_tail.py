"""Following an audit log from a stored position, and reading single rows of it.

A position is the last row read, with its hash: if that row is missing, rows were pruned, or the log
is another one. The rows of all chains of a log in PostgreSQL are numbered in the order in which
this process reads them; the place of such a call, which is the same on every node, is its chain and
its row number there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from anaphora.audit.envelope import AuditEnvelope, decode, decode_number
from anaphora.audit.log_file import segments_of
from anaphora.audit.log_postgres import PostgresLog
from anaphora.errors import ChainBroken, NewerSchema

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

Place: TypeAlias = tuple[int, int]
"""Place of a row: its segment and byte offset; in PostgreSQL, its chain and its number there."""
PlacedRow: TypeAlias = tuple[int, int, int]
"""Its number, and its place."""

#: More than the rows of any log.
_MOST_ROWS = 2**62
#: Bytes of a log read at a time.
_CHUNK = 256 * 1024


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log was read."""

    first: int = 0
    """The first segment of the log, or the number before its first row: it grows by pruning."""
    segment: int = 0
    end: int = 0
    """Offset of the next row."""
    last: int = 0
    """Offset of the last row read, and"""
    hash: str = ""
    """its hash; empty before the first one."""
    chains: dict[int, int] = {}
    """In PostgreSQL: the last row read of each chain, except"""
    done: int = 0
    """the chains up to this one, which are closed and fully read."""
    read: int = 0
    """Rows read of all chains."""


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


class LogTail(Protocol):
    def signature(self) -> object:
        """Changes with the log; None if there is no log. Cheap to compute."""
        ...

    def is_at(self, position: Position) -> bool:
        """Whether the row of a position is still there, and nothing before it was pruned."""
        ...

    def after(self, position: Position, most: int) -> ReadRows: ...
    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        """The calls of these rows; None if one is no longer there."""
        ...


def _add_line(read: ReadRows, line: bytes, place: Place, number: int | None = None) -> bool:
    """True if the next row can be read. `number` replaces that of the row."""
    try:
        row = decode(line)
    except NewerSchema as problem:
        read.newer = str(problem)
        return False
    except ChainBroken:
        read.unreadable += 1
    else:
        if isinstance(row.content, AuditEnvelope):
            if 0 < row.seq < _MOST_ROWS:
                read.calls.append((row.seq if number is None else number, row.content, place))
            else:
                read.unreadable += 1
    read.lines += 1
    return True


class FolderTail:
    """The tail of a folder of segments."""

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
    except (ChainBroken, NewerSchema):
        return None
    return row.content if row.seq == seq and isinstance(row.content, AuditEnvelope) else None


def tail_of(log: Path | PostgresLog) -> LogTail:
    return ChainsTail(log) if isinstance(log, PostgresLog) else FolderTail(log)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────

#: Chains read at a time, and calls looked up at a time.
_MOST_CHAINS, _MOST_CALLS = 64, 500

_SIGNATURE = """
SELECT count(*), coalesce(sum(last_seq), 0)::bigint, coalesce(sum(start_seq), 0)::bigint
FROM audit_chains WHERE id > 0
"""
_IS_AT = """
SELECT (SELECT sum(start_seq)::bigint FROM audit_chains WHERE id > 0),
    (SELECT line FROM audit_rows WHERE chain = $1 AND seq = $2)
"""
#: A chain can become visible after one with a later number: it is done only if it is also old.
_CHAINS = """
SELECT id, start_seq, last_seq, closed IS NOT NULL AND started < now() - interval '1 hour',
    (SELECT sum(start_seq)::bigint FROM audit_chains WHERE id > 0)
FROM audit_chains WHERE id > $1 ORDER BY id
"""
_ROWS = """
SELECT chain, seq, line FROM unnest($1::bigint[], $2::bigint[]) AS wanted (id, read)
CROSS JOIN LATERAL (
    SELECT at, chain, seq, line FROM audit_rows WHERE chain = id AND seq > read
    ORDER BY seq LIMIT $3
) AS found
ORDER BY at, chain, seq
"""
_CALLS = """
SELECT line FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS wanted (id, number, place)
LEFT JOIN audit_rows ON chain = id AND seq = number ORDER BY place
"""


class ChainsTail:
    """The tail of a log in PostgreSQL. `Position.first` counts pruned rows, from 1 on; `segment` is
    the chain of the last row read."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log

    def signature(self) -> object:
        found = self._log.run(lambda connection: connection.fetchrow(_SIGNATURE))
        return None if found is None or not found[0] else tuple(found)

    def is_at(self, position: Position) -> bool:
        if not position.hash:
            return position.first == 0
        place = position.segment, position.last
        found = self._log.run(lambda connection: connection.fetchrow(_IS_AT, *place))
        if found is None or found[1] is None or (found[0] or 0) + 1 != position.first:
            return False
        return _hash_of(found[1]) == position.hash

    def after(self, position: Position, most: int) -> ReadRows:
        chains, rows = self._log.run(lambda connection: _read(connection, position, most))
        read = ReadRows(calls=[], position=position)
        known, unreadable = dict(position.chains), set[int]()
        last: Any = None
        for chain, seq, line in rows:
            if chain in unreadable:
                continue
            if not _add_line(read, line, (chain, seq), position.read + read.lines + 1):
                unreadable.add(chain)  # those of other chains may be read
                continue
            known[chain] = seq
            last = chain, seq, line
        if last is None:
            return read
        done = position.done
        for id, start, end, is_old, _ in chains:
            if not is_old or max(start, known.get(id, 0)) < end:
                break
            done = id
        read.position = Position(
            first=chains[0][4] + 1,
            segment=last[0],
            last=last[1],
            hash=_hash_of(last[2]),
            chains={id: seq for id, seq in known.items() if id > done},
            done=done,
            read=position.read + read.lines,
        )
        return read

    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        waiting = iter(rows)
        while some := [*islice(waiting, _MOST_CALLS)]:
            chains, numbers = [row[1] for row in some], [row[2] for row in some]
            found = self._log.run(lambda one: one.fetch(_CALLS, chains, numbers))  # noqa: B023
            for number, (line,) in zip(numbers, found, strict=True):
                yield None if line is None else _call_of(line, number)


async def _read(
    connection: Connection, position: Position, most: int
) -> tuple[list[Any], list[Any]]:
    """The chains that are not done, and new rows of those that have any."""
    chains = await connection.fetch(_CHAINS, position.done)
    places = [
        (id, max(start, position.chains.get(id, 0)))
        for id, start, last, _, _ in chains
        if last > max(start, position.chains.get(id, 0))
    ][:_MOST_CHAINS]
    if not places:
        return chains, []
    ids, read = map(list, zip(*places, strict=True))
    each = -(-most // len(places))
    return chains, await connection.fetch(_ROWS, ids, read, each)
