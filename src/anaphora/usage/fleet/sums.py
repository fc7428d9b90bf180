"""Sums of rows that can be added to those of other processes; a `UsageReport` at the end."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from anaphora.usage.advice import advice
from anaphora.usage.records import LossCause
from anaphora.usage.report import (
    CauseRow,
    DearLoss,
    Grouping,
    UnpricedModel,
    UsageReport,
    UsageRow,
)

from .partition import FleetRow, SetAside

_NANO = Decimal(10**9)
_DEAREST = 10
#: Rows and problems that are kept one by one; there are as many sessions as conversations.
_MOST_ROWS, _MOST_PROBLEMS = 10_000, 100
_OTHERS = "(others)"
_SUMS = tuple(
    field.name for field in msgspec.structs.fields(UsageRow) if field.default in (0, Decimal(0))
)


class FleetJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the logs, for all processes."""

    by: Grouping = "daily"
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
    records: int = 0
    rows: dict[str, UsageRow] = {}
    total: UsageRow = msgspec.field(default_factory=lambda: UsageRow(name="total"))
    programs: dict[str, UsageRow] = {}
    causes: dict[LossCause, CauseRow] = {}
    dearest: list[DearLoss] = []
    unpriced: dict[str, UnpricedModel] = {}
    broken: int = 0
    unbilled: int = 0
    problems: list[str] = []
    """The first broken records."""

    def set_aside(self, one: SetAside) -> None:
        self.records += 1
        self.unbilled += not one.broken
        self.broken += one.broken
        if one.broken and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{one.place}: {one.reason}")

    def add(self, row: FleetRow) -> bool:
        """Whether the call is in the time that is asked for."""
        self.records += 1
        call, job = row.call, self.job
        if (job.since is not None and call.at < job.since) or (
            job.until is not None and call.at >= job.until
        ):
            return False
        sums = _sums_of(row)
        for groups, name in ((self.rows, self._name(row)), (self.programs, row.program)):
            one = groups.get(name)
            if one is None:
                one = groups[name] = UsageRow(name=name)
            _add(one, sums)
            _note(one, row)
        _add(self.total, sums)
        _note(self.total, row)
        if sums.unpriced:
            model = UnpricedModel(provider=call.provider, model=call.model, calls=0, tokens=0)
            model = self.unpriced.setdefault(f"{call.provider}/{call.model}", model)
            model.calls += 1
            model.tokens += call.usage.input + (call.usage.output or 0)
        for loss in row.losses:
            usd = None if loss.nano_usd is None else loss.nano_usd / _NANO
            none = CauseRow(
                cause=loss.cause,
                calls=0,
                tokens=0,
                usd=Decimal(0),
                programs=(),
                advice=advice(loss.cause, ()),
            )
            self._add_cause(self.causes.setdefault(loss.cause, none), 1, loss.tokens, usd or 0, row)
            dear = DearLoss(
                cause=loss.cause,
                at=call.at or None,
                file=row.place,
                line=0,
                program=row.program,
                session=call.conversation,
                project=call.app,
                model=call.model,
                tokens=loss.tokens,
                usd=usd,
                sentence=loss.sentence,
            )
            self._keep(dear)
        return True

    def merge(self, other: FleetSums) -> None:
        for name in ("records", "broken", "unbilled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.rows, other.rows), (self.programs, other.programs)):
            for name, row in theirs.items():
                if name in mine:
                    _merge(mine[name], row)
                else:
                    mine[name] = row
        _merge(self.total, other.total)
        for cause, one in other.causes.items():
            known = self.causes.setdefault(cause, one)
            if known is not one:
                known.calls, known.tokens = known.calls + one.calls, known.tokens + one.tokens
                known.usd += one.usd
                known.programs = tuple(sorted({*known.programs, *one.programs}))
        for dear in other.dearest:
            self._keep(dear)
        for name, model in other.unpriced.items():
            mine_ = self.unpriced.setdefault(name, model)
            if mine_ is not model:
                mine_.calls, mine_.tokens = mine_.calls + model.calls, mine_.tokens + model.tokens
        self.problems = [*self.problems, *other.problems][:_MOST_PROBLEMS]
        if len(self.rows) > 2 * _MOST_ROWS:
            self._fold()

    def report(self, files: int) -> UsageReport:
        if len(self.rows) > _MOST_ROWS:
            self._fold()
        named = self.job.by in ("daily", "weekly", "monthly")
        rows = sorted(self.rows.values(), key=lambda row: row.name if named else -row.usd)
        hidden = self.broken - len(self.problems)
        more = [f"{hidden:,} more records cannot be read"] if hidden > 0 else []
        unbilled = f"{self.unbilled:,} calls were not billed or have no answer: not summed"
        notices = [unbilled] if self.unbilled else []
        return UsageReport(
            by=self.job.by,
            since=self.job.since,
            until=self.job.until,
            rows=tuple(rows),
            total=self.total,
            programs=tuple(sorted(self.programs.values(), key=lambda row: -row.usd)),
            causes=self._causes(),
            dearest=tuple(sorted(self.dearest, key=_dear, reverse=True)),
            unpriced=tuple(sorted(self.unpriced.values(), key=lambda one: -one.tokens)),
            problems=(*sorted(self.problems), *more),
            notices=tuple(notices),
            files=files,
        )

    def _causes(self) -> tuple[CauseRow, ...]:
        for row in self.causes.values():
            row.advice = advice(row.cause, row.programs)
        return tuple(sorted(self.causes.values(), key=lambda row: (-row.usd, -row.tokens)))

    def _name(self, row: FleetRow) -> str:
        call = row.call
        match self.job.by:
            case "model":
                return call.model
            case "session":
                return call.conversation
            case "project":
                return call.app
            case "program":
                return row.program
        if not call.at:
            return "unknown"
        day = datetime.datetime.fromtimestamp(call.at, datetime.UTC).date()
        if self.job.by == "weekly":
            day -= datetime.timedelta(days=day.weekday())
        return day.isoformat()[: 7 if self.job.by == "monthly" else 10]

    def _add_cause(
        self, one: CauseRow, calls: int, tokens: int, usd: Decimal | int, row: FleetRow
    ) -> None:
        one.calls, one.tokens, one.usd = one.calls + calls, one.tokens + tokens, one.usd + usd
        if row.program not in one.programs:
            one.programs = (*one.programs, row.program)

    def _fold(self) -> None:
        """Sums the cheapest rows in one."""
        order = sorted(self.rows, key=lambda name: (name == _OTHERS, -self.rows[name].usd))
        others = UsageRow(name=_OTHERS)
        for name in order[_MOST_ROWS - 1 :]:
            _merge(others, self.rows.pop(name))
        self.rows[_OTHERS] = others

    def _keep(self, dear: DearLoss) -> None:
        self.dearest = heapq.nlargest(_DEAREST, [*self.dearest, dear], key=_dear)


def _dear(loss: DearLoss) -> tuple[Any, ...]:
    return loss.usd or 0, loss.tokens, loss.at or 0, loss.file


def _sums_of(row: FleetRow) -> UsageRow:
    call, usage = row.call, row.call.usage
    written = usage.written or {}
    hour = written.get("1h", 0)
    return UsageRow(
        name="",
        calls=call.repeats,
        uncached=usage.uncached or 0,
        read=usage.read or 0,
        written_5m=sum(written.values()) - hour,
        written_1h=hour,
        output=usage.output or 0,
        usd=(call.cost_nano_usd or 0) / _NANO,
        unpriced=int(call.cost_nano_usd is None and usage.uncached is not None),
        lost=sum(loss.tokens for loss in row.losses),
        lost_usd=sum(loss.nano_usd or 0 for loss in row.losses) / _NANO,
    )


def _add(one: UsageRow, other: UsageRow) -> None:
    for name in _SUMS:
        setattr(one, name, getattr(one, name) + getattr(other, name))


def _merge(one: UsageRow, other: UsageRow) -> None:
    _add(one, other)
    one.programs = tuple(sorted({*one.programs, *other.programs}))
    one.models = tuple(sorted({*one.models, *other.models}))
    one.began = _extreme(min, one.began, other.began)
    one.ended = _extreme(max, one.ended, other.ended)


def _note(one: UsageRow, row: FleetRow) -> None:
    """Its first and last call, and names."""
    call = row.call
    if row.program not in one.programs:
        one.programs = tuple(sorted((*one.programs, row.program)))
    if call.model not in one.models:
        one.models = tuple(sorted((*one.models, call.model)))
    if call.at:
        one.began = call.at if one.began is None else min(one.began, call.at)
        one.ended = call.at if one.ended is None else max(one.ended, call.at)
    one.project = call.app if one.project in ("", call.app) else ""


def _extreme(choose: Any, *times: float | None) -> float | None:
    return choose((time for time in times if time is not None), default=None)  # type: ignore[no-any-return]


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
