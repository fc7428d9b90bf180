"""The pages of `anaphora audit`: calls, blocks, and sums with their chart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.reading import VerifiedLog
from anaphora.values import TTL_SECONDS
from anaphora.wording import counted

from .parameters import ModelName
from .terminal import Line, Rows, print_report, table

if TYPE_CHECKING:
    from anaphora.dashboard.past_calls.memory import AuditReport
    from anaphora.dashboard.past_calls.sums import CallTotals
    from anaphora.dashboard.what_if import TtlChoice, WhatIf

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
    figures = ("row", "input", "read", "output", "$", *unbilled, "lost")
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
        yield f"no bill confirms {cost(total.unbilled_nano_usd)} of these dollars", "dim"


def _sums(title: str, groups: Mapping[str, CallTotals]) -> Iterator[Line]:
    figures = ("calls", "failed", "input", "read", "$", "$ saved", "breaks", "$ lost")
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
    figures = ("calls", "tokens lost", "$ lost")
    rows = table(title, *figures, right=figures)
    for name, sums in _shown(groups):
        words = name.replace("_", " ") if title.startswith("cause") else name
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
    yield "\nDollars by day; red: paid again for what was cached", "bold"
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
    text = f"{counted(total.calls, 'call')}, {cost(total.cost_nano_usd)} dollars"
    if total.read_share is not None:
        text += f", {total.read_share:.0%} of the input read from the cache"
    if total.breaks:
        text += f"; {counted(total.breaks, 'break')}"
    if total.lost:
        text += f", {cost(total.lost_nano_usd)} dollars paid again"
    return text


def share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def cost(nano_usd: int | None) -> str:
    if nano_usd is None:
        return "unknown"
    amount = nano_usd / 1e9
    return f"{amount:,.2f}" if abs(amount) >= 1 or not nano_usd else f"{amount:.4f}"


#: How many calls, the newest, are read, and how many of them are simulated at most.
_MOST_READ, _MOST_PLAYED = 100_000, 20_000


def print_what_if(
    log: Path,
    on: tuple[str, str] | None,
    ttl: TtlChoice | None,
    as_json: bool,
    **filters: Any,
) -> None:
    from anaphora.audit.envelope import AuditEnvelope
    from anaphora.audit.reading import CallFilter, calls
    from anaphora.dashboard.what_if import ProviderModel, what_if

    model = None if on is None else ProviderModel(*on)
    count, newest = 0, deque[AuditEnvelope](maxlen=_MOST_READ)
    for _, call in calls(log, CallFilter(**filters)):
        newest.append(call)
        count += 1
    result = what_if(newest, model=model, ttl=ttl, most_played=_MOST_PLAYED)
    print_report(result, _lines(result, count), as_json=as_json)


model_option = click.option(
    "--as", "on", type=ModelName(), help="Also estimate the calls on another model."
)
ttl_option = click.option(
    "--ttl",
    type=click.Choice((*TTL_SECONDS, "none")),
    help="Use this TTL for all markers; none: no caching.",
)


def _lines(result: WhatIf, found: int) -> Iterator[Line]:
    from anaphora.dashboard.figures import percent, usd
    from anaphora.dashboard.what_if.wording import left_out_sentence, range_text, sentences

    left_out = left_out_sentence(result)
    if not result.calls:
        yield "no calls to estimate from"
        if left_out:
            yield left_out, "dim"
        return
    figures = ("$", "range", "difference", "read")
    rows = table("the same calls", *figures, right=figures)
    billed = usd(result.billed_nano_usd)
    rows.add_row("As billed", billed, "", "", percent(result.read_share))
    notes: list[str] = []
    for row in result.rows:
        title = row.scenario.title
        if row.cost is None or row.difference is None:
            notes.append(f"{title}: {row.unavailable}")
            continue
        difference = row.difference.estimate
        rows.add_row(
            title,
            usd(row.cost.estimate),
            range_text(row.cost),
            f"{'+' if difference > 0 else ''}{usd(difference)}",
            percent(row.read_share),
        )
        notes += [f"{title}: {note}" for note in row.notes]
    yield rows
    yield ""
    yield from ((sentence, "dim") for sentence in sentences(result))
    if left_out:
        yield left_out, "dim"
    if found > _MOST_READ:
        yield f"Of {found:,} calls, the newest {_MOST_READ:,} are read: see --since.", "dim"
    yield from ((note, "dim") for note in notes)
