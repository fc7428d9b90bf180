"""Past calls for pages and reports: those of an audit log here, those in memory in `memory`."""

from __future__ import annotations

import copy
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from anaphora import errors
from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.sentences import sentence_of
from anaphora.dashboard.values import (
    CallPage,
    CallQuery,
    ConversationRow,
    Names,
    Overview,
    ProviderRow,
    ShownCall,
    ShownConversation,
    View,
)
from anaphora.errors import Io

from .adding import KEPT_CALLS
from .following import Filler, FillThread, read_state
from .listing import (
    call_rows,
    conversation_calls,
    conversation_rows,
    find_conversation,
)
from .log_tail import LogTail, PlacedRow
from .queries import Selection, SumQueries, block_sums, first_bytes
from .schema import ALL_CALLS, MINUTE, THIRD, FillState, Pause, open_to_read
from .sums import BlockSums, CallTotals, masked

_ERRORS = {name: value for name, value in vars(errors).items() if isinstance(value, type)}


class PastCalls:
    """Queries of the tables. Methods may read files: call them outside an event loop."""

    masked_for: str | None = None
    """If set, only this app's calls, without their reads of other apps' cache entries."""

    def reading(self) -> AbstractContextManager[tuple[sqlite3.Connection, FillState]]:
        """Opens one consistent state of the tables."""
        raise NotImplementedError

    def shown(self, rows: Sequence[PlacedRow]) -> list[ShownCall]:
        """The calls of these rows that still exist."""
        raise NotImplementedError

    def version(self) -> int:
        """Grows when calls are added."""
        raise NotImplementedError

    def calls(self, query: CallQuery) -> CallPage:
        raise NotImplementedError

    def range(self, view: View) -> tuple[float, float]:
        """The range of a view, widened as the tables require."""
        return view.since, view.until

    @contextmanager
    def selection(self, view: View) -> Iterator[Selection]:
        app, wanted = self.masked_for, view
        if app is not None:
            wanted = replace(view, app=app)
        with self.reading() as (database, state):
            of = Selection(database, state, wanted, *self.range(view), masked=app is not None)
            of.empty = of.empty or (app is not None and view.app not in (None, app))
            yield of

    def has_calls(self) -> bool:
        """Whether there was ever a call."""
        with self.reading() as (_, state):
            return state.calls > 0

    # ── Sums ─────────────────────────────────────────────────────────────────────────────────────

    def names(self, view: View) -> Names:
        """The names in the range, ignoring its filters."""
        view = replace(view, app=self.masked_for, group=None, provider=None, model=None, label=None)
        with self.selection(view) as of:
            if of.empty:
                return Names()
            text, values = of.filters()
            since = view.since // THIRD * THIRD
            # Those of longer steps, and of the current hour.
            steps = (THIRD, since), (MINUTE, max(since, of.state.longer_until))
            rows = {
                row
                for step, start in steps
                for row in of.database.execute(
                    "SELECT DISTINCT app, provider, model, app_group FROM sums WHERE step = ?"
                    f" AND label_set = ? AND start >= ? AND start < ?{text}",
                    (step, ALL_CALLS, start, view.until, *values),
                )
            }
            labels = of.database.execute(
                f"SELECT DISTINCT label FROM app_labels WHERE at >= ?{text}", (since, *values)
            ).fetchall()
            texts = of.names(("app", "provider", "model", "app_group", "label"))
        columns = [sorted({texts[id] for id in ids} - {""}) for ids in zip(*rows, strict=True)]
        apps, providers, models, groups = columns or ([], [], [], [])
        return Names(
            apps=apps,
            groups=groups,
            providers=providers,
            models=models,
            labels=sorted(texts[id] for (id,) in labels),
        )

    def overview(self, view: View) -> Overview:
        with self.selection(view) as of:
            queries = SumQueries(of)
            steps, found = queries.steps, queries.points()
            apps, providers, models, groups = queries.by_name()
            causes, failed = queries.causes(), queries.outcomes("app")
        total = CallTotals()
        for sums in found.values():
            total.add_sums(sums)
        outcomes: dict[str, int] = {}
        for (_, outcome), count in failed.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        return Overview(
            total=total,
            points=steps.points(found),
            apps=apps,
            groups=groups,
            providers=providers,
            models=models,
            causes=causes,
            outcomes=outcomes,
        )

    def blocks(self, view: View) -> Sequence[BlockSums]:
        """By label, those with the most tokens first; over hours where minutes are not kept."""
        with self.selection(view) as of:
            return block_sums(of)

    def providers(self, view: View) -> Sequence[ProviderRow]:
        """Calls, failures, retries, latency and refusals; the host adds the rest."""
        with self.selection(view) as of:
            queries = SumQueries(of)
            sums, failed, times = (
                queries.by_provider(),
                queries.outcomes("provider"),
                first_bytes(of),
            )
        rows: list[ProviderRow] = []
        for name, (calls, failures, retries) in sorted(sums.items()):
            if not name:  # refused before the provider was known
                continue
            median, most = times.get(name, (None, None))
            refusals = {
                outcome: count
                for (provider, outcome), count in failed.items()
                if provider == name and _is(outcome, errors.Upstream, errors.Denied)
            }
            rows.append(
                ProviderRow(
                    name=name,
                    calls=calls,
                    failed=failures,
                    retries=retries,
                    first_p50=median,
                    first_p99=most,
                    refusals=refusals,
                )
            )
        return rows

    def denied(self, view: View) -> dict[str, dict[str, int]]:
        """Calls that the daemon refused, by app and error class."""
        with self.selection(view) as of:
            failed = SumQueries(of).outcomes("app")
        denied: dict[str, dict[str, int]] = {}
        for (app, outcome), count in failed.items():
            if _is(outcome, errors.Denied):
                denied.setdefault(app, {})[outcome] = count
        return denied

    # ── Conversations ────────────────────────────────────────────────────────────────────────────

    def conversations(self, view: View, limit: int = 100) -> Sequence[ConversationRow]:
        """Conversations with a call in the view, the latest first; their sums cover all their
        calls."""
        with self.selection(view) as of:
            return conversation_rows(of, limit)

    def conversation(self, id: str) -> ShownConversation | None:
        with self.reading() as (database, _):
            row = find_conversation(
                database, id, self.masked_for, masked=self.masked_for is not None
            )
            if row is None:
                return None
            rows, left_out = conversation_calls(database, id)
        return ShownConversation(row=row, calls=self.shown(rows), left_out=left_out)


class LogCalls(PastCalls):
    """The calls of an audit log: rows from the log, sums from the file `path`, which a thread
    fills.

    Shows all calls, for the operator. `for_app` gives the view of one app: only its calls, without
    their reads of other apps' cache entries.
    """

    def __init__(
        self,
        path: str | Path,
        log: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        kept_calls: int = KEPT_CALLS,
    ) -> None:
        self._path = Path(path).absolute()
        self._log = Path(log).absolute()
        filler = Filler(self._path, self._log, clock=clock, kept_calls=kept_calls)
        self._thread = FillThread(filler)
        self.error_of: Callable[[str], str] = lambda _: ""
        """The message of a failed call, by the id of its request; empty if it is not known."""

    def start(self) -> None:
        """Starts filling in the background."""
        self._thread.start()

    def fill(self, pause: Pause = lambda _: None) -> None:
        """Adds all new rows of the log. For use without `start`."""
        self._thread.fill(pause)

    def close(self) -> None:
        self._thread.close()

    def for_app(self, app: str) -> LogCalls:
        """The view of one app. Shares the file and the thread."""
        other = copy.copy(self)
        other.masked_for = app
        return other

    @property
    def problem(self) -> str:
        """Why the latest calls are missing; empty if none are."""
        return self._thread.problem

    @property
    def behind(self) -> bool:
        """Whether many calls of the log are not in the sums yet."""
        return self._thread.filler.behind

    def state(self) -> FillState:
        with self.reading() as (_, state):
            return state

    def version(self) -> int:
        self._thread.page_requested()
        return self._thread.version

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, FillState]]:
        self._thread.page_requested()
        try:
            with self._thread.filler.swapping:
                database = open_to_read(self._path)
                database.execute("BEGIN")
                state = read_state(database)
        except sqlite3.Error as error:
            raise Io(f"{self._path}: cannot be read: {error}") from None
        with closing(database):
            try:
                yield database, state
            except sqlite3.Error as error:
                raise Io(f"{self._path}: cannot be read: {error}") from None

    def calls(self, query: CallQuery) -> CallPage:
        with self.selection(query.view) as of:
            rows = call_rows(of, query)
            more = len(rows) > query.limit
            rows = rows[: query.limit]
            before = str(rows[-1][0]) if more and rows else None
        return CallPage(calls=self.shown(rows), before=before)

    def shown(self, rows: Sequence[PlacedRow]) -> list[ShownCall]:
        return [
            ShownCall(
                id=self._id(row, call),
                call=call,
                sentence=self._sentence(call),
            )
            for row, call in zip(rows, self._read(rows), strict=True)
            if call is not None
        ]

    def _sentence(self, call: AuditEnvelope) -> str:
        sentence, message = sentence_of(call), self.error_of(call.call_id)
        return f"{sentence.removesuffix('.')}: {message}" if message else sentence

    def _id(self, row: PlacedRow, call: AuditEnvelope) -> str:
        """An app gets ids without row numbers, which would tell it how many calls there were."""
        is_own = self.masked_for is not None
        return (call.call_id or f"turn-{call.turn}") if is_own else str(row[0])

    def _read(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        """The calls of rows; None if one is no longer in the log."""
        for call in LogTail(self._log).calls(rows):
            if call is None or self.masked_for is None:
                yield call
            else:  # an error in the file of sums must not show another app's call
                yield masked(call) if call.app == self.masked_for else None


def _is(outcome: str, base: type, but: type | tuple[type, ...] = ()) -> bool:
    found = _ERRORS.get(outcome)
    return found is not None and issubclass(found, base) and not issubclass(found, but or ())
