"""Calls that are added to the sums together: summed in memory, written with few statements.

A statement writes many rows at once. One for each row would give up and take back Python's lock
each time, and wait for it while the daemon is busy.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import add, sub
from typing import Final, NamedTuple, TypeAlias

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.report import CallSums
from anaphora.dashboard.sums import block_shares, masked
from anaphora.values import Ttl

from .call_ids import add_ids, id_line
from .known_names import KnownNames
from .log_tail import NumberedCall, Place
from .schema import (
    ALL_CALLS,
    BLOCKS,
    CALL_SUMS,
    CAUSES,
    CHANGES,
    FIGURES,
    HOUR,
    LATENCY,
    MASKS,
    MINUTE,
    OUTCOMES,
    STEPS,
    SUMS,
    SumTable,
)

Key: TypeAlias = tuple[int, ...]
Figures: TypeAlias = tuple[int, ...]
Table: TypeAlias = dict[Key, Figures]

#: Buckets of the histogram: the first ends at 1 ms, each further one is 5 % wider.
_FIRST_BUCKET, _WIDTH = 0.001, math.log(1.05)
#: The largest figure of a call that is summed: more tokens or nano-dollars are a mistake of a
#: provider, and would be too large for sums. Blocks of such a call are left out.
_MOST: Final = 10**13
#: The latest time of a call, in seconds since 1970.
_LATEST: Final = 1e11
#: Rows of one statement: the largest that fits is taken.
_ROWS: Final = (256, 64, 16, 4, 1)
#: Seconds of work between two pauses.
_WORK: Final = 0.005

#: Where the figures that masking changes are in `SUMS`.
_MASKED: Final = tuple(SUMS.index(name) for name in MASKS)
_NOT_MASKED: Final = (0,) * len(MASKS)


def bucket_of(seconds: float) -> int:
    if seconds <= _FIRST_BUCKET:
        return 0
    return math.ceil(math.log(seconds / _FIRST_BUCKET) / _WIDTH)


def seconds_of(bucket: int) -> float:
    """The middle of a bucket."""
    return _FIRST_BUCKET * math.exp((bucket - 0.5) * _WIDTH)


def figures_of(call: AuditEnvelope) -> Figures:
    sums, retries = _sums(call), max(call.attempts - 1, 0)
    if call.own is None:
        return (*sums, retries, *_NOT_MASKED)
    own = _sums(masked(call))
    return (*sums, retries, *(own[at] - sums[at] for at in _MASKED))


def _sums(call: AuditEnvelope) -> Figures:
    sums = CallSums()
    sums.add(call)
    return msgspec.structs.astuple(sums)


class _Conversation(msgspec.Struct):
    app: int
    provider: int
    model: int
    began: float
    ended: float
    figures: Figures


class _Cell(msgspec.Struct):
    """The calls of one app, provider and model within one step."""

    sums: dict[int, Figures] = {}
    """By set of labels."""
    blocks: dict[int, list[int]] = {}
    """By form: see `_block_values`."""


class _BlockValues(NamedTuple):
    """What calls add to the sums of one label, but for breaks."""

    calls: int
    tokens: int
    read: int
    cost: int
    unpriced: int
    unreported: int


class _Form(msgspec.Struct, frozen=True):
    """The labels of a prompt in their order."""

    number: int
    labels: tuple[int, ...]
    label_set: int


class Batch:
    """The calls of one transaction."""

    def __init__(self, names: KnownNames, minutes_since: float, longer_until: float) -> None:
        """Calls before `minutes_since` are summed by hours and longer steps, those after
        `longer_until` by minutes only."""
        self._names = names
        self._minutes_since = minutes_since
        self._longer_until = longer_until
        self.calls = 0
        self.latest = 0.0
        self._cells: dict[Key, _Cell] = {}
        """By step, start, app, provider and model."""
        self._causes: Table = {}
        """Also by set of labels and cause; `_outcomes` by set of labels and outcome, `_changes` by
        label and kind of change."""
        self._outcomes: Table = {}
        self._changes: Table = {}
        self._breaks: Table = {}
        """By label: their number, and what was lost."""
        self._own: Table = {}
        """By form: what an app sees less of the blocks."""
        self._latency: Table = {}
        self._rows: list[tuple[object, ...]] = []
        self._ids: list[tuple[int, str]] = []
        self._conversations: dict[int, _Conversation] = {}
        self._labels: dict[int, dict[int, tuple[str, Ttl | None]]] = {}
        """Kind and TTL, by app and label."""
        self._services: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        self._forms: dict[tuple[int, object], _Form] = {}
        self._labels_of: list[tuple[int, ...]] = []
        """By the number of a form."""
        self._last_form: dict[int, _Form] = {}
        """By app."""

    def add(self, calls: Sequence[tuple[NumberedCall, Place]]) -> None:
        self._names.find_conversations(call.conversation for call, _ in calls)
        for call, place in calls:
            self._add(call, place)

    def _add(self, call: NumberedCall, place: Place) -> None:
        names, seq = self._names, call.seq
        app, provider, model = self._service(call)
        at = min(max(call.at, 0.0), _LATEST)
        step = MINUTE if at >= self._minutes_since else HOUR
        key = step, int(at // step * step), app, provider, model
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        figures, labels = figures_of(call), 0
        if max(figures) > _MOST or min(figures) < -_MOST:
            figures = tuple(min(max(figure, -_MOST), _MOST) for figure in figures)
        elif call.blocks or call.broke:
            labels = self._add_blocks(key, cell, call)
        outcome, cause = names.id("outcome", call.outcome), 0
        found = cell.sums.get(labels)
        cell.sums[labels] = figures if found is None else tuple(map(add, found, figures))
        if call.lost:
            cause = names.id("cause", call.cause or "unknown")
            _sum(self._causes, (*key, labels, cause), figures)
        if call.outcome != "ok":
            _sum(self._outcomes, (*key, labels, outcome), (call.repeats,))
        if call.first is not None:
            _sum(self._latency, (*key[:2], provider, bucket_of(call.first)), (1,))
        conversation = 0
        if call.conversation:
            conversation = names.conversation(call.conversation)
            self._add_to_conversation(conversation, (app, provider, model), call, figures)
        row = seq, at, *place, app, provider, model, outcome, cause, labels, conversation
        self._rows.append((*row, call.first, *figures))
        if line := id_line(seq, call):
            self._ids.append((seq, line))
        self.calls += 1
        self.latest = max(self.latest, at)

    def _service(self, call: AuditEnvelope) -> tuple[int, int, int]:
        """The numbers of the app, the provider and the model."""
        model = call.billed_model
        found = self._services.get((call.app, call.provider, model))
        if found is None:
            names, app = self._names, self._names.id("app", call.app)
            found = app, names.id("provider", call.provider), names.model(app, model)
            self._services[call.app, call.provider, model] = found
        return found

    def _add_blocks(self, key: Key, cell: _Cell, call: AuditEnvelope) -> int:
        """The set of the labels of the call's blocks."""
        app, form = key[2], self._form(key[2], call)
        values = _block_values(call)
        known = cell.blocks.get(form.number)
        cell.blocks[form.number] = values if known is None else list(map(add, known, values))
        if call.own is not None:
            _sum(
                self._own, (*key, form.number), tuple(map(sub, _block_values(masked(call)), values))
            )
        if call.broke and call.changed:
            label = self._names.label(app, call.changed)
            self._labels[app].setdefault(label, ("", None))
            _sum(self._breaks, (*key, label), (1, call.lost, call.lost_nano_usd or 0))
            change = self._names.id("change", call.change or "other")
            _sum(self._changes, (*key, label, change), (1,))
        return form.label_set

    def _form(self, app: int, call: AuditEnvelope) -> _Form:
        """The blocks of a call without their tokens: most calls of an app have the same ones."""
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
            self._labels_of.append(labels)
        if self._last_form.get(app) is not form:
            self._last_form[app] = form
            known = self._labels.setdefault(app, {})
            for label, (_, kind, ttl) in zip(form.labels, blocks, strict=True):
                before = known.get(label, ("", None))
                known[label] = kind or before[0], ttl or before[1]
        return form

    def _add_to_conversation(
        self, id: int, about: tuple[int, int, int], call: AuditEnvelope, figures: Figures
    ) -> None:
        found = self._conversations.get(id)
        if found is None:
            found = self._conversations[id] = _Conversation(
                *about, call.at, call.at + call.seconds, figures
            )
            return
        found.app, found.provider, found.model = about
        found.began, found.ended = (
            min(found.began, call.at),
            max(found.ended, call.at + call.seconds),
        )
        found.figures = tuple(map(add, found.figures, figures))

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def write(self, database: sqlite3.Connection, pause: Callable[[float], None]) -> None:
        """Within a transaction. `pause` is called now and then, with the seconds of work before."""
        self._names.write(database)
        write = _Writer(database, self._longer_until, pause)
        sums: Table = {
            (*key, labels): figures
            for key, cell in self._cells.items()
            for labels, figures in cell.sums.items()
        }
        write.sums(CALL_SUMS, _with_all_calls(sums))
        write.sums(CAUSES, _with_all_calls(self._causes))
        write.sums(OUTCOMES, _with_all_calls(self._outcomes))
        write.sums(BLOCKS, _ordered(self._block_sums()))
        write.sums(CHANGES, _ordered(self._changes))
        write.sums(LATENCY, self._latency)
        # A log that was changed may have two rows of one number.
        write.rows("INSERT OR REPLACE INTO calls VALUES", 12 + len(FIGURES), self._rows)
        add_ids(database, self._ids)
        self._write_labels(write)
        self._write_conversations(write)
        write.pause()

    def _block_sums(self) -> Table:
        """By label, in the order of `BLOCK_FIGURES`."""
        found: Table = {}
        for key, (breaks, lost, cost) in self._breaks.items():
            found[key] = 0, 0, 0, 0, 0, breaks, lost, cost, 0, 0, 0, 0
        for key, cell in self._cells.items():
            for form, summed in cell.blocks.items():
                for label, one in _by_label(summed, self._labels_of[form]):
                    _sum(found, (*key, label), (*one[:5], 0, 0, 0, one.unreported, 0, 0, 0))
        for (*start, form), values in self._own.items():
            for label, one in _by_label(values, self._labels_of[form]):
                own = one.read, one.cost, one.unpriced
                _sum(found, (*start, label), (0, 0, 0, 0, 0, 0, 0, 0, 0, *own))
        return found

    def _write_labels(self, write: _Writer) -> None:
        rows = [
            (app, label, *about, self.latest)
            for app, labels in self._labels.items()
            for label, about in labels.items()
        ]
        update = (
            "ON CONFLICT DO UPDATE SET kind = coalesce(nullif(excluded.kind, ''), kind),"
            " ttl = coalesce(excluded.ttl, ttl), at = excluded.at"
        )
        write.rows("INSERT INTO app_labels VALUES", 5, rows, update)

    def _write_conversations(self, write: _Writer) -> None:
        names = self._names.conversation_names
        rows = [
            (id, names[id], one.app, one.provider, one.model, one.began, one.ended, *one.figures)
            for id, one in self._conversations.items()
        ]
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in FIGURES)
        update = (
            "ON CONFLICT (id) DO UPDATE SET provider = excluded.provider, model = excluded.model,"
            f" began = min(began, excluded.began), ended = max(ended, excluded.ended), {added}"
        )
        write.rows("INSERT INTO conversations VALUES", 7 + len(FIGURES), rows, update)


def _sum(table: Table, key: Key, figures: Figures) -> None:
    found = table.get(key)
    table[key] = figures if found is None else tuple(map(add, found, figures))


def _block_values(call: AuditEnvelope) -> list[int]:
    """What the blocks of a call add: whether it was billed and its cost is unknown; then the tokens
    of each block, those that were read, their cost, and tokens whose reads were not reported."""
    shares = block_shares(call)
    if shares is None or max(shares.tokens, default=0) > _MOST:
        return [0] * (2 + 4 * len(call.blocks))
    amounts = (*shares.tokens, *shares.read, *shares.cost_nano_usd, *shares.unreported)
    return [1, shares.unpriced, *amounts]


def _by_label(values: Sequence[int], labels: Sequence[int]) -> Iterable[tuple[int, _BlockValues]]:
    """The values by label; a call counts once for each label."""
    calls, unpriced, *amounts = values
    count = len(labels)
    for place, label in enumerate(labels):
        first = label not in labels[:place]
        tokens, read, cost, unreported = amounts[place::count]
        yield label, _BlockValues(calls * first, tokens, read, cost, unpriced * first, unreported)


def _with_all_calls(table: Table) -> Table:
    """The sums of each set of labels, and those of all calls; in the order of the tables."""
    found: Table = {}
    for (step, start, app, provider, model, labels, *more), figures in table.items():
        for one in (ALL_CALLS, labels) if labels else (ALL_CALLS,):
            _sum(found, (step, one, start, app, provider, model, *more), figures)
    return found


def _ordered(table: Table) -> Table:
    """In the order of the tables."""
    return {
        (step, label, start, app, provider, model, *more): figures
        for (step, start, app, provider, model, label, *more), figures in table.items()
    }


class _Writer:
    def __init__(
        self, database: sqlite3.Connection, longer_until: float, pause: Callable[[float], None]
    ) -> None:
        self._database = database
        self._longer_until = longer_until
        self._pause = pause
        self._began = time.thread_time()

    def sums(self, table: SumTable, sums: Table) -> None:
        sums = self._all_steps(sums, table.key.index("start"))
        rows = [(*key, *sums[key]) for key in sorted(sums)]
        width = len(table.key) + len(table.figures)
        self.rows(f"INSERT INTO {table.name} VALUES", width, rows, table.added)

    def _all_steps(self, table: Table, place: int) -> Table:
        """With the sums of each longer step; `place` is that of the start in a key."""
        steps = dict(table)
        added = {key: one for key, one in table.items() if key[place] < self._longer_until}
        for step, whole in pairwise(STEPS):
            longer: Table = {}
            for key, figures in added.items():
                if key[0] == step:
                    start = key[place] // whole * whole
                    _sum(longer, (whole, *key[1:place], start, *key[place + 1 :]), figures)
            for key, figures in longer.items():
                _sum(added, key, figures)
                _sum(steps, key, figures)
        return steps

    def rows(
        self, insert: str, width: int, rows: Sequence[Iterable[object]], update: str = ""
    ) -> None:
        done = 0
        for count in _ROWS:
            places = ", ".join([f"({', '.join('?' * width)})"] * count)
            while len(rows) - done >= count:
                values = [value for row in rows[done : done + count] for value in row]
                self._database.execute(f"{insert} {places} {update}", values)
                done += count
                if time.thread_time() - self._began > _WORK:
                    self.pause()

    def pause(self) -> None:
        self._pause(time.thread_time() - self._began)
        self._began = time.thread_time()
