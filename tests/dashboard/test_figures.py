"""Numbers, times and names of the pages."""

from __future__ import annotations

import math
from typing import Any

import htpy
import pytest
from support.tables import each_row

from anaphora.audit import AuditEnvelope
from anaphora.dashboard.figures import (
    call_cost,
    count,
    local_time,
    lost,
    lost_usd,
    name,
    percent,
    plain_name,
    seconds,
    short_id,
    spent,
    tokens,
    usd,
    utc,
)
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.wording import compact


@each_row(
    "nano, shown",
    [
        (None, "unknown"),
        (0, "$0"),
        (1_234_560_000_000, "$1,234.56"),
        (1_000_000_000, "$1.00"),
        (500_000_000, "$0.5000"),
        (1_200_000, "$0.0012"),
        (12_345, "$0.000012"),
        (1, "$0.000000001"),
        (-2_500_000_000, "-$2.50"),
    ],
)
def test_dollars(nano: int | None, shown: str) -> None:
    assert usd(nano) == shown


@pytest.mark.parametrize(
    "sums, shown",
    [
        (CallTotals(calls=2), ("$0", "$0")),
        (CallTotals(calls=2, cost_nano_usd=12 * 10**9, lost=5, lost_nano_usd=10**9), ("$12.00", "$1.00")),
        (CallTotals(calls=2, cost_nano_usd=12 * 10**9, unpriced=1), ("$12.00+", "$0")),
        (CallTotals(calls=2, unpriced=2, lost=5), ("unknown", "unknown")),
    ],
)  # fmt: skip
def test_unknown_cost_of_calls_is_not_zero(sums: CallTotals, shown: tuple[str, str]) -> None:
    assert (spent(sums), lost_usd(sums)) == shown


@each_row(
    "fields, shown",
    [
        ({"cost_nano_usd": 2 * 10**9}, "$2.00"),
        ({}, "unknown"),
        ({"outcome": "Overloaded"}, "–"),
        ({"outcome": "Transport", "unbilled_nano_usd": 10**9}, "$1.00, $1.00 of it without a bill"),
        (
            {"cost_nano_usd": 2 * 10**9, "unbilled_nano_usd": 10**9},
            "$3.00, $1.00 of it without a bill",
        ),
    ],
)
def test_cost_of_one_call(fields: dict[str, Any], shown: str) -> None:
    assert call_cost(AuditEnvelope(at=0.0, model="m", **fields)) == shown


@each_row(
    "share, shown",
    [
        (None, "–"),
        (0.0, "0%"),
        (0.873, "87%"),
        (1.0, "100%"),
        (0.997, "99.7%"),
        (0.004, "0.4%"),
        (0.999999, "99.9%"),  # not all of it
        (0.000001, "0.1%"),  # not nothing
        (1.5, "150%"),
        (-0.2, "-20%"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_shares(share: float | None, shown: str) -> None:
    assert percent(share) == shown


@each_row(
    "duration, shown",
    [
        (None, "unknown"),
        (0.0, "0 ms"),
        (0.352, "352 ms"),
        (1.0, "1 s"),
        (3.14159, "3.1 s"),
        (42.0, "42 s"),
        (300.0, "5 min"),
        (5_400.0, "1.5 h"),
        (864_000.0, "10 days"),
        (-2.0, "-2 s"),
        (math.nan, "unknown"),
    ],
)
def test_durations(duration: float | None, shown: str) -> None:
    assert seconds(duration) == shown


def test_counts_have_separators_and_units() -> None:
    assert (count(1_234_567), count(-3), count(None)) == ("1,234,567", "-3", "unknown")
    assert (tokens(1), tokens(12_345)) == ("1 token", "12,345 tokens")
    assert lost(12_345, 5_000_000) == "12,345 tokens, $0.0050 lost"
    assert lost(1, None) == "1 token, cost unknown"


@each_row(
    "number, shown",
    [(0, "0"), (950, "950"), (12_500, "12.5k"), (3e6, "3M"), (-2_500, "-2.5k"), (1e30, "1e+30")],
)
def test_axis_labels_are_short(number: float, shown: str) -> None:
    assert compact(number) == shown


def test_times_are_utc_and_marked_so() -> None:
    assert str(local_time(1_795_871_100.0)) == (
        '<time class="local" datetime="2026-11-28T13:05:00Z" data-form="minute">'
        "2026-11-28 13:05 UTC</time>"
    )


@each_row("at", [None, math.nan, math.inf, 1e30, -1e30])
def test_what_is_no_time_is_unknown(at: float | None) -> None:
    assert utc(at) == "unknown time"
    assert "unknown time" in str(local_time(at))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a\u202egnp.exe", "x" * 10_240, ""])
def test_names_are_text_of_their_own_direction_and_cut_visibly(text: str) -> None:
    shown = str(htpy.fragment[name(text)])
    assert "<script" not in shown
    assert len(shown) < 300
    if text:
        assert shown.startswith("<bdi")
    if len(text) > 80:
        assert "… (10,240 characters)" in shown


def test_names_without_an_element_change_no_direction() -> None:
    assert plain_name("a\u202eb") == "a\ufffdb"
    assert plain_name("y" * 100) == "y" * 80 + "… (100 characters)"


@each_row(
    ("id", "is_short"),
    [
        ("req_8738ddcdd13e70e6870eb509", True),
        ("019a957e7c9c4f3a8b0f00000001.0001", True),
        ("8f14e45f-ceea-467f-9f0e-2b1a3c4d5e6f", True),
        ("tok_fac66bfcf11b", False),
        ("support-ticket-of-november", False),
        ("<script>", False),
    ],
)
def test_long_hexadecimal_ids_are_short_and_whole_under_the_pointer(
    id: str, is_short: bool
) -> None:
    shown = str(htpy.fragment[short_id(id)])
    assert shown == (f'<bdi class="id" title="{id}">{id}</bdi>' if is_short else shown)
    assert ("title=" in shown) == is_short
