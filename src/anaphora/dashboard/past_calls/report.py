"""Sums over the calls of a log that is read once: spend, reads and breaks by model, label, day and
block."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.values import ShownCall, View

from .memory import MemoryCalls
from .queries import days, groups
from .sums import CallSums

_DAY = 86_400


class AuditReport(msgspec.Struct, kw_only=True):
    total: CallSums
    models: dict[str, CallSums]
    labels: dict[str, CallSums]
    """A call with two labels is in both."""
    days: dict[str, CallSums]
    """By the UTC day on which the call began."""
    causes: dict[str, CallSums]
    """Calls that lost tokens, by the cause."""
    changed: dict[str, CallSums]
    """Calls whose prefix broke, by the block that changed."""


class LogSums(msgspec.Struct):
    """The sums of a log, and the times of its first and its last call."""

    calls: MemoryCalls
    first: float
    last: float

    @property
    def view(self) -> View:
        return View(since=self.first, until=self.last + 1.0, range="custom")

    @property
    def labels(self) -> dict[str, CallSums]:
        """What the application calls its calls."""
        with self.calls.selection(self.view) as of:
            return groups(of, "tags", "tag")


def summed(calls: Iterable[AuditEnvelope], *, blocks: bool) -> LogSums | None:
    """None where there are no calls. `blocks`: also by block of the prompt."""
    found = LogSums(MemoryCalls(0, blocks=blocks, tags=True), math.inf, -math.inf)
    for call in calls:
        found.calls.add(ShownCall(id="", call=call))
        found.first, found.last = min(found.first, call.at), max(found.last, call.at)
    return None if found.last < found.first else found


def report(calls: Iterable[AuditEnvelope]) -> AuditReport:
    log = summed(calls, blocks=False)
    if log is None:
        return AuditReport(total=CallSums(), models={}, labels={}, days={}, causes={}, changed={})
    with log.calls.selection(log.view) as of:
        by_day = days(of)
        total = CallSums()
        for sums in by_day.values():
            total.add_sums(sums)
        return AuditReport(
            total=total,
            models=_ordered(groups(of, "sums", "model"), "cost_nano_usd"),
            labels=_ordered(groups(of, "tags", "tag"), "cost_nano_usd"),
            days={_date(day): sums for day, sums in by_day.items()},
            causes=_ordered(groups(of, "causes", "cause"), "lost"),
            changed=_ordered(groups(of, "changed", "changed"), "lost"),
        )


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * _DAY))


def _ordered(groups: Mapping[str, CallSums], figure: str) -> dict[str, CallSums]:
    return dict(sorted(groups.items(), key=lambda item: -getattr(item[1], figure)))
