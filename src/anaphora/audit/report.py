"""Sums over the calls of a log: spend, reads and breaks by model, label, day and block."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from anaphora.client.observe.export import BoundedNames

from .envelope import AuditEnvelope

#: Different names in one table; each further one is `other`.
_MOST_NAMES = 1_000
#: The group of calls without a label.
NO_LABEL = "(no label)"


class CallSums(msgspec.Struct, kw_only=True):
    """The sums of some calls. Amounts are nano-dollars; calls whose cost is unknown are counted
    apart, and not as 0."""

    calls: int = 0
    failed: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    cost_nano_usd: int = 0
    """With what was charged for attempts without a bill."""
    unpriced: int = 0
    """Calls whose cost is unknown; failed ones without usage are not among them."""
    saved_nano_usd: int = 0
    breaks: int = 0
    """Calls that paid again for what was cached, because the prompt had changed."""
    lost: int = 0
    """Tokens that could have been read and were paid again, for whatever reason."""
    lost_nano_usd: int = 0
    unbilled_nano_usd: int = 0
    """The part of the cost that no bill confirms: for streams that were left, and requests that
    were sent and never answered."""
    unreported: int = 0
    """Input tokens of bills that do not say what was read: they are in no share."""

    def add(self, call: AuditEnvelope) -> None:
        usage = call.usage
        self.calls += call.repeats
        self.failed += call.repeats if call.outcome != "ok" else 0
        self.input += usage.input
        self.read += usage.read or 0
        self.unreported += usage.input if usage.read is None else 0
        self.written += usage.written_total
        self.output += usage.output or 0
        if call.cost_nano_usd is not None:
            self.cost_nano_usd += call.cost_nano_usd
        elif not call.unbilled_nano_usd and (call.outcome == "ok" or usage.output is not None):
            self.unpriced += 1
        self.cost_nano_usd += call.unbilled_nano_usd
        self.unbilled_nano_usd += call.unbilled_nano_usd
        self.saved_nano_usd += call.saved_nano_usd or 0
        self.breaks += call.broke
        self.lost += call.lost
        self.lost_nano_usd += call.lost_nano_usd or 0

    def add_sums(self, other: CallSums) -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.input += other.input
        self.read += other.read
        self.written += other.written
        self.output += other.output
        self.cost_nano_usd += other.cost_nano_usd
        self.unpriced += other.unpriced
        self.saved_nano_usd += other.saved_nano_usd
        self.breaks += other.breaks
        self.lost += other.lost
        self.lost_nano_usd += other.lost_nano_usd
        self.unbilled_nano_usd += other.unbilled_nano_usd
        self.unreported += other.unreported

    @property
    def read_share(self) -> float | None:
        return self.read / self.reported if self.reported else None

    @property
    def reported(self) -> int:
        """Input tokens of bills that say what was read."""
        return self.input - self.unreported


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


def report(calls: Iterable[AuditEnvelope]) -> AuditReport:
    made = AuditReport(total=CallSums(), models={}, labels={}, days={}, causes={}, changed={})
    bounded = {id(group): BoundedNames(_MOST_NAMES) for group in (made.models, made.labels)}
    for call in calls:
        made.total.add(call)
        _add(made.models, bounded[id(made.models)](call.billed_model), call)
        for name in dict.fromkeys(call.labels) or (NO_LABEL,):
            _add(made.labels, bounded[id(made.labels)](name), call)
        _add(made.days, time.strftime("%Y-%m-%d", time.gmtime(call.at)), call)
        if call.lost:
            _add(made.causes, call.cause or "unknown", call)
        if call.broke:
            _add(made.changed, call.changed or call.cause or "unknown", call)
    made.days = dict(sorted(made.days.items()))
    for name in ("models", "labels"):
        ordered = sorted(getattr(made, name).items(), key=lambda item: -item[1].cost_nano_usd)
        setattr(made, name, dict(ordered))
    for name in ("causes", "changed"):
        ordered = sorted(getattr(made, name).items(), key=lambda item: -item[1].lost)
        setattr(made, name, dict(ordered))
    return made


def _add(groups: dict[str, CallSums], name: str, call: AuditEnvelope) -> None:
    sums = groups.get(name)
    if sums is None:
        sums = groups[name] = CallSums()
    sums.add(call)
