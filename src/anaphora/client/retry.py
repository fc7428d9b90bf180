"""The retry policy, a generator that yields steps and is sent the outcome; and the circuit breaker
of a provider.

    policy = retry_policy([retry, ...], deadline=..., draw=random.random)
    step = next(policy)
    while True:                         sleep step.wait, then send to hop step.hop
        answered:                       policy.close()
        failed:                         step = policy.send(AttemptFailed(error, now, streamed))
                                        its StopIteration holds the error to raise

It never sleeps and reads no clock: `deadline` and `AttemptFailed.at` are on the driver's clock.

After a `retryable` error the call is sent to the same hop again, except for an exhausted quota. The
wait is the provider's `retry_after`; otherwise it is drawn between 0 and a ceiling that doubles
each time. If `retry_after` exceeds `longest_wait`, or a wait would reach the deadline, the next hop
is tried at once, and the error names the wait.

The next hop is tried for errors of the provider or the account, never for an invalid request. Once
an event has reached the caller, nothing is sent again.

When every hop failed, the last error of the first hop is raised: the call was meant for it, and an
error of a fallback (a small context window, a missing key) would hide it. Two errors are always
raised: `Timeout`, and an error after the first event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Literal, TypeAlias

import msgspec

from anaphora.client.config import BreakerConfig, RetryConfig
from anaphora.errors import (
    AnaphoraError,
    Forbidden,
    NotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Throttled,
    Timeout,
    Transport,
    Unauthenticated,
    Unavailable,
    Upstream,
)

#: Errors that another provider or account may not have.
_ELSEWHERE = (
    RateLimited,
    Overloaded,
    Transport,
    QuotaExhausted,
    Throttled,
    Unavailable,
    Unauthenticated,
    Forbidden,
    NotFound,
)


class Try(msgspec.Struct, frozen=True, gc=False):
    """Send to this hop after this many seconds."""

    hop: int
    wait: float = 0.0


class AttemptFailed(msgspec.Struct, frozen=True):
    """How an attempt failed; `streamed`: an event had reached the caller."""

    error: AnaphoraError
    at: float
    streamed: bool = False


RetrySteps: TypeAlias = Generator[Try, AttemptFailed | None, AnaphoraError]


def retry_policy(
    retries: Sequence[RetryConfig], *, deadline: float | None, draw: Callable[[], float]
) -> RetrySteps:
    """The steps of one call over its hops, with one `RetryConfig` each; `draw` returns numbers in
    [0, 1)."""
    end = float("inf") if deadline is None else deadline
    first: AnaphoraError | None = None
    for hop, retry in enumerate(retries):
        sent, ceiling, seconds = 0, retry.first_wait, 0.0
        while True:
            failed = yield Try(hop, seconds)
            if failed is None:
                raise TypeError("send AttemptFailed(...) after a Try")
            error, sent = failed.error, sent + 1
            if failed.streamed or isinstance(error, Timeout):
                return error
            if sent >= retry.max_attempts or not _is_retryable(error):
                break
            stated: float | None = getattr(error, "retry_after", None)
            if stated is None:
                seconds = draw() * min(ceiling, retry.longest_wait)
                ceiling = min(2 * ceiling, retry.longest_wait)
            elif stated > retry.longest_wait:
                _name_wait(
                    error, stated, f"longer than retry.longest_wait, {retry.longest_wait:g} s"
                )
                break
            else:
                seconds = stated
            if failed.at + seconds >= end:
                if stated is not None:
                    _name_wait(error, stated, "beyond the call's deadline")
                break
        if first is None:
            first = error
        if failed.at >= end or not isinstance(error, _ELSEWHERE):
            break
    if first is None:
        raise ValueError("a call has at least one hop")
    return first


#: Seconds that are written in full.
_MOST_WRITTEN = 1e12


def _name_wait(error: AnaphoraError, seconds: float, reason: str) -> None:
    wait = f"{seconds:,.0f}" if seconds < _MOST_WRITTEN else f"{seconds:.0e}"
    error.args = (f"{error}; the provider asks to wait {wait} s, {reason}",)


def _is_retryable(error: AnaphoraError) -> bool:
    return error.retryable and not isinstance(error, QuotaExhausted)


BreakerState: TypeAlias = Literal["closed", "open", "half open"]


class CircuitBreaker:
    """Stops calling a provider that fails repeatedly, and probes it a while later.

        closed ──failures within a window──▶ open ──open_for──▶ half open ──success──▶ closed
                                               ◀────another failure────┘

    Only the provider's failures count: `Overloaded` and `Transport`. A bad key, a bad request or a
    rate limit does not. Each success takes one failure back, so that five failures among five
    thousand successes do not open it. Time is an argument, in seconds of a monotonic clock.
    """

    __slots__ = ("_settings", "_failures", "_open_until", "_probes", "calm")

    def __init__(self, settings: BreakerConfig) -> None:
        self._settings = settings
        self._failures: deque[float] = deque()
        self._open_until: float | None = None
        """None: closed. After this time: half open."""
        self._probes: deque[float] = deque()
        self.calm = True
        """Closed without a recent failure: calls need neither `enters` nor `succeeded`."""

    def state(self, at: float) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "open" if at < self._open_until else "half open"

    def allows(self, at: float) -> float:
        """Seconds until a call may be sent; 0.0: now. Changes nothing."""
        if self._open_until is None:
            return 0.0
        if at < self._open_until:
            return self._open_until - at
        settings = self._settings
        # A probe without an outcome expires.
        while self._probes and at >= self._probes[0] + settings.open_for:
            self._probes.popleft()
        if len(self._probes) < settings.probes:
            return 0.0
        return self._probes[0] + settings.open_for - at

    def enters(self, at: float) -> float:
        """Like `allows`; with 0.0 the call counts as sent: while half open it is a probe, until
        `succeeded`, `failed` or `left` is called."""
        if self._open_until is None:
            return 0.0
        wait = self.allows(at)
        if not wait:
            self._probes.append(at)
        return wait

    def succeeded(self, at: float) -> None:
        if self._open_until is None:
            if self._failures:
                self._forget(at)
                if self._failures:
                    self._failures.popleft()
            self.calm = not self._failures
        elif at >= self._open_until:
            self._close()

    def failed(self, error: AnaphoraError, at: float) -> None:
        """A call failed. Ignores errors that do not count."""
        if isinstance(error, Overloaded | Transport):
            self._count(at)
        elif isinstance(error, Upstream) and not isinstance(error, RateLimited):
            # The provider is up: it rejected the request or the key.
            if self._open_until is not None and at >= self._open_until:
                self._close()
        else:
            self.left(at)

    def left(self, at: float) -> None:
        """A call ended without an outcome, such as a cancelled one."""
        if self._open_until is not None and at >= self._open_until and self._probes:
            self._probes.popleft()

    def _count(self, at: float) -> None:
        self.calm = False
        if self._open_until is not None:
            # Calls that began before it opened do not count again.
            if at >= self._open_until:
                self._open(at)
            return
        self._failures.append(at)
        self._forget(at)
        if len(self._failures) >= self._settings.failures:
            self._open(at)

    def _forget(self, at: float) -> None:
        while self._failures and at >= self._failures[0] + self._settings.within:
            self._failures.popleft()

    def _open(self, at: float) -> None:
        self._open_until = at + self._settings.open_for
        self._failures.clear()
        self._probes.clear()

    def _close(self) -> None:
        self._open_until = None
        self.calm = True
        self._failures.clear()
        self._probes.clear()
