"""The limiter's arithmetic, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors
from anaphora.client.config import LimitsConfig, Rate
from anaphora.client.limits import Limiter, Reservation
from anaphora.errors import RateLimited
from anaphora.values import Usage

INF = float("inf")


def most_in_a_minute(starts: Iterable[tuple[float, int]]) -> int:
    """The largest sum in any 60 seconds."""
    every = list(starts)
    return max(
        (sum(n for at, n in every if begin <= at < begin + 60) for begin, _ in every), default=0
    )


class Drive:
    """Advances the clock from event to event and starts the calls that may start."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.limiter = Limiter(limits)
        self.at = 0.0
        self.started: list[Reservation] = []

    def come(self, tokens: int, model: str = "m") -> Reservation:
        held = self.limiter.reserve(self.limiter.lane(model), tokens, self.at)
        if held.state == "started":
            self.started.append(held)
        return held

    def until(self, then: float) -> None:
        while (soon := self.limiter.next_at(self.at)) <= then and soon < INF:
            assert soon >= self.at
            self.at = soon
            before = len(self.started)
            self.look()
            # Every stop is worth it, or there is another one later: never the same one again.
            assert len(self.started) > before or self.limiter.next_at(self.at) > self.at
        self.at = max(self.at, then) if then < INF else self.at

    def look(self) -> None:
        self.started += self.limiter.advance(self.at)


def naive(arrivals: list[tuple[float, int]], requests: float, tokens: float) -> list[float]:
    """First come, first served, by trying every moment that could be the first."""
    started: list[tuple[float, int]] = []
    for came, amount in arrivals:
        earliest = max([came, *(at for at, _ in started)])
        for at in sorted([earliest, *(begun + 60 for begun, _ in started)]):
            recent = [n for begun, n in started if begun + 60 > at]
            if at >= earliest and len(recent) < requests and sum(recent) + amount <= tokens:
                started.append((at, amount))
                break
    return [at for at, _ in started]


arrivals = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.5, 7.0, 30.0, 61.0]), st.integers(0, 40)), max_size=25
)
rates = st.tuples(st.none() | st.integers(1, 6), st.none() | st.integers(40, 120))


@given(arrivals=arrivals, rate=rates)
def test_calls_start_at_the_first_allowed_time(
    arrivals: list[tuple[float, int]], rate: tuple[int | None, int | None]
) -> None:
    requests, tokens = rate
    drive = Drive(LimitsConfig(requests_per_minute=requests, tokens_per_minute=tokens))
    came: list[tuple[float, int]] = []
    order: list[Reservation] = []
    least: dict[Reservation, float] = {}
    for gap, amount in arrivals:
        drive.until(drive.at + gap)
        came.append((drive.at, amount))
        wait = drive.limiter.wait(drive.limiter.lane("m"), amount, drive.at)
        held = drive.come(amount)
        order.append(held)
        assert held.at == drive.at + wait
        least[held] = held.at
    drive.until(INF)
    assert drive.started == order
    assert [held.at for held in order] == naive(came, requests or INF, tokens or INF)
    assert all(held.at >= least[held] for held in order)
    assert most_in_a_minute((held.at, 1) for held in order) <= (requests or INF)
    assert most_in_a_minute((held.at, held.tokens) for held in order) <= (tokens or INF)


@given(arrivals=arrivals, requests=st.integers(1, 6))
def test_starts_satisfy_token_buckets_and_clock_minutes(
    arrivals: list[tuple[float, int]], requests: int
) -> None:
    drive = Drive(LimitsConfig(requests_per_minute=requests))
    for gap, amount in arrivals:
        drive.until(drive.at + gap)
        drive.come(amount)
    drive.until(INF)
    level, last = float(requests), 0.0
    minutes: dict[float, int] = {}
    for held in drive.started:
        # A bucket that fills up continuously,
        level = min(requests, level + (held.at - last) * requests / 60) - 1
        last = held.at
        assert level > -1e-9
        # and minutes on the clock.
        minutes[held.at // 60] = minutes.get(held.at // 60, 0) + 1
        assert minutes[held.at // 60] <= requests


several = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 1.0, 20.0]), st.integers(0, 40), st.sampled_from("abc")),
    max_size=25,
)


@given(arrivals=several, shared=rates, own=rates)
def test_provider_and_model_limits_both_hold(
    arrivals: list[tuple[float, int, str]],
    shared: tuple[int | None, int | None],
    own: tuple[int | None, int | None],
) -> None:
    limits = LimitsConfig(
        requests_per_minute=shared[0],
        tokens_per_minute=shared[1],
        models={"a": Rate(requests_per_minute=own[0], tokens_per_minute=own[1])},
    )
    drive = Drive(limits)
    order: list[Reservation] = []
    for gap, amount, model in arrivals:
        drive.until(drive.at + gap)
        order.append(drive.come(amount, model))
    drive.until(INF)
    assert sorted(held.number for held in drive.started) == [held.number for held in order]
    for model in "abc":
        mine = [held for held in drive.started if held.lane.model == model]
        assert [held.number for held in mine] == sorted(held.number for held in mine)
    for (requests, tokens), models in ((shared, "abc"), (own, "a")):
        those = [held for held in drive.started if held.lane.model in models]
        assert most_in_a_minute((held.at, 1) for held in those) <= (requests or INF)
        assert most_in_a_minute((held.at, held.tokens) for held in those) <= (tokens or INF)
    # Calls that wait only for shared limits start in order.
    free = [held.number for held in drive.started if held.lane.model in "bc"]
    assert free == sorted(free)


def test_call_that_waits_for_its_model_is_overtaken() -> None:
    drive = Drive(LimitsConfig(requests_per_minute=10, models={"a": Rate(requests_per_minute=1)}))
    first, second, other = drive.come(1, "a"), drive.come(1, "a"), drive.come(1, "b")
    assert (first.state, second.state, other.state) == ("started", "waiting", "started")
    assert second.at == 60.0


def test_call_that_waits_for_shared_limits_is_not_overtaken() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100))
    drive.come(80, "a")
    big, small = drive.come(50, "a"), drive.come(10, "b")
    assert (big.state, small.state) == ("waiting", "waiting")
    drive.until(INF)
    assert drive.started[1:] == [big, small]
    assert big.at == small.at == 60.0


def test_overtaken_call_starts_first_once_it_may() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100, models={"a": Rate(requests_per_minute=1)}))
    for at, tokens, model in ((0.0, 60, "b"), (10.0, 10, "a"), (20.0, 30, "b"), (30.0, 0, "c")):
        drive.until(at)
        drive.come(tokens, model)
    overtaken, other, last = drive.come(50, "a"), drive.come(30, "b"), drive.come(40, "b")
    drive.until(INF)
    # Only the other call left too little for it.
    assert (other.at, overtaken.at, last.at) == (60.0, 80.0, 120.0)


changes = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "settle", "cancel", "stop", "later"]),
        st.integers(0, 40),
        st.sampled_from("ab"),
        st.floats(0, 25),
    ),
    max_size=50,
)


@given(changes=changes, shared=rates, places=st.none() | st.integers(1, 3))
def test_limits_hold_and_every_call_starts_despite_changes(
    changes: list[tuple[str, int, str, float]],
    shared: tuple[int | None, int | None],
    places: int | None,
) -> None:
    drive = Drive(
        LimitsConfig(
            requests_per_minute=shared[0],
            tokens_per_minute=shared[1],
            concurrency=places,
            models={"a": Rate(requests_per_minute=3, concurrency=2)},
        )
    )
    limiter = drive.limiter
    stopped = {"a": 0.0, "b": 0.0}
    every: list[Reservation] = []
    for what, number, model, seconds in changes:
        held = every[number % len(every)] if every else None
        if what == "come":
            every.append(drive.come(number, model))
        elif what == "settle" and held is not None:
            # Never more than was expected: that is what can be promised for.
            limiter.settle(held, Usage(uncached=held.tokens * number // 40), drive.at)
        elif what == "cancel" and held is not None:
            limiter.cancel(held, drive.at)
            limiter.cancel(held, drive.at)
        elif what == "stop":
            limiter.lane(model).block(RateLimited("slow", retry_after=seconds), drive.at)
            stopped[model] = max(stopped[model], drive.at + seconds)
        else:
            drive.until(drive.at + seconds)
        before = len(drive.started)
        drive.look()
        for started in drive.started[before:]:
            assert drive.at >= stopped[started.lane.model]
        assert sum(held.state == "started" for held in every) <= (places or INF)
    while limiter.waiting:
        drive.until(INF)
        for held in every:
            limiter.settle(held, None, drive.at)
        drive.look()
    for held in every:
        limiter.settle(held, None, drive.at)
    assert all(held.state == "over" for held in every)
    for model in "ab":
        mine = [held.number for held in drive.started if held.lane.model == model]
        assert mine == sorted(mine)
    counted = [(held.at, held.requests, held.tokens) for held in drive.started]
    assert most_in_a_minute((at, n) for at, n, _ in counted) <= (shared[0] or INF)
    assert most_in_a_minute((at, n) for at, _, n in counted) <= (shared[1] or INF)
    # An hour later the whole limit is available again.
    for model in "ab":
        assert limiter.wait(limiter.lane(model), shared[1] or 10**9, drive.at + 3600) == 0.0


def test_without_limits_no_call_waits() -> None:
    drive = Drive(LimitsConfig())
    assert all(drive.come(10**9).state == "started" for _ in range(1000))


def test_call_larger_than_a_minute_is_rejected_at_once() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100, models={"a": Rate(tokens_per_minute=50)}))
    assert drive.limiter.wait(drive.limiter.lane("a"), 51, 0.0) == INF
    with pytest.raises(
        errors.Throttled, match="about 51 tokens; the limit per minute is 50"
    ) as raised:
        drive.come(51, "a")
    assert raised.value.wait == INF
    assert drive.come(51, "b").state == "started"


def test_billed_tokens_count() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100))
    held = drive.come(80)
    later = drive.come(50)
    assert later.at == 60.0
    drive.limiter.settle(held, Usage(uncached=30, read=10, written={"5m": 10}), 5.0)
    assert drive.limiter.advance(5.0) == [later]
    more = drive.come(1)
    assert more.state == "waiting"


def test_usage_above_the_estimate_counts() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100))
    drive.limiter.settle(drive.come(10), Usage(uncached=95), 1.0)
    drive.at = 1.0
    assert drive.come(6).at == 60.0


@each_row(
    "usage, all_count, reads_do_not",
    [
        (Usage(uncached=5, read=100, written={"5m": 20, "1h": 3}), 128, 28),
        (Usage(uncached=5), 5, 5),
        (Usage(read=100), 100, 0),
        (Usage(output=9), None, None),
        (Usage(), None, None),
    ],
)
def test_tokens_are_counted_by_the_providers_rule(
    usage: Usage, all_count: int | None, reads_do_not: int | None
) -> None:
    limiter = Limiter(LimitsConfig())
    assert limiter.lane("a", counts_reads=True).counted(usage) == all_count
    assert limiter.lane("b", counts_reads=False).counted(usage) == reads_do_not


def test_usage_without_counts_keeps_the_estimate() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100))
    drive.limiter.settle(drive.come(80), Usage(output=5), 1.0)
    assert drive.limiter.wait(drive.limiter.lane("m"), 30, 1.0) == 59.0


@pytest.mark.parametrize("others", [True, False])
def test_usage_after_more_than_a_minute_changes_nothing(others: bool) -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100))
    held = drive.come(80)
    drive.at = 70.0
    if others:
        drive.come(90)
    drive.limiter.settle(held, Usage(uncached=1), 71.0)
    drive.at = 71.0
    assert drive.come(10 if others else 100).state == "started"
    assert drive.come(1).at == (130.0 if others else 131.0)


def test_call_that_waits_for_its_own_model_delays_no_other() -> None:
    drive = Drive(LimitsConfig(tokens_per_minute=100, models={"a": Rate(requests_per_minute=1)}))
    drive.come(40, "b")
    drive.until(10.0)
    drive.come(40, "b")
    drive.until(20.0)
    drive.come(10, "a")
    late, soon = drive.come(60, "a"), drive.come(30, "b")
    drive.until(INF)
    assert (late.at, soon.at) == (80.0, 60.0)


def test_released_call_returns_its_whole_reservation() -> None:
    drive = Drive(LimitsConfig(requests_per_minute=1, tokens_per_minute=10, concurrency=1))
    held = drive.come(10)
    assert drive.limiter.wait(drive.limiter.lane("m"), 10, 0.0) == 60.0
    drive.limiter.cancel(held, 0.0)
    assert drive.come(10).state == "started"


def test_headroom_is_what_is_left_of_each_limit() -> None:
    own = {"m": Rate(requests_per_minute=2)}
    drive = Drive(LimitsConfig(tokens_per_minute=100, concurrency=4, models=own))
    drive.come(25)
    assert drive.limiter.headroom(0.0) == {
        "tokens per minute": 0.75,
        "concurrent calls": 0.75,
        "m: requests per minute": 0.5,
    }
    assert drive.limiter.headroom(60.0)["tokens per minute"] == 1.0
    assert Drive(LimitsConfig()).limiter.headroom(0.0) == {}


def test_wait_for_concurrency_is_unknown() -> None:
    drive = Drive(LimitsConfig(concurrency=1))
    held = drive.come(1)
    assert drive.limiter.wait(drive.limiter.lane("m"), 1, 0.0) == 0.0
    waiting = drive.come(1)
    assert (waiting.state, drive.limiter.next_at(0.0)) == ("waiting", INF)
    drive.limiter.settle(held, None, 9.0)
    assert drive.limiter.advance(9.0) == [waiting]


gaps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.1, 0.2, 0.3, 20.0]), st.integers(0, 40)), max_size=60
)


@given(arrivals=gaps)
def test_dense_calls_start_at_the_first_allowed_time(arrivals: list[tuple[float, int]]) -> None:
    drive = Drive(LimitsConfig(requests_per_minute=7, tokens_per_minute=100))
    came: list[tuple[float, int]] = []
    order: list[Reservation] = []
    for gap, amount in arrivals:
        drive.until(drive.at + gap)
        came.append((drive.at, amount))
        order.append(drive.come(amount))
    drive.until(INF)
    assert drive.started == order
    assert most_in_a_minute((held.at, 1) for held in order) <= 7
    assert most_in_a_minute((held.at, held.tokens) for held in order) <= 100
    assert [held.at for held in order] == naive(came, 7, 100)


@pytest.mark.parametrize("calls", [1_000, 20_000])
def test_calls_of_the_last_minute_are_forgotten(calls: int) -> None:
    limiter = Limiter(LimitsConfig(requests_per_minute=calls))
    lane = limiter.lane("m")
    for index in range(calls):
        held = limiter.reserve(lane, 1, 60.0 * index / calls)
        assert held.state == "started"
        limiter.settle(held, Usage(uncached=2), held.at)
    window = limiter.shared
    assert window is not None
    assert (window.used_requests, window.used_tokens) == (calls, 2 * calls)
    waiting = limiter.reserve(lane, 1, 59.999)
    assert waiting.state == "waiting"
    assert waiting.at == 60.0
    assert limiter.advance(60.0) == [waiting]
    assert window.is_open(1, 121.0)
    assert (window.used_requests, window.used_tokens, len(window.started)) == (0, 0, 0)
