"""Charts: drawn within bounds for any numbers, with the same numbers as a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import htpy
import pytest
from msgspec.structs import replace
from support.tables import each_row

from anaphora.audit.envelope import AuditBlock, AuditEnvelope, AuditUsage
from anaphora.dashboard.charts import (
    MOST_COLUMNS,
    calls_bars,
    marker_positions,
    meter,
    saved_lost_bars,
    share_line,
    spend_bars,
    turn_bars,
)
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.dashboard.plot import HEIGHT
from anaphora.dashboard.values import Point, ShownCall

START = 1_795_871_100.0
OVER_TIME = [spend_bars, share_line, saved_lost_bars, calls_bars]


def point(number: int, **sums: int) -> Point:
    return Point(start=START + 3600 * number, seconds=3600, sums=CallTotals(**sums))


def turn(number: int, **fields: object) -> ShownCall:
    call = AuditEnvelope(at=START, model="m", turn=number, **fields)  # type: ignore[arg-type]
    return ShownCall(id=str(number), call=call)


def read(drawn: htpy.Element) -> ElementTree.Element:
    """The chart as XML, which also shows that every element is closed."""
    return ElementTree.fromstring(str(drawn))


def rects(drawn: htpy.Element) -> list[dict[str, float]]:
    plot = read(drawn).find(".//svg[@class='plot']")
    assert plot is not None
    fields = ("x", "width", "y", "height")
    return [
        {field: float(rect.attrib[field].rstrip("%")) for field in fields}
        for rect in plot.iter("rect")
    ]


ABSURD = 10**400
POINTS: dict[str, list[Point]] = {
    "none": [],
    "one": [point(0, calls=3, failed=1, input=100, read=50, cost_nano_usd=10**9)],
    "all zero": [point(n) for n in range(24)],
    "negative": [point(n, calls=-5, input=-1, cost_nano_usd=-(10**9)) for n in range(3)],
    "negative savings": [point(n, saved_nano_usd=-(10**9), lost_nano_usd=5) for n in range(3)],
    "absurd": [point(0, calls=ABSURD, failed=2 * ABSURD, cost_nano_usd=ABSURD, read=9, input=1)],
    "no time": [Point(start=math.nan, seconds=math.inf, sums=CallTotals(calls=1))],
}


@each_row("points", POINTS.values(), ids=POINTS)
@each_row("chart", OVER_TIME)
def test_any_points_are_drawn_inside_the_plot(
    chart: Callable[[Sequence[Point]], htpy.Element], points: list[Point]
) -> None:
    for rect in rects(chart(points)):
        assert rect["x"] >= -0.01
        assert rect["x"] + rect["width"] <= 100.01
        assert rect["y"] >= 0
        assert rect["y"] + rect["height"] <= HEIGHT + 0.01


@pytest.mark.parametrize("chart", OVER_TIME)
def test_many_points_are_added_up(chart: Callable[[Sequence[Point]], htpy.Element]) -> None:
    drawn = read(chart([point(n, calls=1, input=10, read=5) for n in range(5_000)]))
    columns = drawn.findall(".//g[@class='col']")
    assert 0 < len(columns) <= MOST_COLUMNS
    assert len(drawn.findall(".//tbody/tr")) == len(columns)


@each_row(
    "sums, labels",
    [
        ({}, ["$0.0001", "$0.00005", "$0"]),
        ({"cost_nano_usd": 3, "saved_nano_usd": 3}, ["$0.0001", "$0.00005", "$0"]),
        ({"cost_nano_usd": 6 * 10**9, "saved_nano_usd": 6 * 10**9}, ["$6", "$3", "$0"]),
    ],
)
@each_row("chart", [spend_bars, saved_lost_bars])
def test_labels_of_dollars_fit_beside_the_plot(
    chart: Callable[[Sequence[Point]], htpy.Element], sums: dict[str, int], labels: list[str]
) -> None:
    assert [label.text for label in read(chart([point(0, **sums)])).iter("text")] == labels


@pytest.mark.parametrize("seconds, labels", [(3_600, ["13:05"]), (86_400, ["Nov 28"])])
def test_a_step_of_a_day_has_the_day_below_it(seconds: int, labels: list[str]) -> None:
    drawn = read(calls_bars([Point(start=START, seconds=seconds, sums=CallTotals(calls=1))]))
    assert [each.text for each in drawn.findall(".//div[@class='axis']//time")] == labels


def test_calls_are_the_same_in_chart_and_table() -> None:
    drawn = read(calls_bars([point(n, calls=1_000 + n, failed=n) for n in range(5_000)]))
    cells = [row.findall("td")[0].text or "" for row in drawn.findall(".//tbody/tr")]
    assert sum(int(cell.replace(",", "")) for cell in cells) == sum(range(1_000, 6_000))


def test_bars_are_as_high_as_their_values() -> None:
    drawn = read(calls_bars([point(0, calls=10), point(1, calls=5)]))
    high, low = (
        float(bar.attrib["height"]) for bar in drawn.findall(".//rect[@class='calls']")[:2]
    )
    assert high == pytest.approx(2 * low, abs=0.02)


def test_steps_without_input_are_gaps() -> None:
    drawn = read(share_line([point(0, input=100, read=80), point(1), point(2, input=10)]))
    assert [bool(col.findall("rect")[1:]) for col in drawn.iter("g")] == [True, False, True]


@pytest.mark.parametrize("chart", OVER_TIME)
def test_charts_have_a_name_a_description_and_a_legend(
    chart: Callable[[Sequence[Point]], htpy.Element],
) -> None:
    drawn = read(chart(POINTS["one"]))
    plot = drawn.find(".//svg[@role='img']")
    assert plot is not None
    assert [child.tag for child in plot][:2] == ["title", "desc"]
    assert drawn.findall(".//ul[@class='legend']/li")
    assert all(head.attrib["scope"] for head in drawn.iter("th"))
    assert "style" not in str(chart(POINTS["one"]))


def test_a_turn_shows_its_tokens_the_prediction_the_markers_and_the_break() -> None:
    usage = AuditUsage(read=600, written={"5m": 300}, uncached=100, output=50)
    blocks = (
        AuditBlock(label="tools", kind="tool", tokens=50, marker=True, ttl="1h"),
        AuditBlock(label="tail", kind="messages", tokens=50),
    )
    drawn = turn_bars([turn(1, usage=usage, predicted=900, blocks=blocks, broke=True)])
    classes = [rect.attrib["class"] for rect in read(drawn).findall(".//g/rect")]
    assert classes == [
        "hit",
        "predicted read",
        "read",
        "written",
        "fresh",
        "output",
        "tick-halo",
        "tick",
    ]
    assert "Turn 1: 600 read, 300 written, 100 fresh, 50 output, prefix broke" in str(drawn)
    assert marker_positions(turn(1, usage=usage, blocks=blocks)) == [500.0]


def test_a_prediction_in_full_is_drawn_in_full() -> None:
    predicted = turn(1, usage=AuditUsage(read=600, written={"5m": 300}, uncached=100)).call
    drawn = turn_bars([replace(turn(1), predicted=predicted)])
    classes = [rect.attrib["class"] for rect in read(drawn).findall(".//g/rect")]
    assert classes == ["hit", "predicted read", "predicted written", "predicted fresh"]


@each_row(
    "calls",
    [
        [],
        [turn(1)],
        [turn(0, outcome="Timeout", broke=False)],
        [turn(n, usage=AuditUsage(read=n), broke=n % 7 == 0) for n in range(1, 2_000)],
        [turn(1, usage=AuditUsage(read=-5, output=ABSURD), predicted=ABSURD)],
    ],
)
def test_any_turns_are_drawn_inside_the_plot(calls: list[ShownCall]) -> None:
    drawn = turn_bars(calls)
    assert len(re.findall('class="col"', str(drawn))) <= MOST_COLUMNS
    for rect in rects(drawn):
        assert -1 <= rect["x"] <= rect["x"] + rect["width"] <= 101
        assert 0 <= rect["y"] <= rect["y"] + rect["height"] <= HEIGHT + 2


@each_row(
    "value, limit, text, state",
    [
        (25 * 10**8, 10**10, "$2.50 of $10.00 (25%)", "within"),
        (9 * 10**9, 10**10, "$9.00 of $10.00 (90%)", "near"),
        (2 * 10**10, 10**10, "$20.00 of $10.00 (200%), over the limit", "over"),
        (0, 0, "$0 of $0", "over"),
        (5 * 10**9, None, "$5.00, no limit", ""),
        (-1, 10**9, "-$0.000000001 of $1.00 (0%)", "within"),
    ],
)
def test_meters(value: int, limit: int | None, text: str, state: str) -> None:
    drawn = read(meter(value, limit))
    found = drawn.find(".//span[@class='meter-text']")
    assert found is not None
    assert found.text == text
    assert state in drawn.attrib["class"]
