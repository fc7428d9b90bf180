"""Sums of the calls in an index, as a `UsageReport`.

SQLite sums the tokens by quarter of an hour: prices and offsets of time zones change on it only.
The sums are priced, not the calls.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from anaphora.catalog.price_data import PRICE_SLOT
from anaphora.catalog.prices import Rates
from anaphora.catalog.pricing import PriceBook, price_levels
from anaphora.values import Ttl, Usage

from .advice import advice
from .index import UsageIndex
from .pieces import Label
from .records import LossCause
from .report import (
    CauseRow,
    DearLoss,
    Grouping,
    UnpricedModel,
    UsageReport,
    UsageRow,
)

_COUNTS = ("uncached", "read", "written_5m", "written_1h", "output")
_INPUT = "uncached + read + written_5m + written_1h"
_SLOT = f"CAST(at / {PRICE_SLOT} AS INTEGER)"
#: The chosen calls, each answer once.
_ONCE = (
    "(SELECT * FROM calls WHERE file IN chosen AND NOT EXISTS (SELECT 1 FROM dropped"
    " WHERE dropped.file = calls.file AND dropped.key = calls.key)"
    " UNION ALL SELECT * FROM richer)"
)
#: Losses with their calls.
_LOST = (
    "losses CROSS JOIN calls USING (file, key) WHERE file IN chosen AND NOT EXISTS (SELECT 1 FROM"
    " dropped WHERE dropped.file = losses.file AND dropped.key = losses.key AND keeper NOTNULL)"
)
_NANO = Decimal(10**9)
#: Name of the row of calls without a time.
NO_TIME = "unknown"
#: Groupings by time.
_PERIODS: dict[Grouping, Callable[[datetime.datetime], str]] = {
    "daily": lambda local: local.date().isoformat(),
    "weekly": lambda local: (local.date() - datetime.timedelta(days=local.weekday())).isoformat(),
    "monthly": lambda local: f"{local:%Y-%m}",
}
_FIELDS: dict[Grouping, int] = {"program": 0, "model": 2, "session": 4, "project": 5}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls are summed, and how."""

    by: Grouping = "daily"
    since: float | None = None
    """In unix seconds."""
    until: float | None = None
    """Calls at this time are not summed."""
    tz: datetime.tzinfo | None = None
    """The time zone of days, weeks and months; None: that of this machine."""
    programs: tuple[str, ...] = ()
    project: str = ""
    """A folder, with those in it, or the name of a folder."""
    session: str = ""
    """The beginning of the session's id."""
    dearest: int = 10
    """How many of the dearest losses are listed."""

    def takes(self, label: Label) -> bool:
        program, _, _, _, session, project = label
        wanted = self.project.rstrip("/\\")
        return (
            (not self.programs or program in self.programs)
            and session.startswith(self.session)
            and (
                not wanted
                or project == wanted
                or project.startswith((f"{wanted}/", f"{wanted}\\"))
                or project.replace("\\", "/").rpartition("/")[2] == wanted
            )
        )


def usage_report(
    index: UsageIndex, query: UsageQuery, *, now: float, with_causes: bool
) -> UsageReport:
    """Sums the files that `index.count_once` has chosen."""
    return _Report(index, query, now).report(with_causes=with_causes)


class _Report:
    def __init__(self, index: UsageIndex, query: UsageQuery, now: float) -> None:
        self._run, self._query = index.run, query
        self._prices = PriceBook(now)
        labels = self._run(
            "SELECT id, program, provider, model, tier, session, project FROM labels"
        )
        self._labels: dict[int, Label] = {
            id: label for id, *rest in labels if query.takes(label := tuple(rest))
        }
        self._names: dict[int | None, str] = {}
        self._rows: dict[str, UsageRow] = {}
        self._programs: dict[str, UsageRow] = {}
        self._total = UsageRow(name="total")
        self._rates: dict[tuple[Any, ...], Rates | None] = {}
        self._unpriced: dict[tuple[str, str], UnpricedModel] = {}

    def report(self, *, with_causes: bool) -> UsageReport:
        self._sum()
        causes = self._causes() if with_causes else None
        return UsageReport(
            by=self._query.by,
            since=self._query.since,
            until=self._query.until,
            rows=tuple(sorted(self._rows.values(), key=self._order)),
            total=self._total,
            programs=tuple(sorted(self._programs.values(), key=lambda row: (-row.usd, row.name))),
            causes=causes,
            dearest=tuple(self._dearest()) if with_causes else (),
            unpriced=tuple(sorted(self._unpriced.values(), key=lambda one: -one.tokens)),
        )

    def _order(self, row: UsageRow) -> tuple[Any, ...]:
        """Periods in their order, sessions by their last call, others by their cost."""
        if self._query.by in _PERIODS:
            return row.name == NO_TIME, row.name
        if self._query.by == "session":
            return row.ended is None, row.ended or 0.0, row.name
        return -row.usd, row.name

    def _name(self, slot: int | None, label: Label) -> str:
        """The row of a call."""
        field = _FIELDS.get(self._query.by)
        if field is not None:
            return label[field]
        if slot not in self._names:
            self._names[slot] = self._period(slot)
        return self._names[slot]

    def _period(self, slot: int | None) -> str:
        if slot is None:
            return NO_TIME
        local = datetime.datetime.fromtimestamp(slot * PRICE_SLOT, datetime.UTC)
        return _PERIODS[self._query.by](local.astimezone(self._query.tz))

    def _times(self) -> tuple[str, dict[str, float]]:
        since, until = self._query.since, self._query.until
        times = {"since": since, "until": until}
        where = [*(["at >= :since"] if since is not None else [])]
        where += ["at < :until"] if until is not None else []
        given = {name: value for name, value in times.items() if value is not None}
        return " AND ".join(where) or "true", given

    # ── Bills ────────────────────────────────────────────────────────────────────────────────────

    def _sum(self) -> None:
        levels = self._levels()
        sums: dict[tuple[Any, ...], list[int]] = {}
        for label, slot, level, ttls, first, last, *counts in self._groups(levels):
            names = self._labels.get(label)
            if names is None:
                continue
            program, provider, model, tier, *_ = names
            at = None if slot is None else slot * PRICE_SLOT
            price = self._prices.price(provider, model, at, service_tier=tier)
            rates = None if price is None else price.at(levels[level - 1] + 1 if level else 0)
            name = self._name(slot, names)
            self._mark(name, names, first, last)
            key = name, program, provider, model, id(rates), ttls
            kept = sums.get(key)
            if kept is None:
                sums[key] = [*counts]
                self._rates[key] = rates
            else:
                for place, count in enumerate(counts):
                    kept[place] += count
        for key, counts in sums.items():
            self._add(key, self._rates[key], counts)

    def _levels(self) -> list[int]:
        """The prompt lengths above which a price changes, of all models."""
        models = {(label[1], label[2]) for label in self._labels.values()}
        return sorted(set().union(*(price_levels(*model) for model in models)))

    def _groups(self, levels: list[int]) -> Iterator[tuple[Any, ...]]:
        """Label, quarter of an hour, number of exceeded levels, TTLs, first and last time, then
        calls and tokens."""
        level = " + ".join([f"({_INPUT} > {above})" for above in levels] or ["0"])
        where, times = self._times()
        sums = ", ".join(f"sum({name})" for name in _COUNTS)
        return self._run(
            f"SELECT label, {_SLOT}, {level}, (written_5m > 0) + 2 * (written_1h > 0), min(at),"
            f" max(at), count(*), {sums} FROM {_ONCE} WHERE {where} GROUP BY 1, 2, 3, 4",
            times,
        )

    def _mark(self, name: str, label: Label, first: float | None, last: float | None) -> None:
        """Notes time, program and model of calls in their row."""
        by_program = self._programs.setdefault(label[0], UsageRow(name=label[0]))
        by_name = self._rows.setdefault(name, UsageRow(name=name))
        if self._query.by in ("session", "project"):
            by_name.project = label[5]
        for row in (by_name, by_program, self._total):
            if label[0] not in row.programs:
                row.programs = (*row.programs, label[0])
            if label[2] not in row.models:
                row.models = (*row.models, label[2])
            if first is not None and last is not None:
                row.began = first if row.began is None else min(row.began, first)
                row.ended = last if row.ended is None else max(row.ended, last)

    def _add(self, key: tuple[Any, ...], rates: Rates | None, counts: list[int]) -> None:
        name, program, provider, model, *_ = key
        calls, uncached, read, written_5m, written_1h, output = counts
        written: dict[Ttl | Any, int] = {"5m": written_5m, "1h": written_1h}
        usage = Usage(
            uncached=uncached,
            read=read,
            written={ttl: count for ttl, count in written.items() if count},
            output=output,
        )
        usd = None if rates is None else rates.total(usage)
        for row in (self._rows[name], self._programs[program], self._total):
            row.calls += calls
            row.uncached += uncached
            row.read += read
            row.written_5m += written_5m
            row.written_1h += written_1h
            row.output += output
            if usd is None:
                row.unpriced += calls
            else:
                row.usd += usd
        if usd is None:
            new = UnpricedModel(provider=provider, model=model, calls=0, tokens=0)
            unpriced = self._unpriced.setdefault((provider, model), new)
            unpriced.calls += calls
            unpriced.tokens += sum(counts[1:])

    # ── Losses ───────────────────────────────────────────────────────────────────────────────────

    def _causes(self) -> tuple[CauseRow, ...]:
        where, times = self._times()
        found: dict[LossCause, CauseRow] = {}
        for label, slot, cause, calls, tokens, nano in self._run(
            f"SELECT label, {_SLOT}, cause, count(*), sum(tokens), sum(nano_usd)"
            f" FROM {_LOST} AND {where} GROUP BY 1, 2, 3",
            times,
        ):
            names = self._labels.get(label)
            if names is None:
                continue
            usd = Decimal(nano or 0) / _NANO
            new = CauseRow(cause=cause, calls=0, tokens=0, usd=Decimal(0), programs=(), advice=())
            row = found.setdefault(cause, new)
            row.calls += calls
            row.tokens += tokens
            row.usd += usd
            if names[0] not in row.programs:
                row.programs = (*row.programs, names[0])
            name = self._name(slot, names)
            for sums in (self._rows[name], self._programs[names[0]], self._total):
                sums.lost += tokens
                sums.lost_usd += usd
        for cause, row in found.items():
            row.advice = advice(cause, row.programs)
        return tuple(sorted(found.values(), key=lambda row: (-row.usd, -row.tokens, row.cause)))

    def _dearest(self) -> Iterator[DearLoss]:
        where, times = self._times()
        rows: Iterable[tuple[Any, ...]] = self._run(
            "SELECT coalesce(nano_usd, -1), tokens, at, (SELECT path FROM files WHERE id = file),"
            f" line, cause, sentence, label FROM {_LOST} AND {where}",
            times,
        )
        wanted = (row for row in rows if row[7] in self._labels)
        for nano, tokens, at, path, line, cause, sentence, label in heapq.nlargest(
            self._query.dearest, wanted, key=lambda row: (row[0], row[1], -(row[2] or 0.0), row[3])
        ):
            program, _, model, _, session, project = self._labels[label]
            yield DearLoss(
                cause=cause,
                at=at,
                file=path,
                line=line,
                program=program,
                session=session,
                project=project,
                model=model,
                tokens=tokens,
                usd=None if nano < 0 else Decimal(nano) / _NANO,
                sentence=sentence,
            )
