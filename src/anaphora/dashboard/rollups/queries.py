"""Queries of the sums: of one state of the file, for one view and the app that may see it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from anaphora.audit.report import CallSums
from anaphora.dashboard.values import BlockSums, View
from anaphora.dashboard.view import steps_of

from .batch import seconds_of
from .filling import FillState
from .ranges import pieces, whole_pieces
from .schema import ALL_CALLS, BLOCK_FIGURES, BLOCK_MASKS, MASKS, SUMS

Row: TypeAlias = tuple[Any, ...]

#: The fields of `BlockSums` that `BLOCK_FIGURES` are.
_BLOCK_FIELDS: Final = (
    "calls", "tokens", "read", "cost_nano_usd", "unpriced", "breaks", "lost", "lost_nano_usd",
    "unreported",
)  # fmt: skip
_FILTERS: Final = ("app", "provider", "model")
#: The sets with a label.
_SETS: Final = "IN (SELECT label_set FROM set_labels WHERE label = ?)"
#: Calls whose times are looked at where a histogram does not have the filter.
_MOST_TIMES = 20_000


class Selection:
    """The calls that a view means, as conditions on the tables."""

    def __init__(self, database: sqlite3.Connection, state: FillState, view: View) -> None:
        self.database = database
        self.state = state
        self.view = view
        self.ids = {name: self._id(name) for name in (*_FILTERS, "label")}
        self.empty = any(id == 0 for id in self.ids.values())
        """A filter names something that no call has."""

    def _id(self, kind: str) -> int | None:
        text = getattr(self.view, kind)
        if text is None:
            return None
        query = "SELECT id FROM names WHERE kind = ? AND text = ?"
        found = self.database.execute(query, (kind, text)).fetchone()
        return 0 if found is None else int(found[0])

    def names(self, kinds: Iterable[str]) -> dict[int, str]:
        marks = ", ".join(f"'{kind}'" for kind in kinds)
        query = f"SELECT id, text FROM names WHERE kind IN ({marks})"
        return dict(self.database.execute(query).fetchall())

    def filters(self) -> tuple[str, list[int]]:
        """App, provider and model."""
        wanted = [(name, self.ids[name]) for name in _FILTERS]
        found = [(name, id) for name, id in wanted if id is not None]
        return "".join(f" AND {name} = ?" for name, _ in found), [id for _, id in found]

    def of_calls(self, since: float, until: float) -> tuple[str, list[float]]:
        """The condition on the table of calls."""
        text, values = self.filters()
        condition, found = f"at >= ? AND at < ?{text}", [since, until, *values]
        if (label := self.ids["label"]) is not None:
            condition += f" AND label_set {_SETS}"
            found.append(label)
        return condition, found


def _figure(name: str, masked: bool, masks: Sequence[str]) -> str:
    if masked and name == "unreported":  # to an app, such a read is 0
        return "0"
    return f"{name} + own_{name}" if masked and name in masks else name


def sum_columns(masked: bool, names: Sequence[str] = SUMS, masks: Sequence[str] = MASKS) -> str:
    """The figures of `CallSums`, summed."""
    return ", ".join(f"sum({_figure(name, masked, masks)})" for name in names)


def single_columns(masked: bool) -> str:
    """The same of one row."""
    return ", ".join(_figure(name, masked, MASKS) for name in SUMS)


def call_sums(figures: Sequence[int]) -> CallSums:
    return CallSums(**dict(zip(CallSums.__struct_fields__, figures, strict=True)))


def _add_sums(groups: dict[Any, CallSums], key: object, figures: Sequence[int]) -> None:
    sums = call_sums(figures)
    if (known := groups.get(key)) is None:
        groups[key] = sums
    else:
        known.add_sums(sums)


class SumQueries:
    """Sums of a selection."""

    def __init__(self, selection: Selection, *, masked: bool) -> None:
        self._of = selection
        self._masked = masked
        view = selection.view
        self.steps = steps_of(view)
        self._pieces = (
            []
            if selection.empty
            else pieces(view.since, view.until, self.steps.seconds, selection.state)
        )

    def _rows(self, table: str, columns: str, group: str, of_calls: str = "") -> Iterable[Row]:
        """Of each piece, grouped. `of_calls` are further conditions on the table of calls."""
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

    def points(self) -> dict[int, CallSums]:
        """By the number of the step."""
        start, seconds = int(self.steps.start), self.steps.seconds
        columns = f"(start - {start}) / {seconds}, {sum_columns(self._masked)}"
        groups: dict[int, CallSums] = {}
        for point, *figures in self._rows("sums", columns, "1"):
            # A range that was widened has parts outside of its steps.
            _add_sums(groups, min(max(point, 0), self.steps.count - 1), figures)
        return groups

    def by_name(self) -> tuple[dict[str, CallSums], dict[str, CallSums], dict[str, CallSums]]:
        """By app, by provider and by model."""
        texts = self._of.names(_FILTERS)
        apps, providers, models = (
            dict[str, CallSums](),
            dict[str, CallSums](),
            dict[str, CallSums](),
        )
        columns = f"app, provider, model, {sum_columns(self._masked)}"
        for row in self._rows("sums", columns, "1, 2, 3"):
            for groups, id in zip((apps, providers, models), row[:3], strict=True):
                if texts[id]:
                    _add_sums(groups, texts[id], row[3:])
        return _by_cost(apps), _by_cost(providers), _by_cost(models)

    def causes(self) -> dict[str, CallSums]:
        texts, groups = self._of.names(("cause",)), dict[str, CallSums]()
        columns = f"cause, {sum_columns(self._masked)}"
        for id, *figures in self._rows("causes", columns, "1", " AND cause > 0"):
            _add_sums(groups, texts[id], figures)
        return dict(sorted(groups.items(), key=lambda item: -item[1].lost))

    def outcomes(self, by: str) -> dict[tuple[str, str], int]:
        """Calls that failed, by `app` or `provider` and by the class of the error."""
        texts, groups = self._of.names((by, "outcome")), dict[tuple[str, str], int]()
        columns = f"{by}, outcome, sum(calls)"
        for one, outcome, calls in self._rows("outcomes", columns, "1, 2", " AND failed > 0"):
            key = texts[one], texts[outcome]
            groups[key] = groups.get(key, 0) + calls
        return dict(sorted(groups.items(), key=lambda item: -item[1]))

    def by_provider(self) -> dict[str, tuple[int, int, int]]:
        """Calls, failed ones and retries."""
        texts, groups = self._of.names(("provider",)), dict[str, tuple[int, int, int]]()
        columns = "provider, sum(calls), sum(failed), sum(retries)"
        for id, *figures in self._rows("sums", columns, "1"):
            before = groups.get(texts[id], (0, 0, 0))
            groups[texts[id]] = tuple(a + b for a, b in zip(before, figures, strict=True))
        return groups


def _by_cost(groups: dict[str, CallSums]) -> dict[str, CallSums]:
    return dict(sorted(groups.items(), key=lambda item: -item[1].cost_nano_usd))


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────


def block_sums(of: Selection, *, masked: bool) -> dict[str, BlockSums]:
    """By label, those with the most tokens first."""
    if of.empty:
        return {}
    texts, found = of.names(("label",)), dict[int, BlockSums]()
    names = [name for name in BLOCK_FIGURES if not name.startswith("own_")]
    columns = sum_columns(masked, names, BLOCK_MASKS)
    for label, *figures in _of_blocks(of, "blocks", columns, ""):
        added = BlockSums(**dict(zip(_BLOCK_FIELDS, figures, strict=True)))
        found.setdefault(label, BlockSums()).add_sums(added)
    kinds = of.names(("change",))
    for label, change, count in _of_blocks(of, "changes", "change, sum(breaks)", ", change"):
        changes = found[label].changes
        changes[kinds[change]] = changes.get(kinds[change], 0) + count
    app = of.ids["app"]
    query = "SELECT label, kind, ttl FROM app_labels WHERE ? IS NULL OR app = ? ORDER BY at"
    for label, kind, ttl in of.database.execute(query, (app, app)):
        if label in found:
            found[label].kind, found[label].ttl = kind, ttl
    ordered = sorted(found.items(), key=lambda item: -item[1].tokens)
    return {texts[label]: sums for label, sums in ordered}


def _of_blocks(of: Selection, table: str, columns: str, group: str) -> Iterable[Row]:
    text, values = of.filters()
    label = of.ids["label"]
    for piece in whole_pieces(of.view.since, of.view.until, of.state):
        # By label: so each part that is read is contiguous.
        yield from of.database.execute(
            f"SELECT label, {columns} FROM names CROSS JOIN {table} ON label = id AND step = ?"
            f" AND start >= ? AND start < ?{text} WHERE kind = 'label' AND (? IS NULL OR id = ?)"
            f" GROUP BY label{group}",
            (piece.step, piece.since, piece.until, *values, label, label),
        )


# ── Latency ──────────────────────────────────────────────────────────────────────────────────────


def first_bytes(of: Selection) -> dict[str, tuple[float, float]]:
    """The seconds to the first byte by provider: the median, and that of 99 of 100 calls."""
    if of.empty:
        return {}
    texts = of.names(("provider",))
    filtered = any(of.ids[name] is not None for name in ("app", "model", "label"))
    times = _times_of_calls(of) if filtered else _histograms(of)
    return {
        texts[provider]: (_quantile(one, 0.5), _quantile(one, 0.99))
        for provider, one in times.items()
    }


def _histograms(of: Selection) -> dict[int, list[tuple[float, int]]]:
    provider = of.ids["provider"]
    counts: dict[int, dict[int, int]] = {}
    for piece in whole_pieces(of.view.since, of.view.until, of.state):
        for id, bucket, calls in of.database.execute(
            "SELECT provider, bucket, sum(calls) FROM latency WHERE step = ? AND start >= ?"
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
    condition, values = of.of_calls(of.view.since, of.view.until)
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
