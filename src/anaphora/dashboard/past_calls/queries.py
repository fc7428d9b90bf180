"""Queries of the sums, on one state of the tables, for one view and the app that may see it.

A time range is split into whole steps, for which sums are stored, and remainders at its ends.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from anaphora.dashboard.values import View
from anaphora.dashboard.view import steps_of

from .schema import (
    ALL_CALLS,
    BLOCK_FIGURES,
    BLOCK_MASKS,
    HOUR,
    MASKS,
    MINUTE,
    QUARTER,
    STEPS,
    SUMS,
    THIRD,
    FillState,
)
from .sums import BlockSums, CallTotals, seconds_of

K = TypeVar("K")
Row: TypeAlias = tuple[Any, ...]

#: The fields of `BlockSums` that match `BLOCK_FIGURES`.
_BLOCK_FIELDS: Final = (
    "calls", "tokens", "read", "cost_nano_usd", "unpriced", "breaks", "lost", "lost_nano_usd",
    "unreported",
)  # fmt: skip
_FILTERS: Final = ("app", "provider", "model", "app_group")
#: The sets with a label.
_SETS: Final = "IN (SELECT label_set FROM set_labels WHERE label = ?)"
#: Calls whose times are read if the histogram does not support the filter.
_MOST_TIMES = 20_000


class Selection:
    """The calls of a view, as conditions on the tables."""

    def __init__(
        self,
        database: sqlite3.Connection,
        state: FillState,
        view: View,
        since: float,
        until: float,
        *,
        masked: bool = False,
    ) -> None:
        """`since` and `until`: the range of the view, or a wider one. `masked`: without reads of
        other apps' cache entries."""
        self.database = database
        self.state = state
        self.view = view
        self.since, self.until = since, until
        self.masked = masked
        self.ids = {name: self._id(name) for name in (*_FILTERS, "label")}
        self.empty = any(id == 0 for id in self.ids.values())
        """A filter has a name that no call has."""

    def _id(self, kind: str) -> int | None:
        text = getattr(self.view, "group" if kind == "app_group" else kind)
        if text is None:
            return None
        query = "SELECT id FROM names WHERE kind = ? AND text = ?"
        found = self.database.execute(query, (kind, text)).fetchone()
        return 0 if found is None else int(found[0])

    @property
    def first(self) -> float | None:
        """Start of the first call, or of the first call of the only app shown; None if it is
        unknown because earlier calls are not kept one by one."""
        if self.state.calls_since:
            return None
        own, values = (" WHERE app = ?", [self.ids["app"]]) if self.masked else ("", [])
        query = f"SELECT min(at) FROM calls{own}"
        found: float | None = self.database.execute(query, values).fetchone()[0]
        return found

    def names(self, kinds: Iterable[str]) -> dict[int, str]:
        marks = ", ".join(f"'{kind}'" for kind in kinds)
        query = f"SELECT id, text FROM names WHERE kind IN ({marks})"
        return dict(self.database.execute(query).fetchall())

    def filters(self) -> tuple[str, list[int]]:
        """App, provider, model and group."""
        wanted = [(name, self.ids[name]) for name in _FILTERS]
        found = [(name, id) for name, id in wanted if id is not None]
        return "".join(f" AND {name} = ?" for name, _ in found), [id for _, id in found]

    def of_calls(
        self, since: float | None = None, until: float | None = None
    ) -> tuple[str, list[float]]:
        """Condition on the table of calls, for the range or a part of it."""
        text, values = self.filters()
        since, until = (
            self.since if since is None else since,
            self.until if until is None else until,
        )
        condition, found = f"at >= ? AND at < ?{text}", [since, until, *values]
        if (label := self.ids["label"]) is not None:
            condition += f" AND label_set {_SETS}"
            found.append(label)
        return condition, found


class RangePiece(msgspec.Struct, frozen=True):
    """Part of a range."""

    step: int
    """0: the calls themselves."""
    since: float
    until: float


def pieces(since: float, until: float, within: int, state: FillState) -> list[RangePiece]:
    """`within`: each step must lie within one of these longer steps."""
    found: list[RangePiece] = []
    if state.calls_since and since <= state.calls_since:  # hours, as their calls are not kept
        kept = (state.calls_since // HOUR + 1) * HOUR
        end = min(math.ceil(until / HOUR) * HOUR, kept)
        # Minutes are only used if there are no hours yet.
        longer = [step for step in STEPS if step > HOUR and within % step == 0]
        hours = [MINUTE, HOUR, *longer]
        found, since = _split(since // HOUR * HOUR, end, hours, state), kept
    return found + _split(since, until, [step for step in STEPS if within % step == 0], state)


def whole_pieces(
    since: float, until: float, state: FillState, steps: Sequence[int] = STEPS
) -> list[RangePiece]:
    """The range widened to whole steps."""
    first, last = (MINUTE if at >= state.minutes_since else HOUR for at in (since, until))
    since = math.floor(since / first) * first
    until = math.ceil(until / last) * last
    return _split(since, until, steps, state)


def _split(since: float, until: float, steps: Sequence[int], state: FillState) -> list[RangePiece]:
    if since >= until:
        return []
    if not steps:
        return [RangePiece(0, since, until)]
    step, finer = steps[-1], steps[:-1]
    if step > MINUTE and until > state.longer_until:
        kept = min(max(state.longer_until, since), until)
        minutes = [each for each in steps if each == MINUTE]
        return [*_split(since, kept, steps, state), *_split(kept, until, minutes, state)]
    if step in (MINUTE, QUARTER) and since < state.minutes_since < until:
        kept = state.minutes_since
        return [*_split(since, kept, (), state), *_split(kept, until, steps, state)]
    begin, end = math.ceil(since / step) * step, math.floor(until / step) * step
    if begin >= end or (step in (MINUTE, QUARTER) and until <= state.minutes_since):
        return _split(since, until, finer, state)
    return [
        *_split(since, begin, finer, state),
        RangePiece(step, begin, end),
        *_split(end, until, finer, state),
    ]


def _figure(name: str, masked: bool, masks: Sequence[str]) -> str:
    if masked and name == "unreported":  # to an app, such a read is 0
        return "0"
    return f"{name} + own_{name}" if masked and name in masks else name


def sum_columns(masked: bool, names: Sequence[str] = SUMS, masks: Sequence[str] = MASKS) -> str:
    """The figures of `CallTotals`, as SQL sums."""
    return ", ".join(f"sum({_figure(name, masked, masks)})" for name in names)


def single_columns(masked: bool) -> str:
    """The same for a single row."""
    return ", ".join(_figure(name, masked, MASKS) for name in SUMS)


class _Groups(dict[K, tuple[int, ...]]):
    """Figures of `CallTotals` by a key."""

    def add(self, key: K, figures: Sequence[int]) -> None:
        known = self.get(key)
        self[key] = tuple(figures) if known is None else tuple(map(add, known, figures))

    def totals(self) -> dict[K, CallTotals]:
        return {key: CallTotals(*figures) for key, figures in self.items()}


class SumQueries:
    """Sums of a selection."""

    def __init__(self, selection: Selection) -> None:
        self._of = of = selection
        self._sums = sum_columns(of.masked)
        self.steps = steps_of(of.view, of.first)
        self._pieces = [] if of.empty else pieces(of.since, of.until, self.steps.seconds, of.state)

    def _rows(self, table: str, columns: str, group: str, of_calls: str = "") -> Iterable[Row]:
        """The rows of each piece, grouped. `of_calls`: further conditions on the calls."""
        execute = self._of.database.execute
        for piece in self._pieces:
            if piece.step:
                text, values = self._of.filters()
                label = self._of.ids["label"]
                sets = f"= {ALL_CALLS}" if label is None else _SETS
                labels = () if label is None else (label,)
                yield from execute(
                    f"SELECT {columns} FROM {table} WHERE step = ? AND label_set {sets}"
                    f" AND start >= ? AND start < ?{text} GROUP BY {group}",
                    (piece.step, *labels, piece.since, piece.until, *values),
                )
            else:
                condition, found = self._of.of_calls(piece.since, piece.until)
                calls = f"(SELECT CAST(at AS INTEGER) AS start, * FROM calls WHERE {condition})"
                yield from execute(
                    f"SELECT {columns} FROM {calls} WHERE true{of_calls} GROUP BY {group}", found
                )

    def points(self) -> dict[int, CallTotals]:
        """Totals by step number."""
        start, seconds = int(self.steps.start), self.steps.seconds
        columns = f"(start - {start}) / {seconds}, {self._sums}"
        groups = _Groups[int]()
        for point, *figures in self._rows("sums", columns, "1"):
            # A widened range has parts outside its steps.
            groups.add(min(max(point, 0), self.steps.count - 1), figures)
        return groups.totals()

    def by_name(self) -> list[dict[str, CallTotals]]:
        """Totals by app, provider, model and group."""
        texts, found = self._of.names(_FILTERS), [_Groups[str]() for _ in _FILTERS]
        columns = f"{', '.join(_FILTERS)}, {self._sums}"
        for row in self._rows("sums", columns, "1, 2, 3, 4"):
            for groups, id in zip(found, row, strict=False):
                if texts[id]:
                    groups.add(texts[id], row[len(_FILTERS) :])
        return [_by_cost(groups) for groups in found]

    def causes(self) -> dict[str, CallTotals]:
        texts, groups = self._of.names(("cause",)), _Groups[str]()
        columns = f"cause, {self._sums}"
        for id, *figures in self._rows("causes", columns, "1", " AND cause > 0"):
            groups.add(texts[id], figures)
        return dict(sorted(groups.totals().items(), key=lambda item: -item[1].lost))

    def outcomes(self, by: str) -> dict[tuple[str, str], int]:
        """Failed calls, by `app` or `provider` and by error class."""
        texts, groups = self._of.names((by, "outcome")), dict[tuple[str, str], int]()
        columns = f"{by}, outcome, sum(calls)"
        for one, outcome, calls in self._rows("outcomes", columns, "1, 2", " AND failed > 0"):
            key = texts[one], texts[outcome]
            groups[key] = groups.get(key, 0) + calls
        return dict(sorted(groups.items(), key=lambda item: -item[1]))

    def by_provider(self) -> dict[str, tuple[int, int, int]]:
        """Calls, failures and retries by provider."""
        texts, groups = self._of.names(("provider",)), dict[str, tuple[int, int, int]]()
        columns = "provider, sum(calls), sum(failed), sum(retries)"
        for id, *figures in self._rows("sums", columns, "1"):
            before = groups.get(texts[id], (0, 0, 0))
            groups[texts[id]] = tuple(a + b for a, b in zip(before, figures, strict=True))
        return groups


def _by_cost(groups: _Groups[str]) -> dict[str, CallTotals]:
    return dict(sorted(groups.totals().items(), key=lambda item: -item[1].cost_nano_usd))


def groups(of: Selection, table: str, column: str) -> dict[str, CallTotals]:
    """All sums of a table by one of its columns, over whole steps and without filters, in the order
    of the first calls."""
    texts, found = of.names((column,)), _Groups[int]()
    labels = "" if table in ("tags", "changed") else f" AND label_set = {ALL_CALLS}"
    for piece in whole_pieces(of.since, of.until, of.state):
        for id, *figures in of.database.execute(
            f"SELECT {column}, {sum_columns(of.masked)} FROM {table}"
            f" WHERE step = ? AND start >= ? AND start < ?{labels} GROUP BY 1",
            (piece.step, piece.since, piece.until),
        ):
            found.add(id, figures)
    return {texts[id]: sums for id, sums in sorted(found.totals().items())}


def days(of: Selection) -> dict[int, CallTotals]:
    """All calls by the number of the UTC day since 1970."""
    found = _Groups[int]()
    for piece in whole_pieces(of.since, of.until, of.state, STEPS[: STEPS.index(THIRD) + 1]):
        for day, *figures in of.database.execute(
            f"SELECT start / 86400, {sum_columns(of.masked)} FROM sums"
            f" WHERE step = ? AND label_set = {ALL_CALLS} AND start >= ? AND start < ? GROUP BY 1",
            (piece.step, piece.since, piece.until),
        ):
            found.add(day, figures)
    return dict(sorted(found.totals().items()))


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────


def block_sums(of: Selection) -> list[BlockSums]:
    """By label, those with the most tokens first."""
    if of.empty:
        return []
    texts, found = of.names(("label",)), dict[int, BlockSums]()
    names = [name for name in BLOCK_FIGURES if not name.startswith("own_")]
    columns = sum_columns(of.masked, names, BLOCK_MASKS)
    for label, *figures in _of_blocks(of, "blocks", columns, ""):
        added = BlockSums(**dict(zip(_BLOCK_FIELDS, figures, strict=True)))
        found.setdefault(label, BlockSums(label=texts[label])).add_sums(added)
    kinds = of.names(("change",))
    for label, change, count in _of_blocks(of, "changes", "change, sum(breaks)", ", change"):
        changes = found[label].changes
        changes[kinds[change]] = changes.get(kinds[change], 0) + count
    app = of.ids["app"]
    query = "SELECT label, kind, ttl FROM app_labels WHERE ? IS NULL OR app = ? ORDER BY at"
    for label, kind, ttl in of.database.execute(query, (app, app)):
        if label in found:
            sums = found[label]
            sums.kind, sums.ttl = kind or sums.kind, ttl or sums.ttl
    return sorted(found.values(), key=lambda sums: -sums.tokens)


def _of_blocks(of: Selection, table: str, columns: str, group: str) -> Iterable[Row]:
    text, values = of.filters()
    label = of.ids["label"]
    for piece in whole_pieces(of.since, of.until, of.state):
        # By label: so each part that is read is contiguous.
        yield from of.database.execute(
            f"SELECT label, {columns} FROM names CROSS JOIN {table} ON label = id AND step = ?"
            f" AND start >= ? AND start < ?{text} WHERE kind = 'label' AND (? IS NULL OR id = ?)"
            f" GROUP BY label{group}",
            (piece.step, piece.since, piece.until, *values, label, label),
        )


# ── Latency ──────────────────────────────────────────────────────────────────────────────────────


def first_bytes(of: Selection) -> dict[str, tuple[float, float]]:
    """Seconds to the first byte by provider: the median and the 99th percentile."""
    if of.empty:
        return {}
    texts = of.names(("provider",))
    filtered = any(of.ids[name] is not None for name in ("app", "model", "app_group", "label"))
    times = _times_of_calls(of) if filtered else _histograms(of)
    return {
        texts[provider]: (_quantile(one, 0.5), _quantile(one, 0.99))
        for provider, one in times.items()
    }


def _histograms(of: Selection) -> dict[int, list[tuple[float, int]]]:
    provider = of.ids["provider"]
    counts: dict[int, dict[int, int]] = {}
    for piece in whole_pieces(of.since, of.until, of.state):
        for id, bucket, calls in of.database.execute(
            "SELECT provider, bucket, sum(times) FROM latency WHERE step = ? AND start >= ?"
            " AND start < ? AND (? IS NULL OR provider = ?) GROUP BY provider, bucket",
            (piece.step, piece.since, piece.until, provider, provider),
        ):
            own = counts.setdefault(id, {})
            own[bucket] = own.get(bucket, 0) + calls
    return {
        id: [(seconds_of(bucket), calls) for bucket, calls in sorted(own.items())]
        for id, own in counts.items()
    }


def _times_of_calls(of: Selection) -> dict[int, list[tuple[float, int]]]:
    condition, values = of.of_calls()
    query = (
        f"SELECT provider, first FROM calls WHERE {condition} AND first IS NOT NULL"
        " ORDER BY at DESC LIMIT ?"
    )
    times: dict[int, list[tuple[float, int]]] = {}
    for id, first in of.database.execute(query, (*values, _MOST_TIMES)):
        times.setdefault(id, []).append((first, 1))
    return {id: sorted(own) for id, own in times.items()}


def _quantile(times: Sequence[tuple[float, int]], share: float) -> float:
    wanted = share * sum(calls for _, calls in times)
    seen = 0
    for seconds, calls in times:
        seen += calls
        if seen >= wanted:
            return seconds
    return times[-1][0]
