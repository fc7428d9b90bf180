"""Writes a log, in a separate thread (`group_commit`).

If a commit fails, its rows are retried; if too many wait, the newest are dropped, and a row says
how many once writing works again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from anaphora.client.failures import described, log
from anaphora.errors import AnaphoraError, Io

from .chain import ChainHead, seal
from .envelope import (
    AuditEnvelope,
    AuditRow,
    Boundary,
    LostRow,
    PrunedRow,
    SegmentRow,
    StopRow,
)
from .group_commit import GroupCommit
from .log_file import FileStore
from .side_files import WriterLock, write_anchor

_log = logging.getLogger("anaphora.audit")

#: Maximum number of waiting rows: at a call every 10 ms, a quarter of an hour.
MOST_WAITING = 100_000
#: Errors kept for `AuditLog.errors`.
_MOST_ERRORS = 20

_DAY = 86_400.0

PendingRow: TypeAlias = Callable[[], AuditRow]
"""Makes a row: in the thread, so that the call does not wait for it."""


class AuditError(msgspec.Struct, frozen=True):
    """A failure to write, and when it began."""

    at: float
    message: str

    def __str__(self) -> str:
        return f"the audit log cannot be written: {self.message}"


class _Sealed(msgspec.Struct, frozen=True):
    """Rows with their hashes, to be committed together."""

    lines: list[bytes]
    segment: int
    head: ChainHead
    """The last of them."""
    calls: tuple[str, ...] = ()
    """Ids of the calls of a daemon among them."""


class LogWriter:
    """Appends to one log. Once started, only its thread uses the store."""

    def __init__(
        self,
        store: FileStore,
        lock: WriterLock,
        *,
        head: ChainHead,
        epoch: int,
        anchor: Path | None,
        keep_days: float | None,
        on_error: Callable[[AuditError], None] | None,
        collect: float = 0.0,
        row_key: bytes = b"",
    ) -> None:
        """`collect`: how many seconds rows wait for others, to be committed together. `row_key` is
        for the rows' MACs."""
        self.store = store
        self.head = head
        """The last committed row."""
        self.first_row = head.seq + 1
        self.epoch = epoch
        self.errors: deque[AuditError] = deque(maxlen=_MOST_ERRORS)
        self.on_durable: Callable[[Sequence[str]], None] | None = None
        """Gets the ids of a daemon's calls whose rows are committed, in the thread."""
        self.failing: str | None = None
        """Why the last commit failed; None: it did not."""
        self._lock = lock
        self._row_key = row_key
        self._anchor = anchor
        self._keep_days = keep_days
        self._next_prune = 0.0
        self._on_error = on_error
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._taken = self._done = self._failures = 0
        """Rows taken, rows committed or lost, and failed commits."""
        self._lost = 0
        self._lost_reason = ""
        self._closing = self._closed = False
        self._commits = GroupCommit[PendingRow](
            "anaphora audit", self._commit, self._ended, collect=collect, patient=True
        )

    def start(self) -> None:
        self._commits.start()

    @property
    def problem(self) -> str | None:
        """Why rows cannot be written now; None if they can."""
        return "it is closed" if self._closing else self.failing

    # ── For any thread ───────────────────────────────────────────────────────────────────────────

    @property
    def is_full(self) -> bool:
        return self._taken - self._done >= MOST_WAITING

    def put(self, *rows: PendingRow) -> None:
        """Adds rows without waiting. Raises `Io` if there is no room for them."""
        if os.getpid() != self._process:
            self._check_process()
        with self._changed:
            if self._closing:
                raise Io("the audit log is closed")
            if self._taken - self._done >= MOST_WAITING:
                self._lost += len(rows)
                self._lost_reason = self._lost_reason or "the queue is full"
                raise Io(f"no more rows can wait for the audit log: {self.failing}")
            self._taken += len(rows)
            for row in rows:
                self._commits.put(row)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Io("the audit log was opened by another process; open one in each process")

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all rows so far are on disk. Raises `Io` if a commit fails, or on a
        timeout."""
        self._check_process()
        with self._changed:
            goal, failures = self._taken, self._failures
            self._commits.hurry()
            ended = self._changed.wait_for(
                lambda: self._done >= goal or self._failures > failures or self._closed, timeout
            )
            if self._done >= goal:
                return
        reason = self.failing if ended else f"not committed within {timeout:g} s"
        raise Io(f"{self.store.path}: {reason or 'the log is closed'}")

    def close(self) -> None:
        """Commits the waiting rows, and ends the thread. Rows that cannot be written are lost,
        which is reported."""
        if os.getpid() != self._process:
            return  # after a fork, the log is the parent's
        with self._changed:
            if self._closed:
                return
            self._closing = True
        self._commits.close()

    # ── In the thread ────────────────────────────────────────────────────────────────────────────

    def _commit(self, batch: list[PendingRow]) -> list[PendingRow] | None:
        """Returns the uncommitted rows, to be retried; None if all are committed."""
        if not batch:
            return None
        lost, reason = self._lost, self._lost_reason
        rows: list[AuditRow] = [] if not lost else [self._lost_row(lost, reason)]
        rows += self._made(batch)
        try:
            sealed = self._sealed_rows(rows)
            self._append(sealed)
        except (OSError, AnaphoraError) as problem:
            self._failed(problem)
            return batch
        self._committed(sealed, len(batch), lost)
        return None

    def _committed(self, sealed: _Sealed, count: int, lost: int) -> None:
        with self._changed:
            self._lost -= lost
            self._done += count
            self.failing = None
            self._changed.notify_all()
        if sealed.calls and self.on_durable is not None:
            try:
                self.on_durable(sealed.calls)
            except Exception as problem:  # the rows are written
                self._report(problem)

    def _made(self, batch: Iterable[PendingRow]) -> Iterable[AuditRow]:
        for make in batch:
            try:
                yield make()
            except Exception as problem:  # one row must not hold up the others
                self._report(problem)
                yield self._lost_row(1, _name(problem))

    def write(self, rows: Iterable[AuditRow]) -> None:
        """Commits rows, in a new segment if one is due."""
        self._append(self._sealed_rows(rows))

    def _sealed_rows(self, rows: Iterable[AuditRow]) -> _Sealed:
        now = time.time()
        head, lines, calls = self.head, [], []
        segment = self.store.segment_due(now)
        if segment:
            first = SegmentRow(at=now, epoch=self.epoch, segment=segment, prev=head.hash)
            line, head = seal(head, first, self._row_key)
            lines.append(line)
        for row in rows:
            line, head, row = self._sealed(head, row)
            lines.append(line)
            if isinstance(row, AuditEnvelope) and row.call_id and row.attempts:
                calls.append(row.call_id)
        return _Sealed(lines, segment, head, tuple(calls))

    def _append(self, sealed: _Sealed) -> None:
        self.store.append(sealed.lines, sealed.segment)
        self.head = sealed.head
        now = time.time()
        self._write_anchor(now)
        if self._keep_days is not None and now >= self._next_prune:
            self._next_prune = now + _DAY
            try:
                self.prune(self._keep_days, now)
            except (OSError, AnaphoraError) as problem:  # the rows are written
                self._report(problem)

    def _sealed(self, head: ChainHead, row: AuditRow) -> tuple[bytes, ChainHead, AuditRow]:
        """With the row that it became."""
        try:
            return *seal(head, row, self._row_key), row
        except Exception as problem:  # a row that cannot be encoded must not hold up the others
            self._report(problem)
            lost = self._lost_row(1, _name(problem))
            return *seal(head, lost, self._row_key), lost

    def prune(self, keep_days: float, now: float) -> tuple[Boundary, ...]:
        """Deletes old rows. A row that records it, with their last hash, is committed first."""
        boundaries = self.store.boundaries(now - keep_days * _DAY)
        if boundaries:
            row = PrunedRow(at=now, epoch=self.epoch, keep_days=keep_days, boundaries=boundaries)
            line, head = seal(self.head, row, self._row_key)
            self.store.append([line])
            self.head = head
            self._write_anchor(now)
            self.store.remove(boundaries)
        return boundaries

    def _write_anchor(self, now: float) -> None:
        if self._anchor is None:
            return
        try:
            write_anchor(self._anchor, self.store.path.name, self.head, now)
        except OSError as problem:  # the rows are written: only the anchor is late
            self._report(problem)

    def _lost_row(self, rows: int, reason: str) -> LostRow:
        return LostRow(at=time.time(), epoch=self.epoch, rows=rows, reason=reason)

    def _failed(self, problem: Exception) -> None:
        first = self.failing is None
        with self._changed:
            self.failing = _message(problem)
            self._lost_reason = _name(problem)
            self._failures += 1
            self._changed.notify_all()
        if first:
            self._report(problem)

    def _report(self, problem: BaseException) -> None:
        """Reports a failure to the log, to `on_error` and to `errors`; once until writing works
        again."""
        error = AuditError(time.time(), _message(problem))
        self.errors.append(error)
        log(logging.ERROR, f"{self.store.path}: {error.message}", problem, _log)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception as raised:
                log(logging.ERROR, f"on_error failed: {described(raised)}", raised, _log)

    def _ended(self, left: list[PendingRow], problem: BaseException | None) -> None:
        try:
            if problem is None:
                self._end(left)
            else:  # an error in this module must not be silent
                self._report(problem)
        finally:
            with self._changed:
                self._closing = self._closed = True
                self._changed.notify_all()
            self._release()

    def _end(self, waiting: list[PendingRow]) -> None:
        """The last row; what could not be written is reported."""
        left = len(waiting) + self._lost
        try:
            if left:
                self.write([self._lost_row(left, self._lost_reason)])
            self.write([StopRow(at=time.time(), epoch=self.epoch)])
        except (OSError, AnaphoraError) as problem:
            self._failed(problem)
            if left:
                self._report(Io(f"{left} rows were not written: {_message(problem)}"))

    def _release(self) -> None:
        try:
            self.store.close()
        finally:
            self._lock.release()


def _message(problem: BaseException) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    if isinstance(problem, AnaphoraError):
        return str(problem)
    return described(problem)


def _name(problem: BaseException) -> str:
    """The class of an error, and the system's code: `OSError ENOSPC`."""
    name = type(problem).__name__
    if isinstance(problem, OSError) and problem.errno is not None:
        return f"{name} {errno.errorcode.get(problem.errno, problem.errno)}"
    return name
