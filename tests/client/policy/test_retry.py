"""When a call is sent again: the policy driven by hand, without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors
from anaphora.client.config import RetryConfig
from anaphora.client.retry import AttemptFailed, Try, retry_policy
from anaphora.errors import AnaphoraError

BUSY = errors.Overloaded("busy", status=503)
PLAIN = RetryConfig(max_attempts=3, first_wait=1.0, longest_wait=10.0)

#: Every error that a hop may end with: whether the same hop is tried again, and the next one.
KINDS: list[tuple[AnaphoraError, bool, bool]] = [
    (errors.RateLimited("x"), True, True),
    (errors.Overloaded("x"), True, True),
    (errors.Transport("x", phase="send"), True, True),
    (errors.QuotaExhausted("x"), False, True),
    (errors.Throttled("x", wait=1.0), False, True),
    (errors.Unavailable("x", wait=1.0), False, True),
    (errors.Unauthenticated("x"), False, True),
    (errors.Forbidden("x"), False, True),
    (errors.NotFound("x"), False, True),
    (errors.InvalidRequest("x"), False, False),
    (errors.RequestRejected("x"), False, False),
    (errors.ContextOverflow("x"), False, False),
    (errors.ContentRefused("x"), False, False),
    (errors.TooLarge("x"), False, False),
    (errors.Parse("x"), False, False),
    (errors.PrefixBroken("x", offset=0, label="", path=""), False, False),
    (errors.Timeout(1), False, False),
]


class Run:
    """One call, driven to its end: what was done when, on a clock that only waits move."""

    def __init__(
        self,
        retries: Sequence[RetryConfig],
        outcome: Callable[[int], AnaphoraError],
        *,
        deadline: float | None = None,
        draw: Callable[[], float] = lambda: 0.5,
        streamed: bool = False,
        took: float = 0.0,
    ) -> None:
        self.at = 100.0
        self.steps: list[Try] = []
        policy = retry_policy(retries, deadline=deadline, draw=draw)
        try:
            step = next(policy)
            while True:
                self.steps.append(step)
                self.at += step.wait + took
                step = policy.send(AttemptFailed(outcome(step.hop), self.at, streamed))
        except StopIteration as end:
            self.error: AnaphoraError = end.value

    @property
    def hops(self) -> list[int]:
        return [step.hop for step in self.steps]

    @property
    def waits(self) -> list[float]:
        return [step.wait for step in self.steps if step.wait]


@each_row("error, again, elsewhere", KINDS, ids=[type(error).__name__ for error, _, _ in KINDS])
def test_retries_and_fallbacks_by_error(error: AnaphoraError, again: bool, elsewhere: bool) -> None:
    run = Run([PLAIN, PLAIN], lambda _: error)
    here = 3 if again else 1
    assert run.hops == [0] * here + ([1] * here if elsewhere else [])
    assert run.error is error


def test_every_kind_of_upstream_error_is_in_the_table() -> None:
    """Refusals by a daemon of ours never reach the policy: nothing was sent."""
    listed = {type(error) for error, _, _ in KINDS}
    every = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.Upstream)
        and not issubclass(kind, errors.Denied)
    }
    assert every - listed == {errors.Upstream}


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_attempts_applies_to_each_hop(most: int) -> None:
    run = Run([RetryConfig(max_attempts=most), RetryConfig(max_attempts=most + 1)], lambda _: BUSY)
    assert run.hops == [0] * most + [1] * (most + 1)


def test_ceilings_double_up_to_the_maximum_and_restart_at_the_next_hop() -> None:
    retry = RetryConfig(max_attempts=6, first_wait=1.0, longest_wait=5.0)
    run = Run([retry, retry], lambda _: BUSY, draw=lambda: 0.5)
    assert run.waits == [0.5, 1.0, 2.0, 2.5, 2.5] * 2


def test_many_attempts_do_not_overflow() -> None:
    run = Run([RetryConfig(max_attempts=3000, first_wait=1.0, longest_wait=5.0)], lambda _: BUSY)
    assert len(run.hops) == 3000
    assert max(run.waits) == 2.5


@given(draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=9, max_size=9))
def test_jitter_is_full(draws: list[float]) -> None:
    numbers = iter(draws)
    retry = RetryConfig(max_attempts=10, first_wait=0.5, longest_wait=30.0)
    run = Run([retry], lambda _: BUSY, draw=lambda: next(numbers))
    expected = [draw * min(30.0, 0.5 * 2**n) for n, draw in enumerate(draws)]
    assert run.waits == [wait for wait in expected if wait]


@pytest.mark.parametrize("seconds", [0.25, 7.0, 45.8379, 60.0])
def test_retry_after_is_used_exactly(seconds: float) -> None:
    retries = [RetryConfig()]
    run = Run(retries, lambda _: errors.RateLimited("slow", retry_after=seconds), deadline=5000.0)
    assert run.waits == [seconds, seconds]


@pytest.mark.parametrize("deadline", [None, 1e12])
@pytest.mark.parametrize("seconds", [61.0, 1e9])
def test_longer_retry_after_is_not_waited_for(seconds: float, deadline: float | None) -> None:
    slow, denied = errors.RateLimited("slow", retry_after=seconds), errors.Forbidden("no")
    retries = [RetryConfig(), RetryConfig()]
    run = Run(retries, lambda hop: denied if hop else slow, deadline=deadline)
    assert run.steps == [Try(0), Try(1)]
    assert run.error is slow
    assert f"{seconds:,.0f} s" in str(slow)
    assert "longest_wait" in str(slow)


def test_zero_wait_is_no_wait() -> None:
    run = Run([PLAIN], lambda _: errors.RateLimited("slow", retry_after=0.0))
    assert run.steps == [Try(0)] * 3


@each_row(
    "deadline, hops",
    [
        (200.0, [0, 0, 0, 1]),
        (140.0, [0, 0, 1]),  # 100 + 30 is in time, 130 + 30 is not
        (130.0, [0, 1]),  # what ends at the deadline leaves no time to send
        (101.0, [0, 1]),
        (100.0, [0]),
    ],
)
def test_no_wait_reaches_the_deadline_and_the_next_hop_is_tried_at_once(
    deadline: float, hops: list[int]
) -> None:
    slow = errors.RateLimited("slow", retry_after=30.0)
    denied = errors.Forbidden("no")
    retries = [RetryConfig(), RetryConfig()]
    run = Run(retries, lambda hop: denied if hop else slow, deadline=deadline)
    assert run.hops == hops
    assert run.error is slow


def test_nothing_is_sent_after_an_event_reached_the_caller() -> None:
    run = Run([PLAIN, PLAIN], lambda _: BUSY, streamed=True)
    assert run.steps == [Try(0)]
    assert run.error is BUSY


def test_spend_cap_is_never_retried() -> None:
    capped = errors.QuotaExhausted("cap", retry_after=1.0)
    capped.retryable = True
    assert Run([PLAIN], lambda _: capped).steps == [Try(0)]


@pytest.mark.parametrize(
    "kind, retryable, hops",
    [
        (errors.Overloaded, False, [0, 1]),
        (errors.RequestRejected, True, [0, 0, 0]),
        (errors.Unauthenticated, True, [0, 0, 0, 1, 1, 1]),
    ],
)
def test_retryable_of_the_error_decides(
    kind: type[errors.Upstream], retryable: bool, hops: list[int]
) -> None:
    def outcome(_: int) -> AnaphoraError:
        error = kind("x")
        error.retryable = retryable
        return error

    assert Run([PLAIN, PLAIN], outcome).hops == hops


@pytest.mark.parametrize(
    "first, second, raised",
    [
        (errors.Overloaded("a"), errors.Unauthenticated("b"), "a"),
        (errors.Overloaded("a"), errors.ContextOverflow("b"), "a"),
        (errors.Unavailable("a", wait=3.0), errors.Overloaded("b"), "a"),
        (errors.Overloaded("a"), errors.Timeout(5), "timeout after 5 ms"),
    ],
)
def test_first_hops_error_is_raised_except_for_the_calls_own_end(
    first: AnaphoraError, second: AnaphoraError, raised: str
) -> None:
    run = Run([PLAIN, PLAIN], lambda hop: second if hop else first)
    assert str(run.error) == raised


def test_last_error_of_the_first_hop_is_raised() -> None:
    numbers = iter(range(10))
    run = Run([PLAIN, PLAIN], lambda _: errors.Overloaded(str(next(numbers))))
    assert str(run.error) == "2"


def test_closed_policy_yields_nothing_more() -> None:
    policy = retry_policy([PLAIN], deadline=None, draw=lambda: 0.5)
    assert next(policy) == Try(0)
    policy.close()
    with pytest.raises(StopIteration):
        next(policy)


def test_misuse_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one hop"):
        next(retry_policy([], deadline=None, draw=lambda: 0.5))
    policy = retry_policy([PLAIN], deadline=None, draw=lambda: 0.5)
    next(policy)
    with pytest.raises(TypeError, match="send AttemptFailed"):
        policy.send(None)


hops = st.lists(
    st.builds(
        RetryConfig,
        max_attempts=st.integers(1, 4),
        first_wait=st.floats(0.1, 5),
        longest_wait=st.floats(0.1, 20),
    ),
    min_size=1,
    max_size=3,
)
outcomes = st.lists(
    st.one_of(
        st.sampled_from([error for error, _, _ in KINDS]),
        st.builds(lambda s: errors.RateLimited("r", retry_after=s), st.floats(0, 90)),
    ),
    min_size=12,
    max_size=12,
)


@given(
    retries=hops,
    outcomes=outcomes,
    deadline=st.none() | st.floats(100, 250),
    took=st.floats(0, 20),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_any_outcomes_end_within_the_limits(
    retries: list[RetryConfig],
    outcomes: list[AnaphoraError],
    deadline: float | None,
    took: float,
    draw: float,
) -> None:
    coming = iter(outcomes)
    run = Run(retries, lambda _: next(coming), deadline=deadline, took=took, draw=lambda: draw)
    assert run.hops == sorted(run.hops)
    for hop, retry in enumerate(retries):
        assert run.hops.count(hop) <= retry.max_attempts
    assert run.error in outcomes[: len(run.hops)]
    at = 100.0
    for sent, step in enumerate(run.steps):
        if step.wait:
            assert step.hop == run.steps[sent - 1].hop, "only the same hop is waited for"
            retry_after = getattr(outcomes[sent - 1], "retry_after", None)
            longest = retries[step.hop].longest_wait
            assert step.wait == retry_after if retry_after is not None else step.wait < longest
            assert step.wait <= longest
            at += step.wait
            assert deadline is None or at < deadline
        at += took
