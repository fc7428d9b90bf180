"""Charts of sums over time and of the turns of a conversation, and meters of limits.

Each has at most `MOST_COLUMNS` columns: if there are more points, neighbours are added up.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate

import htpy

from anaphora.audit.envelope import AuditUsage
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.wording import compact, counted, format_share

from .figures import TimeForm, count, local_time, percent, tokens, usd, utc
from .plot import Column, Scale, Series, axis_labels, chart, drawable, rect, scale_of
from .values import Point, ShownCall

MOST_COLUMNS = 160
_DAY = 86_400
#: Days that are drawn: a single wrong year in a log would be a chart of nothing.
_MOST_DAYS = 3_660
#: Smallest top value of a dollar axis, in nano-dollars.
_LEAST_USD = 100_000

_READ = Series("read", "Read from cache")
_WRITTEN = Series("written", "Written to cache")
_FRESH = Series("fresh", "Fresh input")
_OUTPUT = Series("output", "Output")
#: For any reason: breaks, expired entries, …
_LOST = Series("lost", "Lost: billed again")


def daily_points(days: Mapping[str, CallTotals]) -> list[Point]:
    """One for each day from the first to the last, including those without calls. They are drawn as
    days of UTC: a page has no script that could convert them."""
    sums = {
        float(calendar.timegm(time.strptime(day, "%Y-%m-%d"))): one for day, one in days.items()
    }
    last = max(sums, default=0.0)
    first = max(min(sums, default=0.0), last - _MOST_DAYS * _DAY)
    return filled_points(sums, first, last, _DAY) if sums else []


def filled_points(
    sums: Mapping[float, CallTotals], first: float, last: float, step: float
) -> list[Point]:
    starts = [first + number * step for number in range(round((last - first) / step) + 1)]
    return [
        Point(start=start, seconds=step, sums=sums.get(start) or CallTotals()) for start in starts
    ]


def spend_bars(points: Sequence[Point], *, lost_known: bool = True) -> htpy.Element:
    """Dollars spent per step and, if known, the part for cached tokens that were billed again."""

    def column(sums: CallTotals, label: str, when: str) -> Column:
        spent, lost = sums.cost_nano_usd, sums.lost_nano_usd
        again = min(max(lost, 0), max(spent, 0))
        return Column(
            label=label,
            title=f"{when}: {usd(spent)} spent" + f", {usd(lost)} of it lost" * lost_known,
            above=[("lost", again), ("spent", spent - again)],
            cells=[usd(spent), usd(lost)][: 1 + lost_known],
        )

    total = _added(point.sums for point in points)
    return _over_time(
        "Spend",
        f"{usd(total.cost_nano_usd)} in all",
        [Series("spent", "Spent"), _LOST][: 1 + lost_known],
        points,
        column,
        written=_dollars,
        headings=["Spent", "Lost"][: 1 + lost_known],
        least=_LEAST_USD,
    )


def share_line(points: Sequence[Point]) -> htpy.Element:
    """Share of input tokens read from the cache; steps without input are gaps."""

    def column(sums: CallTotals, label: str, when: str) -> Column:
        share = percent(sums.read_share)
        return Column(
            label=label,
            title=f"{when}: {share} of {tokens(sums.reported)} read from cache",
            above=[] if sums.read_share is None else [("read", sums.read_share)],
            cells=[share, count(sums.read), count(sums.reported)],
        )

    total = _added(point.sums for point in points)
    return _over_time(
        "Share of input read from cache",
        f"{percent(total.read_share)} of {tokens(total.reported)}",
        [_READ],
        points,
        column,
        written=format_share,
        headings=["Share read", "Tokens read", "Input tokens"],
        scale=Scale(1.0),
    )


def saved_lost_bars(points: Sequence[Point]) -> htpy.Element:
    """Dollars saved by the cache, above zero; dollars lost, and writes that cost more than reads
    saved, below zero."""

    def column(sums: CallTotals, label: str, when: str) -> Column:
        saved, lost = sums.saved_nano_usd, sums.lost_nano_usd
        return Column(
            label=label,
            title=f"{when}: {usd(saved)} saved, {usd(lost)} lost",
            above=[("saved", saved)],
            below=[("lost", lost), ("output", -saved)],
            cells=[usd(saved), usd(lost)],
        )

    total = _added(point.sums for point in points)
    series = [Series("saved", "Saved by the cache"), _LOST]
    if any(point.sums.saved_nano_usd < 0 for point in points):
        series.append(Series("output", "Paid for writes, more than reads saved"))
    return _over_time(
        "Saved and lost",
        f"{usd(total.saved_nano_usd)} saved, {usd(total.lost_nano_usd)} lost",
        series,
        points,
        column,
        written=_dollars,
        headings=["Saved", "Lost"],
        least=_LEAST_USD,
    )


def charged_calls_bars(points: Sequence[Point]) -> htpy.Element:
    """Charged calls per step, for a ledger: it has no failed calls."""

    def column(sums: CallTotals, label: str, when: str) -> Column:
        return Column(
            label=label,
            title=f"{when}: {counted(sums.calls, 'call')}",
            above=[("calls", sums.calls)],
            cells=[count(sums.calls)],
        )

    total = _added(point.sums for point in points)
    return _over_time(
        "Charged calls",
        counted(total.calls, "call"),
        [Series("calls", "Charged")],
        points,
        column,
        written=compact,
        headings=["Calls"],
        least=2,
    )


def calls_bars(points: Sequence[Point]) -> htpy.Element:
    """Calls per step, and how many of them failed."""

    def column(sums: CallTotals, label: str, when: str) -> Column:
        failed = min(max(sums.failed, 0), max(sums.calls, 0))
        return Column(
            label=label,
            title=f"{when}: {counted(sums.calls, 'call')}, {count(sums.failed)} failed",
            above=[("failed", failed), ("calls", sums.calls - failed)],
            cells=[count(sums.calls), count(sums.failed), count(sums.breaks)],
        )

    total = _added(point.sums for point in points)
    return _over_time(
        "Calls and errors",
        f"{counted(total.calls, 'call')}, {count(total.failed)} failed",
        [Series("calls", "Answered"), Series("failed", "Failed")],
        points,
        column,
        written=compact,
        headings=["Calls", "Failed", "Breaks"],
        least=2,
    )


def turn_bars(calls: Sequence[ShownCall]) -> htpy.Element:
    """One bar per turn: read, written and fresh input, with output on top. The narrow bar beside it
    is the prediction; lines across it are cache markers."""
    step = max(1, -(-len(calls) // MOST_COLUMNS))
    columns = [_turns(calls[at : at + step], at) for at in range(0, len(calls), step)]
    breaks = sum(shown.call.broke for shown in calls)
    series = [_READ, _WRITTEN, _FRESH, _OUTPUT]
    if any(column.beside for column in columns):
        series.append(Series("predicted read", "Predicted to be read"))
    if any(column.ticks for column in columns):
        series.append(Series("tick", "Cache marker"))
    if breaks:
        series.append(Series("broke", "Prefix broke"))
    if any(column.mark == "no_answer" for column in columns):
        series.append(Series("no_answer", "Failed"))
    headings = ["Turn", "Read", "Written", "Fresh input", "Output", "Predicted to be read"]
    return chart(
        "Tokens of each turn",
        f"{counted(len(calls), 'turn')}, {counted(breaks, 'break')}",
        series,
        columns,
        scale=scale_of(columns, least=10),
        written=compact,
        headings=headings,
        axis=axis_labels([partial(_turn_number, column) for column in columns]),
    )


def meter(
    value: int, limit: int | None, *, held: int = 0, text: Callable[[int], str] = usd
) -> htpy.Element:
    """Use of a limit. `held` is reserved for running calls."""
    if limit is None:
        return htpy.div(".meter")[htpy.span(".meter-text")[f"{text(value)}, no limit"]]
    used, reserved = drawable(value), drawable(held)
    words = f"{text(value)} of {text(limit)}"
    if limit > 0:
        words += f" ({percent(used / limit)})"
    if held > 0:
        words += f", {text(held)} held"
    if used > limit:
        words += ", over the limit"
    share = (used + reserved) / limit if limit > 0 else math.inf
    most = max(drawable(limit), used + reserved) or 1.0
    return htpy.div(class_=["meter", "over" if share > 1 else "near" if share > 0.8 else "within"])[
        htpy.svg(".bar", aria_hidden="true", width="100%", height=8)[
            rect("track", 0, 100, 0, 8),
            rect("used", 0, 100 * used / most, 0, 8),
            rect("held", 100 * used / most, 100 * reserved / most, 0, 8),
        ],
        htpy.span(".meter-text")[words],
    ]


def _over_time(
    title: str,
    about: str,
    series: Sequence[Series],
    points: Sequence[Point],
    column: Callable[[CallTotals, str, str], Column],
    *,
    written: Callable[[float], str],
    headings: Sequence[str],
    scale: Scale | None = None,
    least: float = 0,
) -> htpy.Element:
    """A chart whose columns are steps of time; with a `scale` of its own it shows levels."""
    shown = merged(points)
    columns = [column(point.sums, local_time(point.start), utc(point.start)) for point in shown]
    span = shown[-1].start - shown[0].start if shown else 0
    whole_days = bool(shown) and shown[0].seconds >= _DAY
    form: TimeForm = "day" if whole_days or span > 1.5 * _DAY else "clock"
    labels = [partial(local_time, point.start, form) for point in shown]
    return chart(
        title,
        about,
        series,
        columns,
        scale=scale or scale_of(columns, least=least),
        written=written,
        headings=["From", *headings],
        axis=axis_labels(labels),
        stepped=scale is not None,
    )


def merged(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_COLUMNS` points: neighbours are summed."""
    step = -(-len(points) // MOST_COLUMNS)
    if step <= 1:
        return points
    groups = [points[at : at + step] for at in range(0, len(points), step)]
    return [
        Point(
            start=group[0].start,
            seconds=sum(point.seconds for point in group),
            sums=_added(point.sums for point in group),
        )
        for group in groups
    ]


def _added(sums: Iterable[CallTotals]) -> CallTotals:
    total = CallTotals()
    for one in sums:
        total.add_sums(one)
    return total


def _turns(group: Sequence[ShownCall], at: int) -> Column:
    """The column of one turn, or of several if there are very many."""
    read = sum(shown.call.usage.read or 0 for shown in group)
    written = sum(shown.call.usage.written_total for shown in group)
    fresh = sum(shown.call.usage.uncached or 0 for shown in group)
    output = sum(shown.call.usage.output or 0 for shown in group)
    predictions = [p for shown in group if (p := prediction(shown)) is not None]
    predicted = sum(p.read or 0 for p in predictions) if predictions else None
    first, last = (shown.call.turn or at + number for number, shown in _ends(group))
    turn = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    broke, failed = (any(each) for each in zip(*map(_marks, group), strict=True))
    title = f"Turn {turn}: {count(read)} read, {count(written)} written, {count(fresh)} fresh,"
    title += f" {count(output)} output" + (", prefix broke" if broke else "")
    return Column(
        label=turn,
        title=title + ("" if predicted is None else f"; predicted {count(predicted)} read"),
        above=[("read", read), ("written", written), ("fresh", fresh), ("output", output)],
        beside=[
            ("predicted read", predicted or 0),
            ("predicted written", sum(p.written_total for p in predictions)),
            ("predicted fresh", sum(p.uncached or 0 for p in predictions)),
        ]
        if predictions
        else (),
        ticks=marker_positions(group[0]) if len(group) == 1 else (),
        mark="broke" if broke else "no_answer" if failed else "",
        cells=[*map(count, (read, written, fresh, output)), count(predicted)],
    )


def _ends(group: Sequence[ShownCall]) -> list[tuple[int, ShownCall]]:
    return [(1, group[0]), (len(group), group[-1])]


def _marks(shown: ShownCall) -> tuple[bool, bool]:
    return shown.call.broke, shown.call.outcome != "ok"


def _turn_number(column: Column) -> str:
    return column.label


def prediction(shown: ShownCall) -> AuditUsage | None:
    """A call's predicted usage; if only the predicted read is known, usage with just that."""
    if shown.predicted is not None:
        return shown.predicted.usage
    read = shown.call.predicted
    return None if read is None else AuditUsage(read=read)


def marker_positions(shown: ShownCall) -> list[float]:
    """Tokens before each cache marker. Block sizes are estimates, scaled to the billed input."""
    blocks = shown.call.blocks
    ends = list(accumulate(max(block.tokens, 0) for block in blocks))
    if not ends or not ends[-1]:
        return []
    billed = shown.call.usage.input
    scaling = billed / ends[-1] if billed > 0 else 1.0
    return [end * scaling for block, end in zip(blocks, ends, strict=True) if block.marker]


def _dollars(nano: float) -> str:
    """A dollar value as an axis label."""
    amount = nano / 1e9
    if abs(amount) >= 1000:
        return "-" * (amount < 0) + f"${compact(abs(amount))}"
    text = usd(round(nano))
    return text.rstrip("0").rstrip(".") if "." in text else text
