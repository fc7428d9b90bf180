"""The report of `anaphora usage --html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import htpy

from anaphora.cache.verdict.advice import CAUSES
from anaphora.dashboard.charts import daily_points, share_line, spend_bars
from anaphora.dashboard.figures import (
    NOTHING,
    count,
    local_time,
    name,
    percent,
    short_id,
    tokens,
    usd,
)
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.dashboard.report import report_file
from anaphora.dashboard.tables import (
    Heading,
    Stat,
    card,
    empty,
    more,
    numbers,
    share_cell,
    stats,
    table,
)
from anaphora.usage.report import ExpensiveLoss, Grouping, UsageReport, UsageRow
from anaphora.usage.tally import NO_TIME
from anaphora.wording import compact, counted

from .usage_output import (
    PERIODS,
    input_of,
    money,
    ordered,
    partial_calls,
    partial_lines,
    shown,
    title,
    unpriced_lines,
)

#: Rows of one table.
_MOST_ROWS = 200


def usage_report(reports: Mapping[Grouping, UsageReport], made_at: float) -> bytes:
    """The HTML: sums, charts by day, causes with advice, and a table for each grouping. The first
    report is the one that was asked for; one of them is by day."""
    asked = next(iter(reports.values()))
    if not asked.total.calls:
        sections: list[tuple[str, htpy.Node]] = [("Usage", empty("No calls were found"))]
        return report_file("Usage", sections, made_at)
    days = reports["daily"].rows
    points = daily_points({row.name: _sums(row) for row in days if row.name != NO_TIME})
    drawn = [spend_bars(points, lost_known=asked.causes is not None), share_line(points)]
    first = [_headline(asked), htpy.div(".grid.charts")[drawn]]
    sections = [("Usage at API prices", [_notes(asked), *first])]
    if asked.causes:
        sections.append(
            ("Why cached tokens were billed again", [_causes(asked), _most_expensive(asked)])
        )
    sections.append(("Where it went", [_table(report) for report in reports.values()]))
    if asked.unpriced or asked.total.partial or asked.problems:
        unpriced = _left_out("Models without a known price", unpriced_lines(asked))
        partial = _left_out(partial_calls(asked), partial_lines(asked))
        problems = _left_out("Problems", asked.problems)
        sections.append(("Not in these figures", [unpriced, partial, problems]))
    return report_file("Usage", sections, made_at)


def _notes(report: UsageReport) -> htpy.Node:
    programs = ", ".join(title(row.name) for row in report.programs)
    files = f"{counted(report.files, 'file')} of {programs}."
    zone = "UTC" if report.utc else "this machine's time zone"
    text = f"{files} Days are those of {zone}."
    return [
        htpy.p(".dim")[text],
        not report.complete
        and htpy.p(".notice.warn")["Incomplete: interrupted before all files were read."],
    ]


def _headline(report: UsageReport) -> htpy.Element:
    total, whole = report.total, report.total.input
    share = total.read / whole if whole else None
    unpriced = f"{counted(total.unpriced, 'call')} without a known price" if total.unpriced else ""
    lost_share = float(total.lost_usd / total.usd) if total.usd else None
    shown = [
        Stat("Spent", money(total), unpriced),
        Stat("Input read from cache", percent(share), f"of {tokens(whole)}"),
        Stat("Calls", count(total.calls), f"{tokens(total.output)} of output"),
    ]
    if report.causes is not None:
        again = f"{percent(lost_share)} of it, {tokens(total.lost)}"
        shown.insert(
            1, Stat("Billed again", _usd(total.lost_usd), again, "bad" if total.lost else "")
        )
        shown.insert(2, Stat("Avoidable", _usd(report.avoidable_usd), "by a setting or a habit"))
    return stats(shown)


def _causes(report: UsageReport) -> htpy.Element:
    headings = [
        Heading("Cause"),
        *numbers("Calls", "Tokens", "Lost", "Avoidable"),
        Heading("What to do"),
    ]
    rows: list[list[htpy.Node]] = [
        [
            CAUSES[row.cause].name,
            count(row.calls),
            count(row.tokens),
            _usd(row.usd),
            _usd(row.saved_usd) if row.saved else NOTHING,
            [htpy.div[line] for line in row.advice],
        ]
        for row in report.causes or ()
        if row.tokens
    ]
    return card("Causes", table("Losses by cause", headings, rows))


def _most_expensive(report: UsageReport) -> htpy.Node:
    headings = [Heading("Time"), Heading("Cause"), *numbers("Tokens", "Lost"), Heading("Call")]
    rows = [
        [
            local_time(loss.at),
            [CAUSES[loss.cause].name, htpy.div(".dim")[name(loss.sentence, 400)]],
            count(loss.tokens),
            NOTHING if loss.usd is None else _usd(loss.usd),
            _call(loss),
        ]
        for loss in report.most_expensive
    ]
    return bool(rows) and card(
        "Most expensive losses", table("Most expensive losses", headings, rows)
    )


def _call(loss: ExpensiveLoss) -> htpy.Node:
    place = f"{shown(loss.file)}:{loss.line}"
    return [
        name(f"{title(loss.program)}, {loss.model}"),
        htpy.div(".dim")[name(shown(loss.project), 200)],
        htpy.div(".dim")[name(place, 400)],
    ]


def _table(report: UsageReport) -> htpy.Element:
    kind = PERIODS.get(report.by, report.by)
    heading = f"By {kind}"
    rows = ordered(report)
    if report.by in PERIODS:
        rows.reverse()  # the newest first
    headings = [Heading(kind.capitalize()), *numbers("Calls", "Input", "Read", "Output")]
    headings += numbers("Spent", "Billed again")
    cells = [[_name(report.by, row), *_figures(row)] for row in rows[:_MOST_ROWS]]
    which = "of earlier times" if report.by in PERIODS else "with less"
    left_out = more(len(rows) - _MOST_ROWS, f"row {which}", f"rows {which}")
    return card(heading, table(heading, headings, cells), left_out)


def _name(by: Grouping, row: UsageRow) -> htpy.Node:
    if by == "session":
        return [short_id(row.name), htpy.div(".dim")[name(shown(row.project), 200)]]
    if by == "program":
        return title(row.name)
    return name(shown(row.name) if by == "project" else row.name, 200)


def _figures(row: UsageRow) -> list[htpy.Node]:
    whole = row.input
    return [
        count(row.calls),
        input_of(row),
        share_cell(row.read / whole if whole else None),
        compact(row.output),
        money(row),
        _usd(row.lost_usd) if row.lost else NOTHING,
    ]


def _left_out(heading: str, lines: Sequence[str]) -> htpy.Node:
    items = [htpy.li[name(text, 400)] for text in lines[:_MOST_ROWS]]
    others = more(len(lines) - _MOST_ROWS, "line")
    return bool(items) and card(heading, htpy.ul[items], others)


def _sums(row: UsageRow) -> CallTotals:
    return CallTotals(
        calls=row.calls,
        input=row.input,
        read=row.read,
        written=row.written,
        output=row.output,
        cost_nano_usd=_nano(row.usd),
        lost=row.lost,
        lost_nano_usd=_nano(row.lost_usd),
    )


def _nano(amount: Decimal) -> int:
    return int(amount.scaleb(9))


def _usd(amount: Decimal) -> str:
    return usd(_nano(amount))
