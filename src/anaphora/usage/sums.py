"""Sums of the calls in an index, as a `UsageReport`.

SQLite sums the tokens by quarter of an hour: prices and offsets of time zones change on it only.
The sums are priced, not the calls.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import islice
from operator import add
from typing import Any

import msgspec

from anaphora.cache.verdict.advice import LONGER
from anaphora.catalog.price_data import PRICE_SLOT
from anaphora.catalog.prices import Rates
from anaphora.catalog.pricing import PriceBook, price_levels

from .index import Label, UsageIndex
from .places import repository
from .records import COUNTS, usage_of
from .report import ExpensiveLoss, Grouping, UsageReport, UsageRow
from .tally import NANO, UsageTally, period_of

#: The most expensive losses that are listed if not all are asked for.
FEW_LOSSES = 10
_INPUT = "uncached + read + written_5m + written_30m + written_1h"
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
#: How a tier is named, if not by its own name.
_TIERS = {"fast": "fast mode"}
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
    most_expensive: int = FEW_LOSSES
    """How many of the most expensive losses are listed."""

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


def named_model(model: str, tier: str) -> str:
    return f"{model}, {_TIERS.get(tier, tier)}" if tier else model


def usage_report(
    index: UsageIndex, query: UsageQuery, *, now: float, with_causes: bool
) -> UsageReport:
    """Sums the files that `index.counted` has chosen."""
    return _Report(index, query, now).report(with_causes=with_causes)


class _Report:
    def __init__(self, index: UsageIndex, query: UsageQuery, now: float) -> None:
        self._run, self._query = index.run, query
        self._prices = PriceBook(now)
        labels = self._run(
            "SELECT id, program, provider, model, tier, session, project FROM labels"
        ).fetchall()
        folders: dict[str, set[str]] = {}
        for *_, session, project in labels:
            folders.setdefault(session, set()).add(project)
        known = cache(lambda session, project: repository(project, folders[session] - {""}))
        self._labels: dict[int, Label] = {}
        for id, *rest, session, project in labels:
            label = (*rest, session, known(session, project))
            if query.takes(label) or query.takes((*rest, session, project)):
                self._labels[id] = label
        self._names: dict[int | None, str] = {}
        self._tally = UsageTally(by=query.by)
        times = {"since": query.since, "until": query.until}
        self._times = {name: at for name, at in times.items() if at is not None}
        signs = {"since": ">=", "until": "<"}
        self._where = " AND ".join([f"at {signs[name]} :{name}" for name in self._times] or ["1"])

    def report(self, *, with_causes: bool) -> UsageReport:
        self._sum()
        if with_causes:
            self._lose()
            self._tally.keep_most_expensive(self._most_expensive(), self._query.most_expensive)
        since, until = self._query.since, self._query.until
        return self._tally.report(since=since, until=until, causes=with_causes)

    def _name(self, slot: int | None, label: Label) -> str:
        """The row of a call."""
        field = _FIELDS.get(self._query.by)
        if field is not None:
            return named_model(label[2], label[3]) if self._query.by == "model" else label[field]
        if slot not in self._names:
            at = None if slot is None else float(slot * PRICE_SLOT)
            self._names[slot] = period_of(self._query.by, at, self._query.tz)
        return self._names[slot]

    def _sum(self) -> None:
        """Sums the bills, then prices the sums."""
        levels = self._levels()
        sums: dict[tuple[Any, ...], tuple[Rates | None, list[int], list[float]]] = {}
        is_in_folder = self._query.by in ("session", "project")
        for label, slot, level, ttls, first, last, *counts in self._groups(levels):
            names = self._labels.get(label)
            if names is None:
                continue
            program, provider, model, tier, _, project = names
            at = None if slot is None else slot * PRICE_SLOT
            price = self._prices.price(provider, model, at, service_tier=tier)
            rates = None if price is None else price.at(levels[level - 1] + 1 if level else 0)
            folder = project if is_in_folder else ""
            model = named_model(model, tier)
            key = self._name(slot, names), program, provider, model, folder, id(rates), ttls
            kept = sums.setdefault(key, (rates, [0] * len(counts), []))
            kept[1][:] = map(add, kept[1], counts)
            kept[2].extend(time for time in (first, last) if time is not None)
        for (name, program, provider, model, folder, *_), (rates, counts, times) in sums.items():
            calls, *tokens, partial = counts
            usd = None if rates is None else rates.total(usage_of(tokens))
            self._write_longer(program, rates, tokens)
            self._divide(rates, tokens)
            row = UsageRow(
                name=name,
                began=min(times, default=None),
                ended=max(times, default=None),
                programs=(program,),
                models=(model,),
                project=folder,
                calls=calls,
                usd=usd or Decimal(0),
                unpriced=calls if usd is None else 0,
                partial=partial,
            )
            for count, number in zip(COUNTS, tokens, strict=True):
                setattr(row, count, number)
            self._tally.add(row, provider)

    def _write_longer(self, program: str, rates: Rates | None, tokens: list[int]) -> None:
        """Adds what writes for 5 minutes would have cost more for an hour."""
        short, long = (None if rates is None else rates.writing(ttl) for ttl in ("5m", LONGER))
        written = tokens[COUNTS.index("written_5m")]
        if written and short is not None and long is not None:
            more = (long - short) * written / 10**6
            self._tally.dearer[program] = self._tally.dearer.get(program, Decimal(0)) + more

    def _divide(self, rates: Rates | None, tokens: list[int]) -> None:
        """Adds the cost of each part of the bills."""
        parts = self._tally.parts
        for index, name in enumerate(COUNTS) if rates is not None else ():
            part = name.partition("_")[0]
            only = [count if index == at else 0 for at, count in enumerate(tokens)]
            usd = rates.total(usage_of(only)) if rates is not None and tokens[index] else None
            parts[part] = parts.get(part, Decimal(0)) + (usd or 0)

    def _levels(self) -> list[int]:
        """The prompt lengths above which a price changes, of all models."""
        models = {(label[1], label[2]) for label in self._labels.values()}
        return sorted(set().union(*(price_levels(*model) for model in models)))

    def _groups(self, levels: list[int]) -> Iterator[tuple[Any, ...]]:
        """Label, quarter of an hour, number of exceeded levels, TTLs, first and last time, then
        calls, tokens and partial calls."""
        level = " + ".join([f"({_INPUT} > {above})" for above in levels] or ["0"])
        ttls = "(written_5m > 0) + 2 * (written_30m > 0) + 4 * (written_1h > 0)"
        sums = ", ".join(f"sum({name})" for name in (*COUNTS, "partial"))
        return self._run(
            f"SELECT label, {_SLOT}, {level}, {ttls}, min(at), max(at), count(*), {sums}"
            f" FROM {_ONCE} WHERE {self._where} GROUP BY 1, 2, 3, 4",
            self._times,
        )

    def _lose(self) -> None:
        for label, slot, cause, calls, tokens, nano, saved in self._run(
            f"SELECT label, {_SLOT}, cause, count(*), sum(tokens), sum(nano_usd),"
            " sum(saved_nano_usd)"
            f" FROM {_LOST} AND {self._where} GROUP BY 1, 2, 3",
            self._times,
        ):
            names = self._labels.get(label)
            if names is not None:
                name = self._name(slot, names)
                self._tally.lose(name, cause, names[0], (calls, tokens, nano or 0), saved)

    def _most_expensive(self) -> Iterator[ExpensiveLoss]:
        rows = self._run(
            "SELECT nano_usd, tokens, at, (SELECT path FROM files WHERE id = file), line, cause,"
            f" sentence, label FROM {_LOST} AND {self._where}"
            " ORDER BY coalesce(nano_usd, -1) DESC, tokens DESC, at, 4",
            self._times,
        )
        wanted = (row for row in rows if row[7] in self._labels)
        for nano, tokens, at, path, line, cause, sentence, label in islice(
            wanted, self._query.most_expensive
        ):
            program, _, model, tier, session, project = self._labels[label]
            yield ExpensiveLoss(
                cause=cause,
                at=at,
                file=path,
                line=line,
                program=program,
                session=session,
                project=project,
                model=named_model(model, tier),
                tokens=tokens,
                usd=None if nano is None else nano / NANO,
                sentence=sentence,
            )
