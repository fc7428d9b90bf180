"""Calls in memory as a source of pages."""

from __future__ import annotations

import gc
import math
import random
import sqlite3
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.block_sums import sums_by_block
from support.dashboard_data import varied_calls
from support.tables import each_row

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.memory import LogSums, MemoryCalls
from anaphora.dashboard.past_calls.schema import HOUR
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.past_calls.sums import CallTotals, figures_of
from anaphora.dashboard.values import CallQuery, ShownCall, View

NOW = 1_794_837_600.0
CALLS = varied_calls(NOW, conversations=60, days=3)
APPS, PROVIDERS, MODELS = (
    sorted({getattr(call, name) for call in CALLS}) for name in ("app", "provider", "model")
)
LABELS = sorted({block.label for call in CALLS for block in call.blocks})


def source_of(calls: Iterable[AuditEnvelope], most: int = 10_000) -> MemoryCalls:
    source = MemoryCalls(most)
    for number, call in enumerate(calls):
        source.add(ShownCall(id=str(number), call=call))
    return source


FILLED = source_of(CALLS)
ALL = View(since=NOW - 4 * 86_400, until=NOW, range="custom")


def sums_of(calls: Iterable[AuditEnvelope]) -> CallTotals:
    sums = CallTotals()
    for call in calls:
        sums.add_sums(CallTotals(*figures_of(call)))
    return sums


def within(view: View) -> list[AuditEnvelope]:
    return [
        call
        for call in CALLS
        if view.since <= call.at < view.until
        and all(
            wanted in (None, getattr(call, name))
            for name, wanted in (
                ("app", view.app),
                ("provider", view.provider),
                ("model", view.model),
            )
        )
        and (view.label is None or view.label in {block.label for block in call.blocks})
    ]


minutes = st.integers(0, 4 * 24 * 60)


@st.composite
def views(draw: st.DrawFn) -> View:
    first, last = sorted(draw(st.lists(minutes, min_size=2, max_size=2, unique=True)))
    start = ALL.since // 60 * 60
    return View(
        since=start + first * 60,
        until=start + last * 60,
        range="custom",
        app=draw(st.none() | st.sampled_from(APPS)),
        provider=draw(st.none() | st.sampled_from(PROVIDERS)),
        model=draw(st.none() | st.sampled_from(MODELS)),
        label=draw(st.none() | st.sampled_from(LABELS)),
    )


@given(views())
def test_sums_equal_those_of_the_calls(view: View) -> None:
    calls = within(view)
    overview = FILLED.overview(view)
    assert overview.total == sums_of(calls)
    for name, groups in (("provider", overview.providers), ("model", overview.models)):
        assert groups == {
            each: sums_of(call for call in calls if getattr(call, name) == each)
            for each in {getattr(call, name) for call in calls} - {""}
        }
    lost = [call for call in calls if call.lost]
    assert overview.causes == {
        cause: sums_of(call for call in lost if call.cause == cause)
        for cause in {call.cause for call in lost}
    }
    assert sum(overview.outcomes.values()) == overview.total.failed
    for point in overview.points:
        end = point.start + point.seconds
        assert point.sums == sums_of(call for call in calls if point.start <= call.at < end)


def of_kept_steps(view: View) -> View:
    """The view with ends at whole hours where minutes are no longer kept."""
    with FILLED.reading() as (_, state):
        minutes_since = state.minutes_since
    since, until = view.since, view.until
    return replace(
        view,
        since=since if since >= minutes_since else since // HOUR * HOUR,
        until=until if until >= minutes_since else math.ceil(until / HOUR) * HOUR,
    )


@given(views())
@example(View(since=ALL.since, until=ALL.since + 32 * HOUR + 60, range="custom"))
def test_blocks_equal_those_of_the_calls(view: View) -> None:
    """Over the whole steps that the range is widened to."""
    calls = within(of_kept_steps(view))
    rows = {row.label: row for row in FILLED.blocks(view)}
    for label, row in rows.items():
        own = [figures[label] for call in calls if label in (figures := sums_by_block(call))]
        assert row.calls == sum(each.calls for each in own)
        assert row.unpriced == sum(each.unpriced for each in own)
        assert row.tokens == sum(each.tokens for each in own)
        assert row.read == sum(each.read for each in own)
        assert row.cost_nano_usd == sum(each.cost_nano_usd for each in own)
        assert row.breaks == sum(row.changes.values()) == sum(each.breaks for each in own)
        assert row.lost_nano_usd == sum(each.lost_nano_usd for each in own)
    expected = {label for call in calls for label in sums_by_block(call)}
    assert rows.keys() == expected if view.label is None else rows.keys() <= {view.label}


def test_filters_offer_what_the_range_has() -> None:
    names = FILLED.names(View(since=ALL.since, until=ALL.until, app=APPS[0]))
    assert names.models == [model for model in MODELS if model]
    assert set(LABELS) <= set(names.labels)
    assert FILLED.names(View(since=0.0, until=60.0)).models == []


def walk(source: MemoryCalls, query: CallQuery) -> list[list[str]]:
    """The ids of each page of a list."""
    pages, before = [], query.before
    while True:
        page = source.calls(
            CallQuery(
                view=query.view,
                text=query.text,
                outcome=query.outcome,
                limit=query.limit,
                before=before,
            )
        )
        pages.append([shown.id for shown in page.calls])
        if (before := page.before) is None:
            return pages


def test_calls_are_listed_in_pages_from_the_newest_on() -> None:
    pages = walk(FILLED, CallQuery(view=ALL, limit=50))
    ids = [id for page in pages for id in page]
    assert ids == [str(number) for number in reversed(range(len(CALLS)))]
    assert {len(page) for page in pages[:-1]} == {50}


@each_row(
    ("query", "fits"),
    [
        (CallQuery(view=ALL, outcome="ok"), lambda call: call.outcome == "ok"),
        (CallQuery(view=ALL, outcome="failed"), lambda call: call.outcome != "ok"),
        (CallQuery(view=ALL, outcome="broke"), lambda call: call.broke),
        (CallQuery(view=ALL, text="CLAUDE"), lambda call: "claude" in call.model),
        (CallQuery(view=ALL, text="expired"), lambda call: call.cause == "expired"),
        (CallQuery(view=ALL, text="no call has this"), lambda _: False),
    ],
    ids=["ok", "failed", "broke", "model", "cause", "none"],
)
def test_calls_can_be_searched(query: CallQuery, fits: object) -> None:
    assert callable(fits)
    expected = [str(number) for number, call in enumerate(CALLS) if fits(call)]
    ids = [id for page in walk(FILLED, query) for id in page]
    assert ids == expected[::-1]


def test_conversations_have_their_calls_in_order() -> None:
    rows = FILLED.conversations(ALL, limit=1_000)
    assert {row.id for row in rows} == {call.conversation for call in CALLS} - {""}
    for row in rows:
        own = [call for call in CALLS if call.conversation == row.id]
        shown = FILLED.conversation(row.id)
        assert shown is not None
        assert [each.call for each in shown.calls] == own
        assert shown.row == row
        assert row.sums == sums_of(own)
        assert shown.left_out == 0
    assert len(FILLED.conversations(ALL, limit=5)) == 5
    assert FILLED.conversation("there is none") is None


def test_later_knowledge_of_side_calls_is_used() -> None:
    side: set[str] = set()
    source = MemoryCalls(is_side_call=lambda id: id in side)
    source.add(ShownCall(id="1", call=AuditEnvelope(at=NOW, model="m", conversation="7")))
    assert [row.side_call for row in source.conversations(ALL)] == []
    view = View(since=NOW - 60, until=NOW + 60)
    assert [row.side_call for row in source.conversations(view)] == [False]
    side.add("7")
    assert [row.side_call for row in source.conversations(view)] == [True]


def test_sums_outlive_the_calls_that_are_dropped() -> None:
    source = source_of(CALLS, most=10)
    assert source.overview(ALL).total == FILLED.overview(ALL).total
    newest = [shown.id for shown in source.calls(CallQuery(view=ALL)).calls]
    assert newest == [str(len(CALLS) - 1 - number) for number in range(10)]
    page = source.calls(CallQuery(view=ALL, before="0"))
    assert (page.calls, page.before) == ([], None)


def test_long_conversation_shows_its_latest_calls() -> None:
    source = source_of(
        AuditEnvelope(at=NOW - 2_000 + turn, model="m", conversation="long", turn=turn)
        for turn in range(1_200)
    )
    shown = source.conversation("long")
    assert shown is not None
    assert (len(shown.calls), shown.left_out, shown.row.sums.calls) == (500, 700, 1_200)
    assert shown.calls[-1].call.turn == 1_199


def test_names_are_bounded() -> None:
    draw = random.Random(7)
    source = source_of(
        AuditEnvelope(at=NOW - draw.random(), model=f"model-{number}") for number in range(1_500)
    )
    models = source.overview(View(since=NOW - 3_600, until=NOW)).models
    assert len(models) == 1_001
    assert models["other"].calls == 500


def test_version_grows_with_calls_and_when_all_are_dropped() -> None:
    source = MemoryCalls()
    versions = [source.version()]
    source.add(ShownCall(id="1", call=AuditEnvelope(at=NOW, model="m", conversation="7")))
    versions.append(source.version())
    source.clear()
    versions.append(source.version())
    assert versions == sorted(set(versions))
    view = View(since=NOW - 60, until=NOW + 60)
    assert source.overview(view).total.calls == 0
    assert source.conversations(view) == []


@pytest.mark.parametrize("make", [MemoryCalls, lambda: LogSums(charts=True)], ids=["calls", "sums"])
@pytest.mark.long
def test_tables_are_closed_once_nobody_has_the_calls(make: Callable[[], PastCalls]) -> None:
    source = make()
    with source.reading() as (database, _):
        pass
    database.execute("SELECT 1")
    del source
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")
