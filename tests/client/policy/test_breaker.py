"""The circuit breaker: provider failures open it, other errors do not count."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.tables import each_row

from anaphora import errors
from anaphora.client.config import BreakerConfig
from anaphora.client.retry import CircuitBreaker
from anaphora.errors import AnaphoraError

BUSY = errors.Overloaded("busy")
SETTINGS = BreakerConfig(failures=3, within=60.0, open_for=30.0, probes=1)

THEIRS: list[AnaphoraError] = [BUSY, errors.Transport("reset", phase="body")]
#: The provider answered, and it was not its fault.
ANSWERS: list[AnaphoraError] = [
    errors.Unauthenticated("k"),
    errors.Forbidden("k"),
    errors.NotFound("k"),
    errors.RequestRejected("k"),
    errors.ContextOverflow("k"),
    errors.ContentRefused("k"),
    errors.QuotaExhausted("k"),
    errors.TooLarge("k"),
]
#: Errors that do not show whether the provider is healthy.
SILENT: list[AnaphoraError] = [
    errors.RateLimited("k"),
    errors.Throttled("k", wait=1.0),
    errors.Timeout(5),
    errors.InvalidRequest("k"),
    errors.Parse("k"),
]


def name(error: AnaphoraError) -> str:
    return type(error).__name__


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(SETTINGS)
    for _ in range(3):
        breaker.failed(BUSY, at)
    return breaker


@pytest.mark.parametrize("error", THEIRS, ids=name)
def test_provider_failures_open_it(error: AnaphoraError) -> None:
    breaker = CircuitBreaker(SETTINGS)
    for at in (0.0, 1.0):
        breaker.failed(error, at)
        assert breaker.allows(at) == 0.0
    breaker.failed(error, 2.0)
    assert breaker.allows(2.0) == 30.0
    assert breaker.allows(31.5) == 0.5
    assert breaker.allows(32.0) == 0.0


@each_row("error", ANSWERS + SILENT, ids=name)
def test_other_failures_never_open_it(error: AnaphoraError) -> None:
    breaker = CircuitBreaker(SETTINGS)
    for at in range(100):
        breaker.failed(error, float(at))
        assert breaker.allows(float(at)) == 0.0


def test_old_failures_do_not_count() -> None:
    breaker = CircuitBreaker(SETTINGS)
    for at in (0.0, 1.0, 60.0, 61.0, 120.0):
        breaker.failed(BUSY, at)
        assert breaker.allows(at) == 0.0
    breaker.failed(BUSY, 120.5)
    assert breaker.allows(120.5) > 0


def test_few_failures_among_many_successes_do_not_open_it() -> None:
    breaker = CircuitBreaker(SETTINGS)
    for call in range(1000):
        if call % 10:
            breaker.succeeded(call * 0.01)
        else:
            breaker.failed(BUSY, call * 0.01)
        assert breaker.allows(call * 0.01) == 0.0


def test_one_probe_at_a_time_and_its_success_closes_it() -> None:
    breaker = opened()
    assert breaker.enters(30.0) == 0.0
    assert breaker.allows(30.0) > 0
    assert breaker.enters(31.0) > 0
    breaker.succeeded(32.0)
    assert breaker.enters(32.0) == breaker.enters(32.0) == 0.0


def test_state_is_told() -> None:
    breaker = CircuitBreaker(BreakerConfig())
    assert breaker.state(0.0) == "closed"
    breaker = opened()
    assert (breaker.state(29.0), breaker.state(30.0)) == ("open", "half open")
    breaker.enters(30.0)
    breaker.succeeded(31.0)
    assert breaker.state(31.0) == "closed"


def test_checking_availability_uses_no_probe() -> None:
    breaker = opened()
    assert [breaker.allows(30.0) for _ in range(5)] == [0.0] * 5
    assert breaker.enters(30.0) == 0.0


@pytest.mark.parametrize("error", THEIRS, ids=name)
def test_failed_probe_opens_it_again(error: AnaphoraError) -> None:
    breaker = opened()
    breaker.enters(30.0)
    breaker.failed(error, 33.0)
    assert breaker.allows(33.0) == 30.0


@each_row("error", ANSWERS, ids=name)
def test_rejected_probe_counts_as_answered(error: AnaphoraError) -> None:
    breaker = opened()
    breaker.enters(30.0)
    breaker.failed(error, 31.0)
    assert breaker.enters(31.0) == breaker.enters(31.0) == 0.0


@each_row("error", SILENT, ids=name)
def test_inconclusive_probe_allows_another(error: AnaphoraError) -> None:
    breaker = opened()
    breaker.enters(30.0)
    breaker.failed(error, 31.0)
    assert breaker.enters(31.0) == 0.0
    assert breaker.enters(31.0) > 0


def test_probe_without_an_outcome_expires() -> None:
    breaker = opened()
    assert breaker.enters(30.0) == 0.0
    assert breaker.allows(59.0) == 1.0
    assert breaker.enters(60.0) == 0.0


def test_late_results_of_earlier_calls_change_nothing() -> None:
    breaker = opened()
    breaker.failed(BUSY, 20.0)
    breaker.succeeded(20.0)
    breaker.left(20.0)
    assert breaker.allows(20.0) == 10.0


class Model(RuleBasedStateMachine):
    """The breaker beside the plainest thing that does the same: lists, and no forgetting."""

    @initialize(
        failures=st.integers(1, 4),
        within=st.sampled_from([5.0, 20.0]),
        open_for=st.sampled_from([3.0, 10.0]),
        probes=st.integers(1, 3),
    )
    def begin(self, failures: int, within: float, open_for: float, probes: int) -> None:
        self.settings = BreakerConfig(
            failures=failures, within=within, open_for=open_for, probes=probes
        )
        self.breaker = CircuitBreaker(self.settings)
        self.at = 0.0
        self.opened: float | None = None
        self.failures: list[float] = []
        self.probes: list[float] = []

    @property
    def half_open(self) -> bool:
        return self.opened is not None and self.at >= self.opened + self.settings.open_for

    def shut(self) -> None:
        self.opened, self.failures, self.probes = None, [], []

    @rule(seconds=st.integers(0, 12))
    def later(self, seconds: int) -> None:
        self.at += seconds

    @rule()
    def enters(self) -> None:
        expected = self.expected()
        if expected == 0.0 and self.opened is not None:
            self.probes.append(self.at)
        assert self.breaker.enters(self.at) == expected

    @rule()
    def succeeds(self) -> None:
        self.breaker.succeeded(self.at)
        if self.opened is None:
            recent = [at for at in self.failures if self.at < at + self.settings.within]
            self.failures = recent[1:]
        elif self.half_open:
            self.shut()

    @rule(error=st.sampled_from(THEIRS))
    def fails(self, error: AnaphoraError) -> None:
        self.breaker.failed(error, self.at)
        if self.opened is None:
            self.failures.append(self.at)
            recent = [at for at in self.failures if self.at < at + self.settings.within]
            if len(recent) >= self.settings.failures:
                self.opened, self.failures, self.probes = self.at, [], []
        elif self.half_open:
            self.opened, self.probes = self.at, []

    @rule(error=st.sampled_from(ANSWERS))
    def is_refused(self, error: AnaphoraError) -> None:
        self.breaker.failed(error, self.at)
        if self.half_open:
            self.shut()

    @rule(error=st.sampled_from(SILENT))
    def learns_nothing(self, error: AnaphoraError) -> None:
        self.breaker.failed(error, self.at)
        if self.half_open and self.probes:
            self.probes.pop(0)

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "breaker"):
            assert self.breaker.allows(self.at) == self.expected()

    def expected(self) -> float:
        if self.opened is None:
            return 0.0
        if not self.half_open:
            return self.opened + self.settings.open_for - self.at
        self.probes = [at for at in self.probes if self.at < at + self.settings.open_for]
        if len(self.probes) < self.settings.probes:
            return 0.0
        return self.probes[0] + self.settings.open_for - self.at


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=40)
