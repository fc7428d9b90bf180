"""Limits from response headers: scarce ones delay calls, plentiful or unknown ones do not."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors
from anaphora.client.config import LimitsConfig
from anaphora.client.limits import Limiter, ModelLane
from anaphora.client.limits.windows import StatedLimit
from anaphora.wire.response_headers import RemainingLimit

NOW = 1_794_744_000.0  # 2026-11-15T12:00:00Z


def limiter_with(**headers: str) -> tuple[Limiter, ModelLane]:
    """A limiter that read these headers at time 100; underscores become hyphens."""
    limiter = Limiter(LimitsConfig())
    lane = limiter.lane("m")
    lane.update({name.replace("_", "-"): value for name, value in headers.items()}, 100.0, NOW)
    return limiter, lane


def openai(kind: str, remaining: str, limit: str, reset: str) -> dict[str, str]:
    values = {"remaining": remaining, "limit": limit, "reset": reset}
    return {f"x_ratelimit_{of}_{kind}": value for of, value in values.items()}


def test_headroom_is_what_the_provider_stated() -> None:
    limiter, _ = limiter_with(**openai("requests", "1", "5", "40s"))
    assert limiter.headroom(100.0) == {"m: requests": pytest.approx(0.2)}
    assert limiter.headroom(120.0) == {"m: requests": pytest.approx(0.6)}
    assert limiter_with(**openai("requests", "4", "5", "10s"))[0].headroom(100.0) == {}


@each_row(
    "headers, tokens, wait",
    [
        ({}, 10**9, 0.0),
        # A request comes back every 12 s.
        (openai("requests", "0", "5", "1m0s"), 1, 12.0),
        (openai("requests", "1", "5", "48s"), 1, 0.0),
        # 500 tokens a second come back, and 3,000 are missing.
        (openai("tokens", "2000", "30000", "56s"), 5000, 6.0),
        (openai("tokens", "2000", "30000", "56s"), 2000, 0.0),
        # More than there ever is goes when everything is there: the provider decides.
        (openai("tokens", "0", "30000", "60s"), 90000, 60.0),
        # More than half is left.
        (openai("tokens", "20000", "30000", "20s"), 29000, 0.0),
        # No reset, or an unreadable one: the wait is unknown.
        ({"x_ratelimit_remaining_requests": "0", "x_ratelimit_limit_requests": "5"}, 1, 0.0),
        (openai("requests", "0", "5", "later"), 1, 0.0),
        (openai("tokens", "-1", "-1", "0"), 1, 0.0),
        # The standard's comes back all at once.
        ({"ratelimit_remaining": "0", "ratelimit_limit": "5", "ratelimit_reset": "30"}, 1, 30.0),
        ({"ratelimit_remaining": "0", "ratelimit_reset": "30"}, 1, 30.0),
        (
            {
                "anthropic_ratelimit_requests_remaining": "9",
                "anthropic_ratelimit_requests_limit": "50",
                "anthropic_ratelimit_requests_reset": "2026-11-15T12:00:50Z",
                "anthropic_ratelimit_output_tokens_remaining": "0",
                "anthropic_ratelimit_output_tokens_limit": "6000",
                "anthropic_ratelimit_output_tokens_reset": "2026-11-15T12:01:00Z",
            },
            1,
            0.01,
        ),
    ],
)
def test_wait_from_headers(headers: dict[str, str], tokens: int, wait: float) -> None:
    limiter, lane = limiter_with(**headers)
    assert limiter.wait(lane, tokens, 100.0) == pytest.approx(wait, abs=1e-4)
    held = limiter.reserve(lane, tokens, 100.0)
    assert held.at == pytest.approx(100.0 + wait, abs=1e-4)
    if wait:
        assert limiter.next_at(100.0) == pytest.approx(held.at)
        assert limiter.advance(100.0 + wait / 2) == []
        assert limiter.advance(held.at + 1e-6) == [held]


def starts_of(limiter: Limiter, lane: ModelLane, calls: int) -> list[float]:
    """When so many calls start that all come at time 100."""
    every, now = [limiter.reserve(lane, 1, 100.0) for _ in range(calls)], 100.0
    while limiter.waiting:
        now = limiter.next_at(now)
        limiter.advance(now)
    return [each.at for each in every]


def test_later_starts_are_subtracted() -> None:
    limiter, lane = limiter_with(**openai("requests", "2", "10", "48s"))
    assert starts_of(limiter, lane, 4) == pytest.approx([100.0, 100.0, 106.0, 112.0])


def test_unsent_calls_are_added_back() -> None:
    limiter, lane = limiter_with(**openai("requests", "1", "10", "54s"))
    limiter.cancel(limiter.reserve(lane, 1, 100.0), 100.0)
    assert limiter.wait(lane, 1, 100.0) == 0.0


def test_burst_after_the_reset_is_within_the_limit() -> None:
    limiter, lane = limiter_with(ratelimit_remaining="0", ratelimit_limit="3", ratelimit_reset="30")
    starts = starts_of(limiter, lane, 5)
    assert starts == pytest.approx([130.0, 130.0, 130.0, 150.0, 170.0])


def test_slow_refill_is_assumed_until_the_reset_only() -> None:
    limiter, lane = limiter_with(**openai("tokens", "2900", "6000", "100s"))
    limiter.reserve(lane, 2900, 100.0)
    # 3,100 have come back by then; the rest comes at the limit a minute.
    assert limiter.wait(lane, 6000, 100.0) == pytest.approx(129.0, abs=1e-4)


def test_latest_headers_count() -> None:
    limiter, lane = limiter_with(**openai("requests", "0", "5", "1m0s"))
    plenty = {"x-ratelimit-remaining-requests": "4", "x-ratelimit-limit-requests": "5"}
    assert lane.update(plenty, 101.0, NOW)
    assert limiter.wait(lane, 1, 101.0) == 0.0


def test_response_without_headers_changes_nothing() -> None:
    limiter, lane = limiter_with(**openai("requests", "0", "5", "1m0s"))
    assert not lane.update({"content-type": "text/html"}, 101.0, NOW)
    assert limiter.wait(lane, 1, 101.0) == pytest.approx(11.0, abs=1e-4)


def test_rate_limit_blocks_the_model_until_retry_after() -> None:
    limiter = Limiter(LimitsConfig())
    lane, other = limiter.lane("m"), limiter.lane("other")
    assert lane.block(errors.RateLimited("slow", retry_after=20.0), 100.0)
    assert lane.block(errors.RateLimited("slow", retry_after=5.0), 101.0)
    held = limiter.reserve(lane, 1, 102.0)
    assert (held.at, limiter.next_at(102.0)) == (120.0, 120.0)
    # Providers count each model for itself.
    assert limiter.reserve(other, 1, 102.0).state == "started"
    assert limiter.advance(120.0) == [held]


@pytest.mark.parametrize(
    "error",
    [
        errors.RateLimited("no wait given"),
        errors.Overloaded("busy", retry_after=20.0),
        errors.QuotaExhausted("cap", retry_after=20.0),
        errors.Transport("gone"),
    ],
)
def test_other_errors_block_nothing(error: errors.AnaphoraError) -> None:
    limiter = Limiter(LimitsConfig())
    assert not limiter.lane("m").block(error, 100.0)
    assert limiter.wait(limiter.lane("m"), 1, 100.0) == 0.0


limits = st.builds(
    RemainingLimit,
    st.just("requests"),
    st.integers(0, 50),
    st.none() | st.integers(1, 100),
    st.none(),
    st.booleans(),
)


@given(
    left=limits,
    reset=st.floats(0, 300),
    steps=st.lists(st.tuples(st.floats(0, 40), st.integers(0, 120)), max_size=12),
)
def test_stated_limit_opens_as_computed_and_waits_are_bounded(
    left: RemainingLimit, reset: float, steps: list[tuple[float, int]]
) -> None:
    stated, at = StatedLimit(left, reset, 0.0), 0.0
    for later, amount in steps:
        at += later
        opens = stated.opens(amount, at)
        assert opens >= at
        assert stated.opens(amount, opens + 1e-6) <= opens + 1e-6
        if opens - at > 1e-3:
            assert stated.opens(amount, (at + opens) / 2) > (at + opens) / 2
        # At the latest a minute after the reset, for each time the whole limit was taken before.
        assert opens <= max(at, reset) + 60 + 1e-6
        assert copy.copy(stated).opens(amount, at) == opens
        at = opens
        stated.take(min(amount, left.limit or amount), at)
