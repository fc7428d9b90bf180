"""The audit log of an application: opened once, given to its clients, closed at the end."""

from __future__ import annotations

import asyncio
import platform
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from anaphora.client.failures import failure_notice
from anaphora.client.observe import EndedCall
from anaphora.client.observe.export import label
from anaphora.errors import AnchorMismatch, InvalidRequest, Io
from anaphora.rendered import Plan, Rendered
from anaphora.values import Notice
from anaphora.version import __version__

from .call_rows import BlockDigests, blocks_of, current_labels, prompt_digest, row_of_record
from .chain import ChainHead
from .envelope import (
    AuditBlock,
    AuditEnvelope,
    AuditRow,
    CorrectionRow,
    RecoveryRow,
    StartRow,
    encode,
)
from .log_file import SEGMENT_BYTES, FileStore, Recovered, check_name
from .reading import hash_of_row, open_log
from .side_files import WriterLock, key_id, read_anchor, read_or_create_key
from .writer import AuditError, LogWriter

replace = msgspec.structs.replace

#: Digits of the digest that replaces the name of a conversation.
_ID_DIGITS = 16


class AuditLog:
    """A log of calls, in a folder.

    A call only puts its row into a queue, which a thread commits in batches. So logging neither
    delays nor loses an answer, but a process that is killed loses its last rows; `flush` waits for
    them.

    `app` and `node` (by default the machine's name) are in every row. `anchor` is a file elsewhere
    that names the last row: with it, `verify` detects a log that was cut off or rewritten.
    `keep_days` prunes segments of earlier days. `required`: while rows cannot be written, calls are
    refused before they are sent; otherwise they are made, with a notice. `on_error` gets an
    `AuditError` when writing begins to fail, in the log's thread. `collect`: seconds that rows wait
    for others, to be committed together. With a `row_key` of 32 bytes, stored elsewhere, each row
    has a MAC.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        app: str = "",
        node: str | None = None,
        anchor: str | Path | None = None,
        keep_days: float | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        required: bool = False,
        on_error: Callable[[AuditError], None] | None = None,
        collect: float = 0.0,
        row_key: bytes = b"",
    ) -> None:
        """Raises `Io` if another process writes the log, `ChainBroken` if its end was changed,
        `AnchorMismatch` if the anchor belongs to another log."""
        if keep_days is not None and not keep_days > 0:
            raise InvalidRequest(f"must be > 0, got {keep_days}", path="keep_days")
        if segment_bytes < 1:
            raise InvalidRequest(f"must be ≥ 1, got {segment_bytes}", path="segment_bytes")
        self.path = Path(path).absolute()  # the process may change its directory
        self.app = label(app)
        self.node = label(platform.node() if node is None else node)
        self._required = required
        writer = open_writer(
            self.path,
            app=self.app,
            node=self.node,
            anchor=None if anchor is None else Path(anchor).absolute(),
            keep_days=keep_days,
            segment_bytes=segment_bytes,
            on_error=on_error,
            collect=collect,
            row_key=row_key,
        )
        self._writer = writer
        self.first_row = writer.first_row
        """Number of the first row written by this log."""
        self._digests = BlockDigests(read_or_create_key(self.path))
        writer.start()
        # An unclosed log is closed when it is garbage-collected, or at exit.
        self._close = weakref.finalize(self, writer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<AuditLog {self.path}, row {self.head.seq:,}>"

    @property
    def head(self) -> ChainHead:
        """The last committed row."""
        return self._writer.head

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def errors(self) -> tuple[AuditError, ...]:
        """The last failures to write."""
        return tuple(self._writer.errors)

    @property
    def failing(self) -> bool:
        """Whether rows wait that could not be written."""
        return self._writer.failing is not None

    @property
    def is_full(self) -> bool:
        """Whether no more rows can wait to be written."""
        return self._writer.is_full

    def follow_calls(self, durable: Callable[[Sequence[str]], None]) -> None:
        """Calls `durable` with the ids of a daemon's calls when their rows are committed, in the
        log's thread. To be called before the first call."""
        self._writer.on_durable = durable

    def append(self, envelope: AuditEnvelope) -> None:
        """Adds the row of a call, without waiting. Its epoch, app and node are the log's. Raises
        `InvalidRequest` for a row that could not be read back."""
        row = _checked(envelope)
        row = replace(
            row,
            epoch=self.epoch,
            app=envelope.app or self.app,
            node=envelope.node or self.node,
            labels=envelope.labels or current_labels(),
        )
        self._writer.put(lambda: row)

    def append_correction(self, row: CorrectionRow) -> None:
        """Adds the row of a correction, without waiting."""
        row = replace(row, epoch=self.epoch, node=self.node)
        self._writer.put(lambda: row)

    def check(self) -> None:
        """For clients: raises `Io` if the log is `required` and cannot be written."""
        if self._required and (problem := self._writer.problem) is not None:
            raise Io(f"{self.path}: the audit log cannot be written: {problem}")

    def call_ended(self, call: EndedCall) -> tuple[Notice, ...]:
        """For clients: adds a call. Only the digests of the new part of its prompt are computed
        here; the prompt is not kept."""
        described: tuple[tuple[AuditBlock, ...], str] = ((), "")
        if call.rendered is not None and call.plan is not None:
            described = self.describe(call.rendered, call.plan)
        ended, labels = replace(call, rendered=None), current_labels()
        self._writer.put(lambda: self._row(ended, labels, *described))
        return self._failing()

    def calls_ended(self, calls: Sequence[EndedCall]) -> tuple[Notice, ...]:
        """Adds many, with the digests computed in the log's thread: its queue keeps the prompts
        until then."""
        if self.failing:  # the queue may become long
            return tuple({notice: None for call in calls for notice in self.call_ended(call)})
        self._writer.put(*[partial(self._described_row, call, current_labels()) for call in calls])
        return self._failing()

    def _described_row(self, call: EndedCall, labels: tuple[str, ...]) -> AuditEnvelope:
        described: tuple[tuple[AuditBlock, ...], str] = ((), "")
        if call.rendered is not None and call.plan is not None:
            described = self.describe(call.rendered, call.plan)
        return self._row(call, labels, *described)

    def _row(
        self,
        call: EndedCall,
        labels: tuple[str, ...],
        blocks: tuple[AuditBlock, ...],
        prompt_hash: str,
    ) -> AuditEnvelope:
        if call.session:
            digest = self.digest(call.session.encode(errors="replace"))[:_ID_DIGITS]
            call = replace(call, conversation=digest)
        return row_of_record(
            call.record,
            app=self.app,
            node=self.node,
            epoch=self.epoch,
            call=call,
            labels=labels,
            blocks=blocks,
            prompt_hash=prompt_hash,
        )

    def _failing(self) -> tuple[Notice, ...]:
        failing = self._writer.failing
        if failing is None:
            return ()
        return (failure_notice("audit_failed", Io(f"{self.path}: {failing}")),)

    def describe(self, rendered: Rendered, plan: Plan) -> tuple[tuple[AuditBlock, ...], str]:
        """The blocks of a prompt, and its keyed hash."""
        digests = self._digests
        return blocks_of(rendered, plan, digests), prompt_digest(rendered, digests)

    def digest(self, data: bytes) -> str:
        """The keyed digest of some bytes, as in the rows."""
        return self._digests.of_bytes(data)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when the rows of all calls so far are on disk; raises `Io` if they cannot be
        written."""
        self._writer.flush(timeout)

    async def aflush(self, timeout: float | None = None) -> None:
        """As `flush`, in an event loop."""
        await asyncio.to_thread(self._writer.flush, timeout)

    def close(self) -> None:
        """Commits all rows, and releases the log for another writer."""
        self._close()


def _checked(envelope: AuditEnvelope) -> AuditEnvelope:
    try:
        msgspec.json.decode(encode(envelope), type=AuditEnvelope)
        datetime.fromtimestamp(envelope.at, UTC)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, OSError) as problem:
        raise InvalidRequest(f"not a row of an audit log: {problem}", path="envelope") from None
    return envelope


def open_writer(
    path: Path,
    *,
    app: str = "",
    node: str = "",
    anchor: Path | None = None,
    keep_days: float | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    on_error: Callable[[AuditError], None] | None = None,
    collect: float = 0.0,
    row_key: bytes = b"",
) -> LogWriter:
    """The writer of a log, not started yet. Its first rows are already committed: a start row, and
    a recovery row if the previous writer left something unfinished."""
    lock, store = _opened(path, segment_bytes)
    try:
        found = store.open()
        if anchor is not None and anchor.exists():
            _check_anchor(path, anchor, found)
        start = StartRow(
            at=time.time(),
            epoch=found.epoch + 1,
            app=app,
            node=node,
            version=__version__,
            key_id=key_id(read_or_create_key(path)),
        )
        writer = LogWriter(
            store,
            lock,
            head=found.head,
            epoch=start.epoch,
            anchor=anchor,
            keep_days=keep_days,
            on_error=on_error,
            collect=collect,
            row_key=row_key,
        )
        rows: list[AuditRow] = [start]
        if not found.closed:
            rows.append(_recovery(found, writer.epoch, start.at))
        writer.write(rows)
    except BaseException as error:
        store.close()
        lock.release()
        if isinstance(error, OSError):
            raise Io(f"{path}: cannot be written: {error.strerror or error}") from None
        raise
    return writer


def _opened(path: Path, segment_bytes: int) -> tuple[WriterLock, FileStore]:
    check_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Io(f"{path.parent}: cannot be created: {error.strerror or error}") from None
    lock = WriterLock(path)
    lock.acquire()
    return lock, FileStore(path, segment_bytes)


def _recovery(found: Recovered, epoch: int, now: float) -> RecoveryRow:
    return RecoveryRow(
        at=now,
        epoch=epoch,
        reason="unfinished_row" if found.dropped else "not_closed",
        bytes=found.dropped,
    )


def _check_anchor(path: Path, anchor: Path, found: Recovered) -> None:
    """Refuses to move an anchor that was written for another log."""
    expected = read_anchor(anchor).head
    if expected.seq > found.head.seq:
        raise AnchorMismatch(
            f"{path}: the log was cut off: it ends with row {found.head.seq:,}, and the anchor"
            f" {anchor} names row {expected.seq:,}",
            row=found.head.seq + 1,
        )
    actual = hash_of_row(path, expected.seq)
    if actual is not None and actual != expected.hash:
        raise AnchorMismatch(
            f"{path}: row {expected.seq:,} is not the one that the anchor {anchor} names: the log"
            " was rewritten",
            row=expected.seq,
        )


# ── Pruning ──────────────────────────────────────────────────────────────────────────────────────


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    log: str
    through: int
    """The last pruned row; 0 if none was old enough."""
    hash: str
    """Its hash, which is now in a row of the log."""
    segments: int
    """Number of deleted segments."""


def prune(
    path: str | Path,
    *,
    keep_days: float,
    anchor: str | Path | None = None,
    row_key: bytes = b"",
) -> PruneResult:
    """Deletes the segments of earlier days. A row with the hash of the last deleted row is written
    first. Raises `Io` while a process writes the log: its own `keep_days` prunes it. `row_key` is
    for a log whose rows have MACs."""
    open_log(Path(path))  # raises if there is none: a writer would begin one
    writer = open_writer(
        Path(path),
        node=platform.node(),
        anchor=None if anchor is None else Path(anchor),
        row_key=row_key,
    )
    try:
        boundaries = writer.prune(keep_days, time.time())
    finally:
        writer.close()
    last = boundaries[-1] if boundaries else None
    return PruneResult(
        log=str(path),
        through=0 if last is None else last.through,
        hash="" if last is None else last.hash,
        segments=len(boundaries),
    )
