"""The pages of `anaphora audit`: calls, blocks, and sums with their chart; and the losses of
`anaphora spend`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.reading import VerifiedLog
from anaphora.cache.verdict.advice import cause_name
from anaphora.daemon.store import SpendQuery, SpendRow
from anaphora.daemon.store.reading import day_of
from anaphora.errors import ChainBroken, Io
from anaphora.wording import counted, format_share, format_usd

from .common import report_problems
from .terminal import Line, Rows, table

if TYPE_CHECKING:
    from anaphora.dashboard.past_calls.memory import AuditReport
    from anaphora.dashboard.past_calls.sums import CallTotals

#: Rows of one table; --json has them all.
_MOST_ROWS = 20
#: Days in the chart: the last ones.
_MOST_DAYS = 30
#: Characters of the longest bar.
_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


def verified_lines(verified: VerifiedLog) -> Iterator[Line]:
    found = f"{counted(verified.rows, 'row')} in {counted(verified.segments, 'segment')}"
    yield f"✓ {verified.log}: the chain of {found} is whole", "bold"
    yield f"  last row: {verified.last:,}, hash {verified.hash}"
    if verified.first > 1:
        yield f"  rows 1 to {verified.first - 1:,} were pruned, as a row of the log confirms"
    if verified.signed_since is None:
        yield "  chain only: no store of a daemon knows this log, so MACs were not checked", "dim"
    else:
        yield f"  MACs of rows {verified.signed_since:,} and later are valid for this home's key"
    if verified.anchored is None:
        yield "  without --anchor, a truncated log is not detected", "dim"
    else:
        yield f"  the anchor names row {verified.anchored:,}, which is there"
    if verified.writing:
        yield "  a process is writing this log", "dim"


def call_table(found: Collection[tuple[StoredRow, AuditEnvelope]]) -> Rows:
    """With a column for amounts charged without a bill, if there are any."""
    unbilled = ("unbilled",) if any(call.unbilled_nano_usd for _, call in found) else ()
    figures = ("row", "input", "read", "output", "cost", *unbilled, "tokens lost")
    rows = table(
        "row", "time (UTC)", "model", "outcome", *figures[1:], "verdict", "labels", right=figures
    )
    for row, call in found:
        usage = call.usage
        verdict = " ".join(filter(None, (call.verdict, call.cause, call.changed)))
        rows.add_row(
            f"{row.seq:,}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(call.at)),
            call.billed_model,
            call.outcome,
            f"{usage.input:,}",
            share(usage.read or 0, usage.input),
            "" if usage.output is None else f"{usage.output:,}",
            _charged(call),
            *(cost(call.unbilled_nano_usd) if call.unbilled_nano_usd else "" for _ in unbilled),
            f"{call.lost:,}" if call.lost else "",
            verdict,
            " ".join(call.labels),
            style="bold" if call.broke or call.outcome != "ok" else "",
        )
    return rows


def _charged(call: AuditEnvelope) -> str:
    """Cost of the call, including amounts charged without a bill; empty if it failed without
    usage."""
    if call.unbilled_nano_usd:
        return cost((call.cost_nano_usd or 0) + call.unbilled_nano_usd)
    failed = call.outcome != "ok" and call.usage.output is None
    return "" if failed and call.cost_nano_usd is None else cost(call.cost_nano_usd)


def block_table(call: AuditEnvelope) -> Rows:
    figures = ("chunks", "tokens")
    rows = table("label", "kind", *figures, "marker", "digest", right=figures)
    for block in call.blocks:
        marker = (block.ttl or "yes") if block.marker else ""
        rows.add_row(
            block.label, block.kind, f"{block.chunks:,}", f"{block.tokens:,}", marker, block.digest
        )
    return rows


def report_lines(report: AuditReport) -> Iterator[Line]:
    from anaphora.dashboard.past_calls.adding import NO_LABEL

    total = report.total
    if not total.calls:
        yield "no calls"
        return
    yield from _sums("model", report.models)
    if set(report.labels) != {NO_LABEL}:
        yield ""
        yield from _sums("label", report.labels)
    yield ""
    yield from _sums("day", report.days)
    yield from _losses("cause of lost tokens", report.causes)
    yield from _losses("block that broke the prefix", report.changed)
    yield from _chart(report.days)
    yield f"\n{_sentence(total)}", "bold"
    if total.unpriced:
        yield f"the cost of {counted(total.unpriced, 'call')} is unknown", "dim"
    if total.unbilled_nano_usd:
        yield f"no bill confirms {cost(total.unbilled_nano_usd)} of it", "dim"


def _sums(title: str, groups: Mapping[str, CallTotals]) -> Iterator[Line]:
    figures = ("calls", "failed", "input", "read", "cost", "saved", "breaks", "lost")
    rows = table(title, *figures, right=figures)
    for name, sums in _shown(groups, newest=title == "day"):
        rows.add_row(
            name,
            f"{sums.calls:,}",
            f"{sums.failed:,}" if sums.failed else "",
            f"{sums.input:,}",
            share(sums.read, sums.reported),
            cost(sums.cost_nano_usd),
            cost(sums.saved_nano_usd),
            f"{sums.breaks:,}" if sums.breaks else "",
            cost(sums.lost_nano_usd) if sums.lost else "",
            style="bold" if sums.breaks else "",
        )
    yield rows
    yield from _more(groups)


def _losses(title: str, groups: Mapping[str, CallTotals]) -> Iterator[Line]:
    if not groups:
        return
    figures = ("calls", "tokens lost", "lost")
    rows = table(title, *figures, right=figures)
    for name, sums in _shown(groups):
        words = cause_name(name) if title.startswith("cause") else name
        rows.add_row(words, f"{sums.calls:,}", f"{sums.lost:,}", cost(sums.lost_nano_usd))
    yield ""
    yield rows
    yield from _more(groups)


def _shown(
    groups: Mapping[str, CallTotals], *, newest: bool = False
) -> Iterable[tuple[str, CallTotals]]:
    items = list(groups.items())
    return items[-_MOST_ROWS:] if newest else items[:_MOST_ROWS]


def _more(groups: Mapping[str, CallTotals]) -> Iterator[Line]:
    if len(groups) > _MOST_ROWS:
        yield f"and {len(groups) - _MOST_ROWS:,} more; --json has them all", "dim"


def _chart(days: Mapping[str, CallTotals]) -> Iterator[Line]:
    """A bar for each day: the spend, with the part lost to cache breaks marked."""
    shown = list(days.items())[-_MOST_DAYS:]
    most = max((sums.cost_nano_usd for _, sums in shown), default=0)
    if most <= 0:
        return
    yield "\nDollars by day; red: cached tokens billed again", "bold"
    for day, sums in shown:
        lost = min(max(sums.lost_nano_usd, 0), sums.cost_nano_usd)
        whole, part = bar(sums.cost_nano_usd / most), bar(lost / most).rstrip()
        rest = whole[: len(whole) - len(part)].rstrip() if part else whole.rstrip()
        yield [f"{day} ", (rest, "green"), (part, "red"), f" {cost(sums.cost_nano_usd)}"]


def bar(share_of_width: float, width: int = _WIDTH) -> str:
    """A bar of that share of the width, to an eighth of a character."""
    eighths = round(min(max(share_of_width, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _sentence(total: CallTotals) -> str:
    text = f"{counted(total.calls, 'call')}, {cost(total.cost_nano_usd)}"
    if total.read_share is not None:
        text += f", {format_share(total.read_share)} of the input read from the cache"
    if total.breaks:
        text += f"; {counted(total.breaks, 'break')}"
    if total.lost:
        text += f", {cost(total.lost_nano_usd)} billed again"
    return text


class LoggedLosses:
    """What cache misses cost, from an audit log, for the rows of `anaphora spend`."""

    _BY = ("group", "app", "provider", "model", "budget", "day")

    def __init__(self, amounts: Mapping[tuple[str, ...], int]) -> None:
        self._amounts = amounts

    @classmethod
    def of(cls, log: Path, since: float | None) -> LoggedLosses | None:
        """None if they are unknown."""
        from anaphora.audit.reading import losses

        if not log.is_dir():
            return None
        amounts = Counter[tuple[str, ...]]()
        try:
            for call in losses(log, since):
                key = (call.group, call.app, call.provider, call.billed_model, call.budget)
                amounts[*key, day_of(call.at)] += call.lost_nano_usd or 0
        except (ChainBroken, Io) as problem:
            report_problems([f"warning: what cache misses cost is unknown: {problem}"])
            return None
        return cls(amounts)

    def added(self, rows: Sequence[SpendRow], by: Sequence[str], of: SpendQuery) -> list[SpendRow]:
        """The rows with their losses; unknown by label."""
        if not set(by) <= set(self._BY):
            return [*rows]
        sums = Counter[tuple[str, ...]]()
        for key, amount in self._amounts.items():
            names = dict(zip(self._BY, key, strict=True))
            if of.app not in (None, names["app"]):
                continue
            names["group"] = of.groups.get(names["app"], "")
            if of.since <= names["day"] <= (of.until or names["day"]):
                sums[tuple(names[name] for name in by)] += amount
        return [replace(row, lost=sums[tuple(getattr(row, name) for name in by)]) for row in rows]


def share(part: int, whole: int) -> str:
    return format_share(part / whole) if whole else ""


def cost(nano_usd: int | None) -> str:
    if nano_usd is None:
        return "unknown"
    return format_usd(Decimal(nano_usd).scaleb(-9))
