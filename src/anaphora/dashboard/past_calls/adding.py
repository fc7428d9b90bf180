"""Adds calls to the tables: a row for each call and each block of its prompt. GROUP BY over these
rows makes the sums of each step."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from operator import add, sub
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope, AuditUsage
from anaphora.sqlite_files import RowInsert
from anaphora.values import Ttl

from .log_tail import Place
from .names import KnownNames
from .schema import (
    ADDED_COLUMNS,
    ADDED_TABLES,
    ALL_CALLS,
    BLOCK_COLUMNS,
    CALL_COLUMNS,
    DAY,
    HOUR,
    MASKS,
    MINUTE,
    QUARTER,
    STEPS,
    SUM_TABLES,
    SUMS,
    FillState,
    Pause,
    PausedWork,
    SumTable,
    write_conversations,
)
from .sums import block_shares, bucket_of, figures_of, masked

Figures: TypeAlias = tuple[int, ...]
Key: TypeAlias = tuple[int, ...]
_ReportedKey: TypeAlias = tuple[int, Key, int, Key]
"""Start, names, block that changed, and labels of the application."""

#: Latest calls that are kept one by one, and how many may be there before some are deleted.
KEPT_CALLS, _SLACK = 1_000_000, 20_000
#: Seconds for which minutes are kept.
KEPT_MINUTES = 26 * HOUR
#: Seconds from the beginning of a report for which minutes, and quarters of an hour, are kept.
_REPORT_MINUTES, _REPORT_QUARTERS = 9 * HOUR, 51 * HOUR
#: The group of calls without a label of the application.
NO_LABEL = "(no label)"
#: The largest figure of a call that is summed: more tokens or nano-dollars are a provider's error,
#: and would overflow the sums. Blocks of such a call are left out.
_MOST: Final = 10**13
#: The latest time of a call, in seconds since 1970.
_LATEST: Final = 1e11

#: Indexes in `SUMS` of the figures that masking changes.
_MASKED: Final = tuple(SUMS.index(name) for name in MASKS)
_NOT_MASKED: Final = (0,) * len(MASKS)


def _all_figures(call: AuditEnvelope) -> Figures:
    """With retries, and what its app sees less."""
    sums, retries = figures_of(call), max(call.attempts - 1, 0)
    if call.own is None:
        return (*sums, retries, *_NOT_MASKED)
    own = figures_of(masked(call))
    return (*sums, retries, *(own[at] - sums[at] for at in _MASKED))


class ReportForm(msgspec.Struct, frozen=True):
    """The sums that a report of a log needs. No call is kept: calls of one step with the same names
    are one row."""

    since: float
    """Start of the first call."""
    charts: bool
    """Whether to make charts, and sums by block of the prompt."""

    def start(self, at: float) -> int:
        """Start of a call's step. Sums are stored as minutes; steps are as long as the charts
        allow."""
        age = at - self.since
        if not self.charts:
            step = DAY
        elif age < _REPORT_MINUTES:
            step = MINUTE
        else:
            step = QUARTER if age < _REPORT_QUARTERS else HOUR
        return int(at // step * step)


class _Form(NamedTuple):
    """The labels of a prompt in their order."""

    number: int
    labels: tuple[int, ...]
    label_set: int


class AddedCalls:
    """The calls of one transaction."""

    def __init__(
        self,
        names: KnownNames,
        state: FillState,
        now: float,
        report: ReportForm | None = None,
    ) -> None:
        """`report`: also sums by label of the application, and by the block that changed."""
        self.count = 0
        self._names = names
        self._report = report
        self._before = state
        self.state = replace(
            state,
            minutes_since=max(state.minutes_since, (now - KEPT_MINUTES) // HOUR * HOUR),
            longer_until=max(state.longer_until, now // HOUR * HOUR),
        )
        self._earliest, self._latest = math.inf, 0.0
        self._tables = {"sums", *(("latency",) if report is None else ("tags", "changed"))}
        """Tables of sums that change."""
        self._rows: list[Sequence[object]] = []
        self._block_rows: list[Sequence[int]] = []
        self._tag_rows: list[tuple[int, int]] = []
        self._reported: dict[_ReportedKey, Figures] = {}
        self._ids: list[tuple[int, str]] = []
        self._block_sums: dict[Key, list[int]] = {}
        """By step, start, app, provider, model, group and form; `_own_block_sums`: what an app sees
        less."""
        self._own_block_sums: dict[Key, list[int]] = {}
        self._forms: dict[tuple[int, object], _Form] = {}
        self._last_form: dict[int, _Form] = {}
        """By app."""
        self._labels: dict[tuple[int, int], tuple[str, Ttl | None]] = {}
        """Kind and TTL, by app and label."""
        self._services: dict[tuple[str, ...], tuple[int, int, int, int]] = {}

    def add(self, seq: int, call: AuditEnvelope, place: Place = (0, 0)) -> None:
        """`seq` is the number of the call: later calls have higher numbers."""
        at = call.at
        if not 0.0 <= at <= _LATEST:
            at = min(max(at, 0.0), _LATEST)
        self.count += 1
        self._earliest = min(self._earliest, at)
        self._latest = max(self._latest, at)
        service, outcome, cause = self._service(call), self._names.id("outcome", call.outcome), 0
        if call.outcome != "ok":
            self._tables.add("outcomes")
        if call.lost:
            self._tables.add("causes")
            cause = self._names.id("cause", call.cause or "unknown")
        if self._report is not None:
            self._add_to_report(self._report, at, (*service, outcome, cause), call)
            return
        step = MINUTE if at >= self.state.minutes_since else HOUR
        key = step, int(at // step * step), *service
        figures, labels = _all_figures(call), 0
        if _is_too_large(figures):
            figures = _limited(figures)
        elif call.blocks or call.broke:
            labels = self._add_blocks(key, call)
        self._add_ids(seq, call)
        bucket = None if call.first is None else bucket_of(call.first)
        self._rows.append(
            (
                seq, at, *place, *service, outcome, cause, labels,
                call.first, *figures, step, key[1], 0, bucket, 1, call.conversation,
                call.at + call.seconds,
            )
        )  # fmt: skip

    def _add_to_report(
        self, report: ReportForm, at: float, names: Key, call: AuditEnvelope
    ) -> None:
        """`names`: app, provider, model, group, outcome and cause."""
        figures, changed, id = figures_of(call), 0, self._names.id
        if _is_too_large(figures):
            figures = _limited(figures)
        elif report.charts and (call.blocks or call.broke):
            # Blocks have no chart: one step has them all.
            self._add_blocks((MINUTE, int(report.since), *names[:4]), call)
        if call.labels:
            tags = tuple([id("tag", tag) for tag in dict.fromkeys(call.labels)])
        else:
            tags = (id("tag", NO_LABEL),)
        if call.broke:
            changed = id("changed", call.changed or call.cause or "unknown")
        row = report.start(at), names, changed, tags
        found = self._reported.get(row)
        self._reported[row] = figures if found is None else tuple(map(add, found, figures))

    def _add_reported_rows(self) -> None:
        for seq, ((start, names, changed, tags), figures) in enumerate(self._reported.items()):
            self._tag_rows += [(seq, tag) for tag in tags]
            self._rows.append(
                (
                    seq, start, 0, 0, *names, 0, None, *figures, 0, *_NOT_MASKED,
                    MINUTE, start, changed, None, 0, "", start,
                )
            )  # fmt: skip

    def _add_ids(self, seq: int, call: AuditEnvelope) -> None:
        ids = (
            call.request_id, call.response_id, call.call_id, call.budget, call.budget_label
        )  # fmt: skip
        text = "\t".join(filter(None, ids))
        if text and text.replace("\t", "").isprintable():
            self._ids.append((seq, text.casefold()))

    def _service(self, call: AuditEnvelope) -> tuple[int, int, int, int]:
        """The numbers of the app, the provider, the model and the app's group."""
        texts = call.app, call.provider, call.billed_model, call.group
        found = self._services.get(texts)
        if found is None:
            names, app = self._names, self._names.id("app", call.app)
            provider, model = names.id("provider", call.provider), names.model(app, texts[2])
            found = self._services[texts] = app, provider, model, names.id("app_group", call.group)
        return found

    def _add_blocks(self, key: Key, call: AuditEnvelope) -> int:
        """The set of the labels of the call's blocks."""
        names, app = self._names, key[2]
        if max([block.tokens for block in call.blocks], default=0) > _MOST:
            call = replace(call, usage=AuditUsage(), own=None)
        self._tables.add("blocks")
        form = self._form(app, call)
        shares = block_shares(call)
        _sum(self._block_sums, (*key, form.number), shares)
        if call.own is not None and self._report is None:
            less = list(map(sub, block_shares(masked(call)), shares))
            _sum(self._own_block_sums, (*key, form.number), less)
        if call.broke and call.changed:
            label = names.label(app, call.changed)
            self._labels.setdefault((app, label), ("", None))
            self._tables.add("changes")
            change = names.id("change", call.change or "other")
            lost = call.lost, call.lost_nano_usd or 0
            self._block_rows.append((*key, label, change, 0, 0, 0, 0, 0, 1, *lost, 0, 0, 0, 0))
        return form.label_set

    def _form(self, app: int, call: AuditEnvelope) -> _Form:
        """The blocks of a call without their tokens: most calls of an app share one form."""
        blocks = tuple(
            [
                (block.label, block.kind, block.ttl if block.marker else None)
                for block in call.blocks
            ]
        )
        form = self._forms.get((app, blocks))
        if form is None:
            labels = tuple([self._names.label(app, label) for label, _, _ in blocks])
            form = _Form(len(self._forms), labels, self._names.label_set(labels))
            self._forms[app, blocks] = form
        if self._last_form.get(app) is not form:
            self._last_form[app] = form
            for label, (_, kind, ttl) in zip(form.labels, blocks, strict=True):
                before = self._labels.get((app, label), ("", None))
                self._labels[app, label] = kind or before[0], ttl or before[1]
        return form

    def _add_block_rows(self) -> None:
        """A row for each label of each form; a call counts once for each label."""
        forms = [form.labels for form in self._forms.values()]
        for (*key, number), (calls, unpriced, *shares) in self._block_sums.items():
            labels, none = forms[number], [0] * (2 + len(shares))
            _, own_unpriced, *own = self._own_block_sums.get((*key, number), none)
            for place, label in enumerate(labels):
                first = label not in labels[:place]
                tokens, read, cost, unreported = shares[place :: len(labels)]
                _, own_read, own_cost, _ = own[place :: len(labels)]
                less = own_read, own_cost, own_unpriced * first
                seen = calls * first, tokens, read, cost, unpriced * first
                self._block_rows.append((*key, label, 0, *seen, 0, 0, 0, unreported, *less))

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def write(self, database: sqlite3.Connection, kept: int, pause: Pause) -> None:
        """Runs within a transaction. The latest `kept` calls stay; with 0, only sums are made."""
        work = PausedWork(database, pause)
        if self.state.longer_until > self._before.longer_until:
            for table in SUM_TABLES:
                for step in STEPS[1:]:
                    where = f"step = {MINUTE} AND start >= ? AND start < ?"
                    since = self._before.longer_until, self.state.longer_until
                    work.run(table.add(table.name, where, step), since)
        self._names.write(database)
        self._add_block_rows()
        self._add_reported_rows()
        work.insert(_ADDED, self._rows)
        work.insert(_ADDED_BLOCKS, self._block_rows)
        work.insert(_ADDED_TAGS, self._tag_rows)
        tables = [table for table in SUM_TABLES if table.name in self._tables]
        for table in tables:
            self._write_sums(work, table)
        if kept:
            write_conversations(work)
            columns = ", ".join(_CALL_SOURCES.get(name, name) for name in CALL_COLUMNS)
            # A modified log may have two rows with one number.
            work.run(f"INSERT OR REPLACE INTO calls SELECT {columns} FROM added")
            work.insert(_CALL_IDS, self._ids)
        labels = [(*key, *about, self._latest) for key, about in self._labels.items()]
        work.insert(_LABELS, labels)
        for name in (*ADDED_TABLES, *(table.fresh for table in tables)):
            work.run(f"DELETE FROM {name}")
        self._delete_old(work, kept)
        self.state = replace(self.state, calls=self.state.calls + self.count)
        work.pause()

    def _write_sums(self, work: PausedWork, table: SumTable) -> None:
        if "label_set" in table.key:
            of_all = tuple({"label_set": f"{ALL_CALLS}"}.get(name, name) for name in table.key)
            work.run(table.sum(of_all))
            work.run(table.sum(table.key, "label_set > 0"))
        else:
            work.run(table.sum(table.key))
        work.run(table.add(table.fresh))
        if self._earliest < self.state.longer_until:
            for step in STEPS[1:]:
                where = f"step < {step} AND start < ?"
                work.run(table.add(table.fresh, where, step), (self.state.longer_until,))

    def _delete_old(self, work: PausedWork, kept: int) -> None:
        state, fetch = self.state, work.fetch
        if state.minutes_since > self._before.minutes_since:
            for table in SUM_TABLES:
                for step in (MINUTE, QUARTER):
                    delete = f"DELETE FROM {table.name} WHERE step = {step} AND start < ?"
                    work.run(delete, (state.minutes_since,))
        first, last = fetch("SELECT min(seq), max(seq) FROM calls")
        if first is None or last - first < kept + min(_SLACK, kept // 2):
            return
        through = (last - kept,)
        (since,) = fetch("SELECT max(at) FROM calls WHERE seq <= ?", through)
        work.run("DELETE FROM calls WHERE seq <= ?", through)
        work.run("DELETE FROM call_ids WHERE seq <= ?", through)
        work.run(
            "DELETE FROM conversations WHERE ended <= ? AND NOT EXISTS"
            " (SELECT 1 FROM calls WHERE conversation = conversations.id)",
            (since,),
        )
        self.state = replace(state, calls_since=max(state.calls_since, since))


def _is_too_large(figures: Figures) -> bool:
    return max(figures) > _MOST or min(figures) < -_MOST


def _limited(figures: Figures) -> Figures:
    return tuple([min(max(figure, -_MOST), _MOST) for figure in figures])


def _sum(sums: dict[Key, list[int]], key: Key, figures: list[int]) -> None:
    found = sums.get(key)
    sums[key] = figures if found is None else list(map(add, found, figures))


_ADDED: Final = RowInsert("added", ADDED_COLUMNS)
_ADDED_BLOCKS: Final = RowInsert("added_blocks", BLOCK_COLUMNS)
_ADDED_TAGS: Final = RowInsert("added_tags", ("seq", "tag"))
_CALL_IDS: Final = RowInsert("call_ids", ("seq", "ids"), verb="INSERT OR REPLACE")
_LABELS: Final = RowInsert(
    "app_labels",
    ("app", "label", "kind", "ttl", "at"),
    end="ON CONFLICT DO UPDATE SET kind = coalesce(nullif(excluded.kind, ''), kind),"
    " ttl = coalesce(excluded.ttl, ttl), at = excluded.at",
)
#: Columns of `calls` that `added` does not have.
_CALL_SOURCES: Final = {
    "conversation": "coalesce((SELECT id FROM conversations WHERE name = conversation_name), 0)"
}
