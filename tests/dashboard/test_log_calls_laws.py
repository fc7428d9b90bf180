"""For any calls, views and moments of filling: sums equal those over the rows of the log."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.block_sums import sums_by_block

from anaphora.audit import AuditEnvelope, AuditLog
from anaphora.audit.envelope import AuditBlock, AuditUsage, OwnFigures
from anaphora.dashboard.past_calls.queries import pieces, whole_pieces
from anaphora.dashboard.past_calls.schema import HOUR, MINUTE, STEPS, FillState
from anaphora.dashboard.past_calls.source import LogCalls
from anaphora.dashboard.past_calls.sums import BlockSums, CallTotals, figures_of, masked
from anaphora.dashboard.values import CallQuery, View
from anaphora.dashboard.view import steps_of

NOW = 1_800_000_123.0
APPS, PROVIDERS = ("shop", "hr", "other"), ("anthropic", "openai", "")
MODELS, LABELS = ("claude-sonnet-5-5", "gpt-5.2"), ("identity", "tools", "tail")


def _with_own_usage(call: AuditEnvelope) -> AuditEnvelope:
    """An app sees the same input and output, with fewer reads."""
    if call.own is None:
        return call
    usage, hidden = call.usage, (call.usage.read or 0) // 2
    seen = replace(usage, read=(usage.read or 0) - hidden, uncached=(usage.uncached or 0) + hidden)
    return replace(call, own=replace(call.own, usage=seen))


counts = st.integers(0, 3_000)
amounts = st.none() | st.integers(0, 10**9)
usages = st.builds(
    AuditUsage,
    uncached=st.none() | counts,
    read=st.none() | counts,
    written=st.none() | st.dictionaries(st.sampled_from(("5m", "1h")), counts, max_size=2),
    output=st.none() | counts,
)
blocks = st.lists(
    st.builds(AuditBlock, label=st.sampled_from(LABELS), kind=st.just("system"), tokens=counts),
    max_size=4,
).map(tuple)
calls = st.builds(
    AuditEnvelope,
    # Minutes, hours, days and weeks ago.
    at=st.floats(0, 1).flatmap(
        lambda share: st.sampled_from([100.0, 9_000.0, 200_000.0, 6_000_000.0]).map(
            lambda most: round(NOW - share * most, 3)
        )
    ),
    app=st.sampled_from(APPS),
    provider=st.sampled_from(PROVIDERS),
    model=st.sampled_from(MODELS),
    outcome=st.sampled_from(("ok", "ok", "Overloaded", "GrantExceeded")),
    repeats=st.sampled_from((1, 1, 7)),
    attempts=st.integers(0, 3),
    usage=usages,
    cost_nano_usd=amounts,
    output_nano_usd=amounts,
    saved_nano_usd=amounts,
    unbilled_nano_usd=st.sampled_from((0, 0, 77)),
    own=st.none() | st.builds(OwnFigures, cost_nano_usd=amounts),
    broke=st.booleans(),
    cause=st.none() | st.sampled_from(("system_changed", "expired")),
    change=st.none() | st.just("date"),
    changed=st.none() | st.sampled_from(LABELS),
    lost=st.sampled_from((0, 0, 1_000)),
    lost_nano_usd=amounts,
    conversation=st.sampled_from(("", "a1", "b2")),
    first=st.none() | st.floats(0, 100),
    blocks=blocks,
).map(_with_own_usage)
moments = st.sampled_from([0.0, 50.5, 3_600.0, 8_000.25, 90_000.0, 604_800.0, 7_000_000.0])


@st.composite
def views(draw: st.DrawFn) -> View:
    before, after = sorted((draw(moments), draw(moments)))
    return View(
        since=NOW - after - 1,
        until=NOW - before,
        range="custom",
        app=draw(st.none() | st.sampled_from(APPS)),
        provider=draw(st.none() | st.sampled_from(PROVIDERS[:2])),
        model=draw(st.none() | st.sampled_from(MODELS)),
        label=draw(st.none() | st.sampled_from(LABELS)),
    )


def fits(call: AuditEnvelope, view: View) -> bool:
    return (
        view.since <= call.at < view.until
        and view.app in (None, call.app)
        and view.provider in (None, call.provider)
        and view.model in (None, call.model)
        and (view.label is None or any(block.label == view.label for block in call.blocks))
    )


def summed(calls: list[AuditEnvelope]) -> CallTotals:
    sums = CallTotals()
    for call in calls:
        sums.add_sums(CallTotals(*figures_of(call)))
    return sums


class Killed(Exception):
    """In place of a kill within a batch."""


def kill(_: float) -> None:
    raise Killed


@pytest.mark.soak
@given(data=st.data(), rows=st.lists(st.lists(calls, max_size=6), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_sums_equal_those_of_the_rows(data: st.DataObject, rows: list[list[AuditEnvelope]]) -> None:
    """However the rows arrived, with kills in between, for the operator and for an app."""
    written = [call for some in rows for call in some]
    with tempfile.TemporaryDirectory() as folder:
        source = _filled(Path(folder), rows, data)
        view = data.draw(views())
        for app in (None, data.draw(st.sampled_from(APPS))):
            seen = written if app is None else [masked(one) for one in written if one.app == app]
            of = source if app is None else source.for_app(app)
            selected = [call for call in seen if fits(call, view)]
            _check_overview(of, view, seen)
            _check_blocks(of, view, seen)
            listed = [shown.call for shown in of.calls(CallQuery(view=view, limit=100)).calls]
            assert sorted(call.at for call in listed) == sorted(call.at for call in selected)
        source.close()


def _filled(folder: Path, rows: list[list[AuditEnvelope]], data: st.DataObject) -> LogCalls:
    log = folder / "audit"
    # The thread fills while hours and days go by.
    times = [NOW - 200_000.0]
    clock = partial(max, times)
    source = LogCalls(folder / "dashboard.db", log, clock=clock)
    with AuditLog(log, segment_bytes=data.draw(st.sampled_from((500, 10**6)))) as audit:
        for some in rows:
            for call in some:
                audit.append(call)
            audit.flush()
            times.append(times[-1] + data.draw(st.sampled_from((0.0, 4_000.0, 60_000.0))))
            match data.draw(st.sampled_from(("fill", "wait", "kill"))):
                case "fill":
                    source.fill()
                case "kill":
                    with suppress(Killed):
                        source.fill(kill)
                    source.close()
                    source = LogCalls(folder / "dashboard.db", log, clock=clock)
    times.append(NOW)
    source.fill()
    return source


def _check_overview(source: LogCalls, view: View, seen: list[AuditEnvelope]) -> None:
    selected = [call for call in seen if fits(call, view)]
    # Charts begin with the first call, whether it is in the view or not.
    first = min((call.at for call in seen), default=None)
    overview, steps = source.overview(view), steps_of(view, first)
    assert [point.start for point in overview.points] == [each.start for each in steps.points()]
    assert overview.total == summed(selected)
    for number, point in enumerate(overview.points):
        own = [call for call in selected if steps.index(call.at) == number]
        assert point.sums == summed(own)
    groups = {"app": overview.apps, "provider": overview.providers, "model": overview.models}
    for field, named in groups.items():
        for text, sums in named.items():
            assert sums == summed([call for call in selected if getattr(call, field) == text])
    for cause, sums in overview.causes.items():
        lost = [call for call in selected if call.lost and (call.cause or "unknown") == cause]
        assert sums == summed(lost)
    for outcome, count in overview.outcomes.items():
        assert count == sum(call.repeats for call in selected if call.outcome == outcome)
    rows = {row.name: row for row in source.providers(view)}
    for text, row in rows.items():
        own = [call for call in selected if call.provider == text]
        assert row.retries == sum(max(call.attempts - 1, 0) for call in own)


def _check_blocks(source: LogCalls, view: View, seen: list[AuditEnvelope]) -> None:
    """Over the whole steps that the range is widened to."""
    found = whole_pieces(view.since, view.until, source.state())
    expected: dict[str, BlockSums] = {}
    unlabelled = View(
        since=found[0].since,
        until=found[-1].until,
        app=view.app,
        provider=view.provider,
        model=view.model,
    )
    for call in seen:
        if fits(call, unlabelled):
            for label, figures in sums_by_block(call).items():
                if view.label in (None, label):
                    expected.setdefault(label, BlockSums()).add_sums(figures)
    rows = {row.label: row for row in source.blocks(view)}
    assert rows.keys() == expected.keys()
    for label, sums in expected.items():
        for field in ("calls", "tokens", "read", "cost_nano_usd", "breaks", "lost", "changes"):
            assert getattr(rows[label], field) == getattr(sums, field)


@given(
    since=st.floats(0, 1e7),
    length=st.floats(0.001, 3e6),
    within=st.sampled_from([60, 900, 3_600, 7_200, 28_800, 604_800]),
    minutes=st.integers(0, 3_000),
    hours=st.integers(0, 30),
    calls_since=st.just(0.0) | st.floats(0, 1e7),
)
def test_pieces_cover_a_range_once(
    since: float, length: float, within: int, minutes: int, hours: int, calls_since: float
) -> None:
    longer = float((minutes + hours) * HOUR)
    state = FillState(
        minutes_since=float(minutes * HOUR), longer_until=longer, calls_since=calls_since
    )
    until = since + length
    for found in (pieces(since, until, within, state), whole_pieces(since, until, state)):
        assert found[0].since <= since
        assert found[-1].until >= until
        # Widened by less than an hour, the longest step that must be used.
        assert since - found[0].since < HOUR
        assert found[-1].until - until < HOUR
        for before, after in pairwise(found):
            assert before.until == after.since
        for piece in found:
            assert piece.since < piece.until
            assert piece.step in (0, *STEPS)
            if piece.step:
                assert piece.since % piece.step == piece.until % piece.step == 0
            if 0 < piece.step < HOUR:
                assert piece.since >= state.minutes_since
            if piece.step > MINUTE:
                assert piece.until <= state.longer_until
    if not calls_since:
        exact = pieces(since, until, within, state)
        assert (exact[0].since, exact[-1].until) == (since, until)
