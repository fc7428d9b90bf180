"""Groups, prices at a date, unknown models and losses in a report."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.usage_files import answer, files_in

from anaphora.analysis.trace.programs import ProgramName
from anaphora.catalog.pricing import PriceBook
from anaphora.usage.collect import usage
from anaphora.usage.index import UsageIndex
from anaphora.usage.pieces import FilePiece, ReadPosition
from anaphora.usage.records import COUNTS, CallBill, CallLoss, usage_of
from anaphora.usage.report import UsageReport
from anaphora.usage.sums import UsageQuery, usage_report
from anaphora.usage.tally import NO_TIME

UTC = datetime.UTC
NOW = 1_795_000_000.0


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def call(
    number: int, when: str | float | None, model: str = "claude-sonnet-4-5", **given: Any
) -> CallBill:
    return CallBill(
        key=b"k%015d" % number,
        at=at(when) if isinstance(when, str) else when,
        session=given.pop("session", "s1"),
        provider=given.pop("provider", "anthropic"),
        model=model,
        line=number,
        **given,
    )  # fmt: skip


def filled(
    calls: list[CallBill], losses: Sequence[CallLoss] = (), program: ProgramName = "claude_code"
) -> UsageIndex:
    """An index with the calls of one file."""
    piece = FilePiece(
        path="/f", known=b"", anew=True, position=ReadPosition(), program=program, calls=calls
    )
    index = UsageIndex(None)
    assert index.add([piece]) == []
    index.add_losses(b"mark", ["/f"], [[*losses]], [])
    return index


def summed(index: UsageIndex, **given: Any) -> UsageReport:
    query = UsageQuery(**{"tz": UTC, **given})
    with index.counted(["/f"]):
        report = usage_report(index, query, now=NOW, with_causes=True)
    index.close()
    return report


CALLS = [
    call(1, "2026-10-31T23:30:00", output=1, session="a", project="/home/me/app"),
    call(2, "2026-11-01T00:10:00", output=2, session="a", project="/home/me/app"),
    call(3, "2026-11-02T12:00:00", output=4, session="b", project="/home/me/app/sub"),
    call(4, "2026-11-08T12:00:00", "claude-opus-4-6", output=8, session="c", project="/srv/other"),
    call(5, None, output=16, session="c", project="/srv/other"),
]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (
            "daily",
            {"2026-10-31": 1, "2026-11-01": 2, "2026-11-02": 4, "2026-11-08": 8, NO_TIME: 16},
        ),
        ("weekly", {"2026-10-26": 3, "2026-11-02": 12, NO_TIME: 16}),
        ("monthly", {"2026-10": 1, "2026-11": 14, NO_TIME: 16}),
        ("session", {"a": 3, "b": 4, "c": 24}),
        ("project", {"/srv/other": 24, "/home/me/app/sub": 4, "/home/me/app": 3}),
        ("model", {"claude-sonnet-4-5": 23, "claude-opus-4-6": 8}),
        ("program", {"claude_code": 31}),
    ],
)
def test_groups(by: Any, expected: dict[str, int]) -> None:
    report = summed(filled(CALLS), by=by)
    assert {row.name: row.output for row in report.rows} == expected
    assert [row.name for row in report.rows] == [*expected]
    assert report.total.output == sum(row.output for row in report.rows) == 31
    assert [(row.name, row.calls) for row in report.programs] == [("claude_code", 5)]


def test_days_of_a_time_zone() -> None:
    report = summed(filled(CALLS[:3]), tz=ZoneInfo("Asia/Kathmandu"))
    assert [(row.name, row.output) for row in report.rows] == [("2026-11-01", 3), ("2026-11-02", 4)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"since": at("2026-11-01T00:10:00")}, {2, 4, 8}),
        ({"until": at("2026-11-02T12:00:00")}, {1, 2}),
        ({"since": at("2026-11-01T00:10:01"), "until": at("2026-11-02T12:00:01")}, {4}),
        ({"project": "/home/me/app"}, {1, 2, 4}),
        ({"project": "other"}, {8, 16}),
        ({"project": "sub/"}, {4}),
        ({"project": "/home/me/ap"}, set()),
        ({"session": "b"}, {4}),
        ({"programs": ("claude_code",)}, {1, 2, 4, 8, 16}),
        ({"programs": ("codex",)}, set()),
    ],
)
def test_only_chosen_calls(given: dict[str, Any], expected: set[int]) -> None:
    report = summed(filled(CALLS), **given)
    assert report.total.output == sum(expected)
    assert report.total.calls == len(expected)


def test_row_has_times_models_and_project() -> None:
    (row,) = (row for row in summed(filled(CALLS), by="session").rows if row.name == "c")
    assert (row.began, row.ended) == (CALLS[3].at, CALLS[3].at)
    assert set(row.models) == {"claude-opus-4-6", "claude-sonnet-4-5"}
    assert (row.programs, row.project) == (("claude_code",), "/srv/other")


# ── Prices ───────────────────────────────────────────────────────────────────────────────────────

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),  # dearer above 200,000 tokens
    ("anthropic", "claude-opus-4-6"),
    ("openai", "gpt-5.4"),  # dearer above 272,000 tokens
    ("openai", "gpt-5.6"),  # writes for 30 minutes have a price
    ("deepseek", "deepseek-chat"),  # cheaper at night for a time
    ("anthropic", "no-such-model"),
    ("elsewhere", "gpt-5"),
]
counts = st.integers(0, 300_000)
billed = st.builds(
    lambda model, time, uncached, read, hour, five, output, tier: {
        "provider": model[0],
        "model": model[1],
        "when": time,
        "tier": tier,
        "uncached": uncached,
        "read": read,
        "written_5m": five if model[0] == "anthropic" else 0,
        "written_30m": five if model[0] == "openai" else 0,
        "written_1h": hour if model[0] == "anthropic" else 0,
        "output": output,
    },
    st.sampled_from(MODELS),
    st.floats(1_735_000_000, 1_790_000_000),
    counts, counts, st.sampled_from([0, 7]), st.sampled_from([0, 9]), counts,
    st.sampled_from(["", "", "priority"]),
)  # fmt: skip


@given(st.lists(billed, min_size=1, max_size=40))
def test_sums_cost_what_the_calls_cost(made: list[dict[str, Any]]) -> None:
    calls = [call(number, **one) for number, one in enumerate(made)]
    report = summed(filled(calls), by="model")
    prices = PriceBook(NOW)
    expected, unpriced = Decimal(0), 0
    for one in calls:
        price = prices.price(one.provider, one.model, one.at, service_tier=one.tier)
        usd = None if price is None else price.of(usage_of([getattr(one, name) for name in COUNTS]))
        expected += usd or 0
        unpriced += usd is None
    assert report.total.usd == expected
    assert report.total.unpriced == unpriced == sum(one.calls for one in report.unpriced)


def test_the_end_of_time_has_a_day_in_no_time_zone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(answer("m1", at="9999-12-31T23:59:59Z"))
    query = UsageQuery(tz=ZoneInfo("Pacific/Kiritimati"))
    report = usage(query, files_in(tmp_path), index=tmp_path / "index.sqlite")
    assert [row.name for row in report.rows] == [NO_TIME]


def test_price_is_that_of_the_call_s_date() -> None:
    """Until 2026-03-13, Opus 4.6 was dearer above 200,000 tokens."""
    days = ["2026-03-12T23:59:59", "2026-03-13T00:00:00"]
    calls = [call(n, day, "claude-opus-4-6", uncached=300_000) for n, day in enumerate(days)]
    calls += [call(2, days[0], "claude-opus-4-6", uncached=200_000)]
    rows = summed(filled(calls)).rows
    assert [(row.name, row.usd) for row in rows] == [
        ("2026-03-12", Decimal("4.0")),
        ("2026-03-13", Decimal("1.5")),
    ]


def test_unknown_model_is_listed_with_its_tokens() -> None:
    calls = [
        call(1, "2026-11-01T10:00:00", "nobody-1", uncached=10, read=20, output=3),
        call(2, "2026-11-01T10:00:00", "nobody-1", written_1h=7),
        call(3, "2026-11-01T10:00:00", uncached=100_000),
    ]
    report = summed(filled(calls))
    (row,) = report.rows
    assert (row.calls, row.unpriced, row.usd) == (3, 2, Decimal("0.3"))
    (unknown,) = report.unpriced
    assert (unknown.provider, unknown.model) == ("anthropic", "nobody-1")
    assert (unknown.calls, unknown.tokens) == (2, 40)


# ── Losses ───────────────────────────────────────────────────────────────────────────────────────

LOSSES = [
    CallLoss(CALLS[0].key, "expired", 100, 5_000_000, "Expired."),
    CallLoss(CALLS[1].key, "expired", 50, 1_000_000, "Expired."),
    CallLoss(CALLS[2].key, "expired", 10, None, "Expired, at an unknown price."),
    CallLoss(CALLS[2].key, "tools_changed", 30, 9_000_000, "A tool changed."),
]


def test_losses_are_in_rows_causes_and_the_most_expensive() -> None:
    report = summed(filled(CALLS, LOSSES), most_expensive=3)
    assert report.causes is not None
    assert [(one.cause, one.calls, one.tokens, one.usd) for one in report.causes] == [
        ("tools_changed", 1, 30, Decimal("0.009")),
        ("expired", 3, 160, Decimal("0.006")),
    ]
    lost = [(row.name, row.lost, row.lost_usd) for row in report.rows if row.lost]
    assert lost == [
        ("2026-10-31", 100, Decimal("0.005")),
        ("2026-11-01", 50, Decimal("0.001")),
        ("2026-11-02", 40, Decimal("0.009")),
    ]
    assert (report.total.lost, report.total.lost_usd) == (190, Decimal("0.015"))
    assert report.programs[0].lost == 190
    assert [(one.tokens, one.usd, one.line) for one in report.most_expensive] == [
        (30, Decimal("0.009"), 3),
        (100, Decimal("0.005"), 1),
        (50, Decimal("0.001"), 2),
    ]
    first = report.most_expensive[0]
    assert (first.file, first.session, first.at) == ("/f", "b", CALLS[2].at)
    assert first.sentence == "A tool changed."


def test_losses_of_other_calls_are_left_out() -> None:
    report = summed(filled(CALLS, LOSSES), since=at("2026-11-01T00:00:00"), session="a")
    assert (report.total.lost, len(report.most_expensive)) == (50, 1)
    assert report.causes is not None
    assert [one.calls for one in report.causes] == [1]


def test_loss_of_a_copied_answer_counts_once(tmp_path: Path) -> None:
    first = answer("m1", 1_780_000_000, cache_read_input_tokens=0, hour=50_000)
    lost = answer("m2", 1_780_010_000, cache_read_input_tokens=0, hour=60_000)
    (tmp_path / "a.jsonl").write_bytes(first + lost)
    index = tmp_path / "i.sqlite"
    alone = usage(None, files_in(tmp_path), causes=True, index=index, processes=1)
    (tmp_path / "b.jsonl").write_bytes(first + lost + answer("m3", 1_780_010_060, sessionId="s2"))
    both = usage(None, files_in(tmp_path), causes=True, index=index, processes=1)
    assert both.total.calls == 3
    assert alone.total.lost == both.total.lost


def test_fast_mode_has_its_own_row_and_price() -> None:
    fast = [call(n, "2026-11-01T12:00:00", "claude-opus-4-8", output=10**6) for n in (1, 2)]
    fast[1] = replace(fast[1], tier="fast")
    report = summed(filled(fast), by="model")
    assert {row.name: row.usd for row in report.rows} == {
        "claude-opus-4-8": Decimal(25),
        "claude-opus-4-8, fast mode": Decimal(50),
    }
    assert not report.unpriced
