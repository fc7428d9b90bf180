"""Sums by row, program and cause, which can be added to those of other processes."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import msgspec

from anaphora.cache.verdict import CauseKind
from anaphora.cache.verdict.advice import CAUSES, advice

from .report import CauseRow, ExpensiveLoss, Grouping, UnpricedModel, UsageReport, UsageRow

NANO = Decimal(10**9)
#: Smaller savings are not named.
_LEAST = Decimal("0.01")
#: Name of the row of calls without a time.
NO_TIME = "unknown"
#: Groupings by time.
_PERIODS: dict[Grouping, Callable[[datetime.datetime], str]] = {
    "daily": lambda local: local.date().isoformat(),
    "weekly": lambda local: (local.date() - datetime.timedelta(days=local.weekday())).isoformat(),
    "monthly": lambda local: f"{local:%Y-%m}",
}


def period_of(by: Grouping, at: float | None, tz: datetime.tzinfo | None) -> str:
    """The row of a call at that time; None is this machine's time zone."""
    if at is None:
        return NO_TIME
    return _PERIODS[by](datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone(tz))


class UsageTally(msgspec.Struct, kw_only=True):
    by: Grouping
    rows: dict[str, UsageRow] = {}
    programs: dict[str, UsageRow] = {}
    total: UsageRow = msgspec.field(default_factory=lambda: UsageRow(name="total"))
    causes: dict[CauseKind, CauseRow] = {}
    most_expensive: list[ExpensiveLoss] = []
    unpriced: dict[str, UnpricedModel] = {}
    parts: dict[str, Decimal] = {}
    dearer: dict[str, Decimal] = {}
    """By program, what its writes for 5 minutes would have cost more for an hour."""

    def add(self, calls: UsageRow, provider: str) -> None:
        """Adds calls of one program to one model, to the row of their name."""
        for row in self._rows(calls.name, calls.programs[0]):
            row.add(calls)
        if calls.unpriced:
            (model,) = calls.models
            tokens = calls.input + calls.output
            one = UnpricedModel(provider=provider, model=model, calls=calls.unpriced, tokens=tokens)
            self._add_unpriced(one)

    def lose(
        self,
        name: str,
        cause: CauseKind,
        program: str,
        losses: tuple[int, int, int],
        saved_nano_usd: int | None = None,
    ) -> None:
        """Adds what calls of a program lost to the row of that name: calls, tokens, nano-dollars;
        and what the cause's remedy would have saved."""
        calls, tokens, nano_usd = losses
        usd = nano_usd / NANO
        for row in self._rows(name, program):
            row.lost += tokens
            row.lost_usd += usd
        saved = {} if saved_nano_usd is None else {program: saved_nano_usd / NANO}
        self._add_cause(
            CauseRow(
                cause=cause, calls=calls, tokens=tokens, usd=usd, programs=(program,), saved=saved
            )
        )

    def keep_most_expensive(self, losses: Iterable[ExpensiveLoss], most: int) -> None:
        self.most_expensive = heapq.nlargest(most, [*self.most_expensive, *losses], key=_dear)

    def merge(self, other: UsageTally) -> None:
        """Adds the sums of another; losses are not compared."""
        for mine, theirs in ((self.rows, other.rows), (self.programs, other.programs)):
            for name, row in theirs.items():
                mine.setdefault(name, UsageRow(name=name)).add(row)
        self.total.add(other.total)
        for cause in other.causes.values():
            self._add_cause(cause)
        for model in other.unpriced.values():
            self._add_unpriced(model)

    def report(self, *, since: float | None, until: float | None, causes: bool) -> UsageReport:
        for row in self.causes.values():
            for program, more in self.dearer.items() if row.cause == "expired" else ():
                if program in row.saved:
                    row.saved[program] -= more
            row.saved = {name: usd for name, usd in row.saved.items() if usd >= _LEAST}
            row.saved_usd = sum(row.saved.values(), Decimal(0))
            row.remedy = CAUSES[row.cause].remedy
            row.advice = advice(row.cause, row.saved or row.programs, helps=bool(row.saved))
        found = sorted(self.causes.values(), key=lambda row: (-row.usd, -row.tokens, row.cause))
        return UsageReport(
            by=self.by,
            since=since,
            until=until,
            rows=tuple(sorted(self.rows.values(), key=self._order)),
            total=self.total,
            programs=tuple(sorted(self.programs.values(), key=lambda row: (-row.usd, row.name))),
            causes=tuple(found) if causes else None,
            parts=self.parts,
            avoidable_usd=sum((row.saved_usd for row in found), Decimal(0)),
            most_expensive=tuple(self.most_expensive),
            unpriced=tuple(sorted(self.unpriced.values(), key=lambda one: -one.tokens)),
        )

    def _order(self, row: UsageRow) -> tuple[Any, ...]:
        """Periods in their order, sessions by their last call, others by their cost."""
        if self.by in _PERIODS:
            return row.name == NO_TIME, row.name
        if self.by == "session":
            return row.ended is None, row.ended or 0.0, row.name
        return -row.usd, row.name

    def _rows(self, name: str, program: str) -> tuple[UsageRow, UsageRow, UsageRow]:
        """The rows that calls are added to."""
        named = (self.rows, name), (self.programs, program)
        row, of_program = (rows.setdefault(one, UsageRow(name=one)) for rows, one in named)
        return row, of_program, self.total

    def _add_unpriced(self, one: UnpricedModel) -> None:
        known = self.unpriced.setdefault(f"{one.provider}/{one.model}", one)
        if known is not one:
            known.calls += one.calls
            known.tokens += one.tokens

    def _add_cause(self, one: CauseRow) -> None:
        known = self.causes.setdefault(one.cause, one)
        if known is not one:
            known.calls += one.calls
            known.tokens += one.tokens
            known.usd += one.usd
            for program, usd in one.saved.items():
                known.saved[program] = known.saved.get(program, Decimal(0)) + usd
            known.programs = tuple(sorted({*known.programs, *one.programs}))


def _dear(loss: ExpensiveLoss) -> tuple[Any, ...]:
    """The order of losses: an unknown price last, then the earlier one of two that are alike."""
    usd = Decimal(-1) if loss.usd is None else loss.usd
    return usd, loss.tokens, -(loss.at or 0.0), loss.file
