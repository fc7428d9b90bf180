"""Past calls in memory: those of a watched program or of the emulator, or of a log that is read
once for a report."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

import msgspec
from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.values import (
    CallPage,
    CallQuery,
    ConversationRow,
    ShownCall,
    ShownConversation,
    View,
)
from anaphora.dashboard.view import is_found
from anaphora.sqlite_files import transaction

from .adding import AddedCalls, ReportForm
from .log_tail import PlacedRow
from .names import MOST_NAMES, KnownNames
from .queries import days, groups
from .schema import DAY, MINUTE, FillState, create_in_memory
from .source import PastCalls
from .sums import CallTotals

_MOST_CALLS = 20_000
#: Maximum number of calls that wait to be added to the tables; a page adds them as well.
_MOST_WAITING = 250
#: Calls that a report adds at a time.
_MOST_READ = 20_000


class MemoryCalls(PastCalls):
    """Keeps the latest calls; earlier ones are only in the sums. Ranges are widened to whole
    minutes. Thread-safe."""

    def __init__(
        self,
        most: int = _MOST_CALLS,
        *,
        is_side_call: Callable[[str], bool] = lambda _: False,
        current: Callable[[ShownCall], ShownCall] = lambda shown: shown,
        update: Callable[[], None] = lambda: None,
    ) -> None:
        """`most`: calls that are kept. `is_side_call` tells whether the conversation with an id is
        a side call, which a later call may change; `current` returns a call as it is shown now.
        `update` is called before the version is read."""
        self._most = most
        self._is_side_call = is_side_call
        self._current = current
        self._update = update
        self._adding = threading.Lock()
        self._reading = threading.Lock()
        self._version = 0
        self._clear()

    def _clear(self) -> None:
        self._database = create_in_memory()
        # Python 3.13 warns about one that is not closed.
        self._close = weakref.finalize(self, self._database.close)
        self._names = KnownNames(self._database, MOST_NAMES)
        self._state = FillState()
        self._waiting: deque[tuple[int, AuditEnvelope]] = deque()
        self._kept: dict[int, ShownCall] = {}
        """By their numbers, the oldest first."""
        self._numbers: dict[str, int] = {}
        """Call number by call id."""
        self._count = 0
        self._latest = 0.0

    def add(self, shown: ShownCall) -> None:
        with self._adding:
            self._version += 1
            self._count += 1
            self._waiting.append((self._count, shown.call))
            self._kept[self._count] = shown
            self._numbers[shown.id] = self._count
            if len(self._kept) > self._most:
                old = self._kept.pop(self._count - self._most)
                del self._numbers[old.id]
        if len(self._waiting) >= _MOST_WAITING and self._reading.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._reading.release()

    def clear(self) -> None:
        with self._reading, self._adding:
            self._version += 1
            self._close()
            self._clear()

    def _write(self) -> None:
        """Adds the waiting calls to the tables."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not waiting:
            return
        self._latest = max(self._latest, *(call.at for _, call in waiting))
        added = AddedCalls(self._names, self._state, self._latest)
        for number, call in waiting:
            added.add(number, call)
        with transaction(self._database):
            added.write(self._database, self._most, lambda _: None)
        self._state = added.state

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    def version(self) -> int:
        self._update()
        return self._version

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, FillState]]:
        with self._reading:
            self._write()
            yield self._database, self._state

    def range(self, view: View) -> tuple[float, float]:
        return view.since // MINUTE * MINUTE, math.ceil(view.until / MINUTE) * MINUTE

    def calls(self, query: CallQuery) -> CallPage:
        """In the order in which they were added."""
        fitting = self._newest(query)
        found = list(islice(fitting, query.limit))
        more = next(fitting, None) is not None
        return CallPage(calls=found, before=found[-1].id if found and more else None)

    def _newest(self, query: CallQuery) -> Iterator[ShownCall]:
        """The calls of a query, the newest first."""
        with self._adding:
            kept = list(self._kept.items())
            # Calls dropped meanwhile are older than all calls that are kept.
            end = math.inf if query.before is None else self._numbers.get(query.before, 0)
        since, until = self.range(query.view)
        query = replace(query, view=replace(query.view, since=since, until=until))
        for number, shown in reversed(kept):
            if number < end and is_found(shown.call, query):
                yield self._current(shown)

    def shown(self, rows: Sequence[PlacedRow]) -> list[ShownCall]:
        with self._adding:
            found = [self._kept[row[0]] for row in rows if row[0] in self._kept]
        return [self._current(shown) for shown in found]

    def conversations(self, view: View, limit: int = 100) -> Sequence[ConversationRow]:
        return [self._row(row) for row in super().conversations(view, limit)]

    def conversation(self, id: str) -> ShownConversation | None:
        found = super().conversation(id)
        if found is None:
            return None
        left_out = found.row.sums.calls - len(found.calls)
        return replace(found, row=self._row(found.row), left_out=left_out)

    def _row(self, row: ConversationRow) -> ConversationRow:
        return replace(row, side_call=self._is_side_call(row.id))


class AuditReport(msgspec.Struct, kw_only=True):
    total: CallTotals
    models: dict[str, CallTotals]
    labels: dict[str, CallTotals]
    """A call with two labels is in both."""
    days: dict[str, CallTotals]
    """By the UTC day on which the call began."""
    causes: dict[str, CallTotals]
    """Calls that lost tokens, by the cause."""
    changed: dict[str, CallTotals]
    """Calls whose prefix broke, by the block that changed."""


class LogSums(PastCalls):
    """The sums of a log that is read once, for a report. Calls are not kept, and there are no views
    of a part of the log."""

    def __init__(self, *, charts: bool) -> None:
        """`charts`: also for charts, and by block of the prompt."""
        self._charts = charts
        self._database = create_in_memory()
        weakref.finalize(self, self._database.close)
        self._names = KnownNames(self._database, MOST_NAMES)
        self._state = FillState()
        self.first, self.last = math.inf, -math.inf
        """Times of calls."""

    def add(self, calls: Iterable[AuditEnvelope]) -> bool:
        """Adds some of the calls; True if there may be more."""
        added: AddedCalls | None = None
        for call in islice(calls, _MOST_READ):
            if added is None:
                form = ReportForm(min(self.first, call.at), self._charts)
                added = AddedCalls(self._names, self._state, 0.0, form)
            added.add(0, call)
            self.first = min(self.first, call.at)
            self.last = max(self.last, call.at)
        if added is None:
            return False
        with transaction(self._database):
            added.write(self._database, 0, lambda _: None)
        self._state = added.state
        return True

    @property
    def view(self) -> View:
        return View(since=self.first, until=self.last + 1.0, range="custom")

    @property
    def labels(self) -> dict[str, CallTotals]:
        """The application's labels of its calls."""
        with self.selection(self.view) as of:
            return groups(of, "tags", "tag")

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, FillState]]:
        yield self._database, self._state

    def range(self, view: View) -> tuple[float, float]:
        return view.since // DAY * DAY, math.ceil(view.until / DAY) * DAY


def summed(calls: Iterable[AuditEnvelope], *, charts: bool) -> LogSums | None:
    """None if there are no calls. `charts`: also for charts, and by block of the prompt."""
    found, rest = LogSums(charts=charts), iter(calls)
    while found.add(rest):
        pass
    return None if found.last < found.first else found


def report(calls: Iterable[AuditEnvelope]) -> AuditReport:
    log = summed(calls, charts=False)
    if log is None:
        return AuditReport(total=CallTotals(), models={}, labels={}, days={}, causes={}, changed={})
    with log.selection(log.view) as of:
        by_day = days(of)
        total = CallTotals()
        for sums in by_day.values():
            total.add_sums(sums)
        return AuditReport(
            total=total,
            models=_ordered(groups(of, "sums", "model"), "cost_nano_usd"),
            labels=_ordered(groups(of, "tags", "tag"), "cost_nano_usd"),
            days={_date(day): sums for day, sums in by_day.items()},
            causes=_ordered(groups(of, "causes", "cause"), "lost"),
            changed=_ordered(groups(of, "changed", "changed"), "lost"),
        )


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))


def _ordered(groups: Mapping[str, CallTotals], figure: str) -> dict[str, CallTotals]:
    return dict(sorted(groups.items(), key=lambda item: -getattr(item[1], figure)))
