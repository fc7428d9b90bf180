"""The report of `anaphora spend --html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import htpy

from anaphora.daemon.store import SpendRow
from anaphora.dashboard.charts import (
    charged_calls_bars,
    daily_points,
    filled_points,
    share_line,
    spend_bars,
)
from anaphora.dashboard.figures import count, name, percent, tokens, usd
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
from anaphora.dashboard.values import Point

_HOUR, _DAY = 3_600.0, 86_400.0
#: Rows of one table; the largest amounts.
_MOST_ROWS = 200


def spend_report(
    total: SpendRow,
    held: int,
    days: Sequence[SpendRow] | Mapping[float, SpendRow],
    groups: Mapping[tuple[str, ...], Sequence[SpendRow]],
    made_at: float,
) -> bytes:
    """The HTML: sums, charts by day, and a table for each grouping. `days` may be the hours of a
    single day instead, by their start."""
    if not days:
        sections: list[tuple[str, htpy.Node]] = [("Spend", empty("Nothing was spent"))]
        return report_file("Spend", sections, made_at)
    points = _points(days)
    lost_known = not isinstance(days, Mapping) and total.lost is not None
    spent = spend_bars(points, lost_known=lost_known)
    drawn = [spent, share_line(points), charged_calls_bars(points)]
    sections = [("Spend", [_headline(total, held), htpy.div(".grid.charts")[drawn]])]
    sections.append(("Where it went", [_table(by, rows) for by, rows in groups.items()]))
    return report_file("Spend", sections, made_at)


def _headline(total: SpendRow, held: int) -> htpy.Element:
    share = total.read / total.input if total.input else None
    has_corrections = bool(total.corrected)
    return stats(
        [
            Stat(
                "Spent", usd(total.billed), f"{usd(total.estimated)} of it not confirmed by a bill"
            ),
            Stat("Saved by the cache", usd(total.saved), "compared with no cache"),
            *(
                [Stat("Lost to cache misses", usd(total.lost), "anaphora audit report: causes")]
                if total.lost is not None
                else []
            ),
            Stat("Input read from cache", percent(share), f"of {tokens(total.input)}"),
            Stat("Charged attempts", count(total.calls), f"{tokens(total.output)} of output"),
            Stat("Held", usd(held), "for calls that are running"),
            *(
                [Stat("Corrected", usd(total.corrected), "part of what was spent")]
                * has_corrections
            ),
        ]
    )


def _points(days: Sequence[SpendRow] | Mapping[float, SpendRow]) -> list[Point]:
    """One for each day, or for each hour of a day, including those without calls."""
    if not isinstance(days, Mapping):
        return daily_points({row.day: _sums(row) for row in days})
    sums = {start: _sums(row) for start, row in days.items()}
    first = min(sums) // _DAY * _DAY
    return filled_points(sums, first, max(first + _DAY - _HOUR, *sums), _HOUR)


def _sums(row: SpendRow) -> CallTotals:
    return CallTotals(
        calls=row.calls,
        input=row.input,
        read=row.read,
        written=row.written,
        output=row.output,
        cost_nano_usd=row.billed,
        saved_nano_usd=row.saved,
        lost_nano_usd=row.lost or 0,
    )


def _table(by: tuple[str, ...], rows: Sequence[SpendRow]) -> htpy.Element:
    title = f"By {', '.join(by)}"
    counted = "label" not in by
    headings = [Heading(each.capitalize()) for each in by] + numbers("Attempts")
    headings += numbers(*(("Input", "Read", "Output") if counted else ()))
    headings += numbers("Spent", "Estimated", "Saved")
    corrected = any(row.corrected for row in rows)
    headings += numbers("Corrected") if corrected else []
    ordered = rows if "day" in by else sorted(rows, key=lambda row: -row.billed)
    cells = [
        [*_cells(by, row, counted=counted), *([usd(row.corrected)] if corrected else [])]
        for row in ordered[:_MOST_ROWS]
    ]
    which = "of later days" if "day" in by else "with less"
    left_out = more(len(ordered) - _MOST_ROWS, f"row {which}", f"rows {which}")
    return card(title, table(title, headings, cells), left_out)


def _cells(by: tuple[str, ...], row: SpendRow, *, counted: bool) -> list[htpy.Node]:
    names: list[htpy.Node] = [name(getattr(row, each) or "(none)") for each in by]
    figures: list[htpy.Node] = [count(row.calls)]
    if counted:
        share = row.read / row.input if row.input else None
        figures += [count(row.input), share_cell(share), count(row.output)]
    return [*names, *figures, usd(row.billed), usd(row.estimated), usd(row.saved)]
