"""Reads a log: its rows, a selection of them, and whether its chain is intact. Memory does not grow
with the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import msgspec

from anaphora.errors import ChainBroken, Io

from .chain import ChainChecker, ChainHead, RowKey
from .envelope import AuditEnvelope, StoredRow, decode, decode_number
from .log_file import FileReader, check_name
from .side_files import is_locked, read_anchor, write_anchor


class VerifiedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log whose chain is intact."""

    log: str
    rows: int
    first: int
    """The number of its first row: above 1 if earlier ones were pruned."""
    last: int
    hash: str
    """Of the last row."""
    segments: int
    anchored: int | None = None
    """The row that the anchor names; later rows are not covered by it."""
    writing: bool = False
    """Whether a process was writing the log."""
    signed_since: int | None = None
    """The first row whose MAC was checked; None: only hashes were checked."""


def open_log(path: Path) -> FileReader:
    if not path.exists():
        raise Io(f"{path}: no such file or folder")
    check_name(path)
    return FileReader(path)


def verify(
    path: str | Path,
    *,
    anchor: str | Path | None = None,
    row_key: RowKey | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerifiedLog:
    """Checks every row. Raises `ChainBroken`, `AnchorMismatch`, `MacMismatch` or `OtherSchema`.
    `progress` gets the number of rows, from time to time. With `row_key`, MACs are checked as
    well."""
    path = Path(path)
    writing = is_locked(path)
    # Read before the log is opened, as the log may grow meanwhile.
    head = None if anchor is None else read_anchor(Path(anchor)).head
    reader = open_log(path)
    start = reader.start()
    checker = ChainChecker(start, anchor=head, row_key=row_key)
    done = 0
    for section in reader.sections:
        lines = reader.lines(section)
        for index in checker.check(lines, partial(reader.place, section)):
            if progress is not None:
                progress(done + index)
        done = checker.head.seq - start.seq
    checker.finish()
    return VerifiedLog(
        log=str(path),
        rows=checker.head.seq - start.seq,
        first=start.seq + 1,
        last=checker.head.seq,
        hash=checker.head.hash,
        segments=len(reader.sections),
        anchored=None if head is None else head.seq,
        writing=writing,
        signed_since=None if row_key is None else row_key.since,
    )


def update_anchor(anchor: Path, verified: VerifiedLog) -> None:
    """Moves an anchor to the last row of a verified log. Raises `Io`."""
    head = ChainHead(verified.last, verified.hash)
    try:
        write_anchor(anchor, Path(verified.log).name, head, time.time())
    except OSError as problem:
        raise Io(f"{anchor}: cannot be written: {problem.strerror or problem}") from None


def rows(path: str | Path, since: float | None = None) -> Iterator[StoredRow]:
    """Every row, without a check of the chain. `since`: rows committed from then on, and some
    before."""
    reader = open_log(Path(path))
    seq = reader.start().seq
    for section in reader.sections[_first_section(reader, since) :]:
        for index, line in enumerate(reader.lines(section, unfinished=False)):
            try:
                row = decode(line, reader.place(section, index))
            except ChainBroken as problem:
                place = problem.place
                raise ChainBroken(problem.reason, row=seq + 1, place=place) from None
            seq = row.seq
            yield row


def losses(path: Path, since: float | None = None) -> Iterator[AuditEnvelope]:
    """Calls that lost dollars. Other rows are not decoded, so that this is fast."""
    reader = open_log(path)
    for section in reader.sections[_first_section(reader, since) :]:
        for index, line in enumerate(reader.lines(section, unfinished=False)):
            if b'"lost_nano_usd"' in line:
                content = decode(line, reader.place(section, index)).content
                if isinstance(content, AuditEnvelope):
                    yield content


def _first_section(reader: FileReader, since: float | None) -> int:
    """The section before the last one begun by then: a clock may have been set back."""
    found = len(reader.sections) if since is not None else 0
    while found > 0:
        found -= 1
        first = next(iter(reader.lines(reader.sections[found], unfinished=False)), None)
        if since is not None and first is not None and decode(first).content.at <= since:
            return max(0, found - 1)
    return 0


class CallFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects calls; without fields, all."""

    model: str | None = None
    """May contain *."""
    label: str | None = None
    """A label of the call, or of one of its blocks; may contain *."""
    since: float | None = None
    until: float | None = None
    outcome: str | None = None

    def accepts(self, call: AuditEnvelope) -> bool:
        return (
            (self.model is None or any(fnmatchcase(name, self.model) for name in _models(call)))
            and (self.since is None or call.at >= self.since)
            and (self.until is None or call.at < self.until)
            and (self.outcome is None or call.outcome == self.outcome)
            and (self.label is None or any(fnmatchcase(one, self.label) for one in _names(call)))
        )


def _models(call: AuditEnvelope) -> tuple[str, str]:
    """The requested model, and the one that answered."""
    return call.model, call.billed_model


def _names(call: AuditEnvelope) -> Iterator[str]:
    yield from call.labels
    yield from (block.label for block in call.blocks)


def calls(
    path: str | Path,
    wanted: CallFilter | None = None,
    *,
    committed_since: float | None = None,
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    """For `committed_since` see `since` of `rows`."""
    for row in rows(path, committed_since):
        content = row.content
        if isinstance(content, AuditEnvelope) and (wanted is None or wanted.accepts(content)):
            yield row, content


def hash_of_row(path: Path, seq: int) -> str | None:
    """The hash of a row in the log; None if it was pruned."""
    reader = open_log(path)
    start = reader.start()
    if seq == start.seq:
        return start.hash
    if seq < start.seq:
        return None
    for section in reversed(reader.sections):
        for line in reader.lines(section, unfinished=False):
            row = decode_number(line)
            if row.seq > seq:
                break
            if row.seq == seq:
                return row.hash
    return None
