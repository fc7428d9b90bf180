"""The view of a page as the query of its address."""

from __future__ import annotations

import datetime
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.dashboard.values import View
from anaphora.dashboard.view import RANGE_SECONDS, query_of, steps_of, view_from_query
from anaphora.errors import InvalidRequest

NOW = 1_794_837_600.0  # 2026-11-16 14:00 UTC
DAY = 86_400.0

names = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
times = st.datetimes(
    datetime.datetime(1990, 1, 1), datetime.datetime(2090, 1, 1), timezones=st.just(datetime.UTC)
).map(datetime.datetime.timestamp)


@st.composite
def views(draw: st.DrawFn) -> View:
    filters = {name: draw(names) for name in ("app", "provider", "model", "label")}
    if name := draw(st.sampled_from([None, *RANGE_SECONDS])):
        return View(since=NOW - RANGE_SECONDS[name], until=NOW, range=name, **filters)
    since, until = sorted(draw(st.lists(times, min_size=2, max_size=2, unique=True)))
    return View(since=since, until=until, range="custom", **filters)


def read(query: str) -> View:
    return view_from_query(dict(parse_qsl(query, keep_blank_values=True)), NOW)


@given(views())
def test_query_gives_the_same_view(view: View) -> None:
    assert read(query_of(view)) == view


@each_row(
    ("query", "since", "until"),
    [
        ("", NOW - 86_400, NOW),
        ("range=hour", NOW - 3_600, NOW),
        ("range=week", NOW - 7 * 86_400, NOW),
        ("range=month", NOW - 30 * 86_400, NOW),
        ("range=custom&since=2026-11-16T13:00&until=2026-11-16T13:30", NOW - 3_600, NOW - 1_800),
        ("since=2026-11-16T13:00&until=", NOW - 3_600, NOW),
        ("since=2026-11-16T14:00%2B01:00", NOW - 3_600, NOW),
        ("since=2026-11-16", NOW - 14 * 3_600, NOW),
    ],
)
def test_ranges_of_a_query(query: str, since: float, until: float) -> None:
    view = read(query)
    assert (view.since, view.until) == (since, until)


@each_row(
    ("query", "error"),
    [
        ("range=decade", "range: 'decade' is none of hour, day, week, month, custom"),
        ("range=custom", "since: a custom range needs a time, such as 2026-11-16T13:00"),
        ("since=noon", "since: 'noon' is not a time; write it as 2026-11-16T13:00 (UTC)"),
        (
            "since=2026-11-16&until=later",
            "until: 'later' is not a time; write it as 2026-11-16T13:00",
        ),
        ("since=0001-01-01T00:00%2B14:00", "since: '0001-01-01T00:00+14:00' is not a time"),
        ("since=2026-11-16&until=9999-12-31T23:00-14:00", "until: '9999-12-31T23:00-14:00' is no"),
        ("since=2026-11-16&until=2026-11-16", "since: must be before the end of the range"),
    ],
)
def test_wrong_values_are_named(query: str, error: str) -> None:
    with pytest.raises(InvalidRequest) as problem:
        read(query)
    assert str(problem.value).startswith(error)


def test_empty_filters_of_a_form_are_none() -> None:
    assert read("app=&provider=&model=&label=") == read("")


def test_changes_replace_fields_and_add_parameters() -> None:
    view = read("range=week&app=shop&model=claude-opus-5-5")
    assert query_of(view, app=None, before="7") == "range=week&model=claude-opus-5-5&before=7"
    assert query_of(view, range="day", model=None) == "range=day&app=shop"
    moved = read(query_of(view, since=NOW - 60, until=NOW - 30))
    assert (moved.range, moved.since, moved.until) == ("custom", NOW - 60, NOW - 30)


@each_row(
    ("length", "seconds", "count"),
    [(60, 60, 1), (3_600, 60, 60), (86_400, 900, 96), (7 * 86_400, 7_200, 84), (1e10, 1e8, 100)],
)
def test_charts_have_at_most_a_hundred_steps(length: float, seconds: float, count: int) -> None:
    steps = steps_of(View(since=0.0, until=length))
    assert steps.count <= 100
    assert steps.seconds == pytest.approx(seconds, rel=0.05)
    assert steps.count == pytest.approx(count, rel=0.05)
    assert steps.index(length - 1) == steps.count - 1


def test_steps_are_whole_multiples() -> None:
    steps = steps_of(View(since=1_000_030.0, until=1_003_630.0))
    assert (steps.start, steps.seconds, steps.count) == (1_000_020.0, 60, 61)


def test_charts_of_a_first_day_have_its_hours() -> None:
    """Also of a week and a month, in which there were no calls before; later ones begin with the
    first call. The hours and the quarters of a shorter range stay."""
    month = view_from_query({"range": "month"}, NOW)
    whole = steps_of(month)
    assert whole.seconds > 3_600
    for first in (NOW, NOW - 60, NOW - DAY):
        steps = steps_of(month, first)
        assert steps.seconds == 3_600
        assert steps.count in (24, 25)
        assert steps.start <= first <= steps.start + steps.count * 3_600
    three_days = steps_of(month, NOW - 3 * DAY)
    assert (three_days.seconds, three_days.count) in ((3_600, 72), (3_600, 73))
    assert steps_of(month, month.since - 1) == whole
    day = view_from_query({"range": "day"}, NOW)
    assert steps_of(day, NOW - 60) == steps_of(day)
