"""Sums of rows that can be added to those of other processes; a `UsageReport` at the end."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.usage.records import CallLoss
from anaphora.usage.report import ExpensiveLoss, Grouping, UsageReport, UsageRow
from anaphora.usage.tally import NANO, UsageTally, period_of
from anaphora.wording import counted

from .partition import FleetRow, SetAside

_MOST_EXPENSIVE = 10
#: Rows and problems that are kept one by one; there are as many sessions as conversations.
_MOST_ROWS, MOST_PROBLEMS = 10_000, 100
_OTHERS = "(others)"


class FleetJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the logs, for all processes."""

    by: tuple[Grouping, ...] = ("daily",)
    """A report for each."""
    since: float | None = None
    until: float | None = None
    now: float = 0.0
    """The time of calls without one, for their price."""
    rows: bool = False
    """Whether rows are wanted, not only sums."""


class FleetProgress(msgspec.Struct):
    """How far the work is."""

    slices: int
    """Parts of the logs that have to be read,"""
    buckets: int
    """and partitions that have to be judged."""
    read: int = 0
    judged: int = 0
    records: int = 0
    usd: float = 0.0


class FleetSums(msgspec.Struct, kw_only=True):
    """Days begin at midnight UTC, wherever a process runs."""

    job: FleetJob
    tallies: list[UsageTally]
    """By each grouping."""
    records: int = 0
    broken: int = 0
    unbilled: int = 0
    problems: list[str] = []
    """The first broken records."""
    times: tuple[float, ...] = ()
    """The first and the last of all calls."""

    @classmethod
    def of(cls, job: FleetJob) -> FleetSums:
        return cls(job=job, tallies=[UsageTally(by=by) for by in job.by])

    def set_aside(self, one: SetAside) -> None:
        self.records += 1
        self.unbilled += not one.broken
        self.broken += one.broken
        if one.broken and len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{one.place}: {one.reason}")

    def set_aside_others(self, broken: int, unbilled: int) -> None:
        self.records += broken + unbilled
        self.broken += broken
        self.unbilled += unbilled

    def add(self, row: FleetRow) -> bool:
        """Whether the call is in the time that is asked for."""
        self.records += 1
        call, job = row.call, self.job
        self._note(call.at)
        if (job.since is not None and call.at < job.since) or (
            job.until is not None and call.at >= job.until
        ):
            return False
        sums, dear = _sums_of(row), [_dear(row, loss) for loss in row.losses]
        for tally in self.tallies:
            sums.name = _name(tally.by, row)
            sums.project = call.app if tally.by in ("session", "project") else ""
            tally.add(sums, call.provider)
            for loss in row.losses:
                lost = 1, loss.tokens, loss.nano_usd or 0
                tally.lose(sums.name, loss.cause, row.program, lost, loss.saved_nano_usd)
            if dear:
                tally.keep_most_expensive(dear, _MOST_EXPENSIVE)
        return True

    def _note(self, *times: float) -> None:
        known = [at for at in (*self.times, *times) if at]
        self.times = (min(known), max(known)) if known else ()

    def merge(self, other: FleetSums) -> None:
        for name in ("records", "broken", "unbilled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems = [*self.problems, *other.problems][:MOST_PROBLEMS]
        self._note(*other.times)
        for mine, theirs in zip(self.tallies, other.tallies, strict=True):
            mine.merge(theirs)
            mine.keep_most_expensive(theirs.most_expensive, _MOST_EXPENSIVE)
            if len(mine.rows) > 2 * _MOST_ROWS:
                _fold(mine.rows)

    def reports(self, files: int) -> list[UsageReport]:
        return [self._report(tally, files) for tally in self.tallies]

    def _report(self, tally: UsageTally, files: int) -> UsageReport:
        if len(tally.rows) > _MOST_ROWS:
            _fold(tally.rows)
        report = tally.report(since=self.job.since, until=self.job.until, causes=True)
        hidden = self.broken - len(self.problems)
        more = [f"{hidden:,} more records cannot be read"] if hidden > 0 else []
        report.problems = (*sorted(self.problems), *more)
        if self.unbilled:
            unbilled = f"{counted(self.unbilled, 'call')} without a bill or an answer: not summed"
            report.notices = (unbilled,)
        if not report.total.calls:
            report.days = tuple(period_of("daily", at, datetime.UTC) for at in self.times)
        report.files, report.utc = files, True
        return report


def _name(by: Grouping, row: FleetRow) -> str:
    match by:
        case "model":
            return row.call.model
        case "session":
            return row.call.conversation
        case "project":
            return row.call.app
        case "program":
            return row.program
    return period_of(by, row.call.at or None, datetime.UTC)


def _fold(rows: dict[str, UsageRow]) -> None:
    """Sums the cheapest rows in one."""
    order = sorted(rows, key=lambda name: (name == _OTHERS, -rows[name].usd))
    others = UsageRow(name=_OTHERS)
    for name in order[_MOST_ROWS - 1 :]:
        others.add(rows.pop(name))
    rows[_OTHERS] = others


def _sums_of(row: FleetRow) -> UsageRow:
    call, usage = row.call, row.call.usage
    written = usage.written or {}
    half, hour = written.get("30m", 0), written.get("1h", 0)
    return UsageRow(
        name="",
        began=call.at or None,
        ended=call.at or None,
        programs=(row.program,),
        models=(call.model,),
        calls=call.repeats,
        uncached=usage.uncached or 0,
        read=usage.read or 0,
        written_5m=sum(written.values()) - half - hour,
        written_30m=half,
        written_1h=hour,
        output=usage.output or 0,
        usd=(call.cost_nano_usd or 0) / NANO,
        unpriced=call.repeats * (call.cost_nano_usd is None and usage.uncached is not None),
    )


def _dear(row: FleetRow, loss: CallLoss) -> ExpensiveLoss:
    call = row.call
    return ExpensiveLoss(
        cause=loss.cause,
        at=call.at or None,
        file=row.place,
        line=0,
        program=row.program,
        session=call.conversation,
        project=call.app,
        model=call.model,
        tokens=loss.tokens,
        usd=None if loss.nano_usd is None else loss.nano_usd / NANO,
        sentence=loss.sentence,
    )


def losses_in(row: FleetRow) -> Iterator[tuple[str, Any]]:
    """The columns of a row beside the audit's."""
    first = row.losses[0] if row.losses else None
    yield "place", row.place
    yield "program", row.program
    yield "loss_cause", None if first is None else first.cause
    yield "loss_tokens", sum(loss.tokens for loss in row.losses)
    known = [loss.nano_usd for loss in row.losses if loss.nano_usd is not None]
    yield "loss_nano_usd", sum(known) if len(known) == len(row.losses) else None
    yield "idle", None if first is None else first.idle
