"""Requests and tokens a minute of each app: never more than granted, and exact times to wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora.daemon.access.grants import AppGrant, LlmGrant
from anaphora.daemon.access.rates import MINUTE, GrantRates, TakenRate
from anaphora.daemon.values import App
from anaphora.errors import GrantRateLimited, NotGranted

START = 1_000_000.0


class Rates:
    """The rates of one node, at times that a test chooses."""

    def __init__(self) -> None:
        self.now = START
        self._rates = GrantRates(clock=lambda: self.now)
        self.correct = self._rates.correct

    def admit(self, app: App, tokens: int, now: float) -> TakenRate:
        self.now = now
        return self._rates.admit(app, tokens)


def app_with(name: str = "a", *, requests: int | None = None, tokens: int | None = None) -> App:
    llm = LlmGrant(requests_per_minute=requests, tokens_per_minute=tokens)
    return App(id=name, grant=AppGrant(app=name, llm=llm))


def test_requests_are_limited_per_app() -> None:
    rates, busy, other = Rates(), app_with(requests=2), app_with("b", requests=1)
    rates.admit(busy, 10, START)
    rates.admit(busy, 10, START)
    with pytest.raises(GrantRateLimited, match="requests_per_minute of the grant is 2") as refused:
        rates.admit(busy, 10, START + 1)
    assert refused.value.limit == "requests_per_minute"
    rates.admit(other, 10, START + 1)


def test_tokens_are_limited_and_corrected_by_the_bill() -> None:
    rates, app = Rates(), app_with(tokens=100)
    first = rates.admit(app, 90, START)
    with pytest.raises(GrantRateLimited, match="tokens_per_minute"):
        rates.admit(app, 20, START)
    rates.correct(first, 30)
    rates.admit(app, 70, START)
    with pytest.raises(GrantRateLimited):
        rates.admit(app, 1, START)


def test_call_that_was_not_sent_takes_no_tokens() -> None:
    rates, app = Rates(), app_with(tokens=100)
    rates.correct(rates.admit(app, 100, START), 0)
    rates.admit(app, 100, START)


def test_call_larger_than_a_minute_is_not_worth_waiting_for() -> None:
    with pytest.raises(NotGranted, match=r"may take 101 tokens; tokens_per_minute .* is 100"):
        Rates().admit(app_with(tokens=100), 101, START)


def test_correction_after_the_minute_changes_nothing() -> None:
    rates, app = Rates(), app_with(tokens=100)
    late = rates.admit(app, 10, START)
    rates.admit(app, 100, START + 2 * MINUTE)
    rates.correct(late, 5_000)
    with pytest.raises(GrantRateLimited):
        rates.admit(app, 1, START + 2 * MINUTE)
    rates.admit(app, 100, START + 4 * MINUTE)


def test_app_without_rates_is_not_limited() -> None:
    rates, app = Rates(), app_with()
    for _ in range(1000):
        rates.admit(app, 10**9, START)


@settings(max_examples=60)
@given(
    requests=st.none() | st.integers(1, 5),
    tokens=st.none() | st.integers(10, 50),
    calls=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 10)), max_size=40),
)
def test_no_minute_holds_more_than_granted(
    requests: int | None, tokens: int | None, calls: list[tuple[float, int]]
) -> None:
    """A sliding window, and `retry_after` is exact: a call at that time is admitted, one shortly
    before is not."""
    rates, app = Rates(), app_with(requests=requests, tokens=tokens)
    now, admitted = START, list[tuple[float, int]]()
    for pause, size in calls:
        now += pause
        try:
            rates.admit(app, size, now)
        except GrantRateLimited as refused:
            wait = refused.retry_after
            assert wait is not None
            assert 0 < wait <= MINUTE + 0.25
            with pytest.raises(GrantRateLimited):
                rates.admit(app, size, now + wait - 0.01)
            now += wait
            rates.admit(app, size, now)
        admitted.append((now, size))
        window = [each for each in admitted if each[0] > now - MINUTE]
        assert requests is None or len(window) <= requests
        assert tokens is None or sum(size for _, size in window) <= tokens
