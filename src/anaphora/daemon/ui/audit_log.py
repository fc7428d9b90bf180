"""The audit log on the dashboard: a check of its hash chain, and its calls as a file. Each runs in
its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.log import AuditLog
from anaphora.audit.reading import calls, verify
from anaphora.dashboard.page_site import PAGE_HEADERS
from anaphora.dashboard.pages.audit import ChainStatus, call_query
from anaphora.dashboard.site import PageRequest
from anaphora.dashboard.values import CallQuery
from anaphora.dashboard.view import is_found
from anaphora.errors import (
    AnaphoraError,
    AnchorMismatch,
    ChainBroken,
    MacMismatch,
    OtherSchema,
    Overloaded,
)

from .access import ByteStream

#: Seconds of pause after every thousand rows, since calls of apps have priority.
_CHECK_REST = 0.002
_PIECE_BYTES = 64 * 1024
#: The pause of an export, and the rows between pauses.
_EXPORT_REST, _EXPORT_ROWS = 0.001, 100


_BROKEN = (ChainBroken, AnchorMismatch, MacMismatch, OtherSchema)


class _Stopped(Exception):
    """The daemon is stopping."""


class ChainVerifier:
    """Chain state of a log. Checks run on demand, one at a time."""

    def __init__(
        self,
        audit: AuditLog,
        clock: Callable[[], float],
        row_key: Callable[[], RowKey | None] = lambda: None,
    ) -> None:
        """`row_key` returns the key of the MACs when a check begins."""
        self._audit = audit
        self._row_key = row_key
        self._clock = clock
        self._state = ChainStatus()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def state(self) -> ChainStatus:
        return replace(self._state, written=self._audit.head.seq, failing=self._audit.failing)

    def start(self) -> None:
        """Begins a check if none is running. Called from one thread."""
        if self._thread is None or not self._thread.is_alive():
            self._state = replace(self._state, running_rows=0)
            self._thread = threading.Thread(
                target=self._check, args=(self._audit.path,), name="anaphora-verify", daemon=True
            )
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Waits until the check is done, or for `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _check(self, path: Path) -> None:
        found = replace(self._state, running_rows=None, problem="", unchecked="")
        try:
            verified = verify(path, row_key=self._row_key(), progress=self._progress)
            found = replace(found, verified=verified)
        except _Stopped:
            return
        except (AnaphoraError, OSError) as problem:
            # Pages must not show the home folder.
            text = str(problem).replace(f"{path}/", "").replace(str(path), path.name)
            is_broken = isinstance(problem, _BROKEN)
            found = replace(found, **{"problem" if is_broken else "unchecked": text})
        self._state = replace(found, checked_at=self._clock())

    def _progress(self, rows: int) -> None:
        if self._stopping:
            raise _Stopped
        self._state = replace(self._state, running_rows=rows)
        time.sleep(_CHECK_REST)


# ── Export ───────────────────────────────────────────────────────────────────────────────────────


class LogExport:
    """Exports a log, one request at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="anaphora-export")
        self._running = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def stream(self, page: PageRequest) -> ByteStream:
        """Streams the calls that match a search. Raises `Overloaded` while another export runs."""
        query = call_query(page.query, page.view)
        if self._running:
            raise Overloaded("Another export is running. Try again when it is done.", status=503)
        headers = {
            **PAGE_HEADERS,
            "content-type": "application/x-ndjson",
            "content-disposition": 'attachment; filename="audit.jsonl"',
        }
        return ByteStream(headers, self._pieces(query))

    async def _pieces(self, query: CallQuery) -> AsyncGenerator[bytes, None]:
        if self._running:
            raise Overloaded("another export is running", status=503)
        self._running = True
        lines = _lines(self._log, query)
        loop = asyncio.get_running_loop()
        try:
            while piece := await loop.run_in_executor(self._thread, _piece, lines):
                yield piece
        finally:
            self._running = False


def _piece(lines: Iterator[bytes]) -> bytes:
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= _PIECE_BYTES:
            break
    return bytes(piece)


def _lines(log: Path, query: CallQuery) -> Iterator[bytes]:
    """The rows as they are stored."""
    return (row.line + b"\n" for row, call in _rested(calls(log)) if is_found(call, query))


def _rested(
    items: Iterator[tuple[StoredRow, AuditEnvelope]],
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    """The rows, with pauses, since calls of apps have priority."""
    for index, item in enumerate(items):
        if index % _EXPORT_ROWS == 0:
            time.sleep(_EXPORT_REST)
        yield item
