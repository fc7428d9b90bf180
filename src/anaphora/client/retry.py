"""When to send again, and where: a generator that yields steps and is sent the outcome.

    policy = retry_policy([retry, ...], deadline=..., draw=random.random)
    step = next(policy)
    while True:
        if isinstance(step, Wait):      sleep step.seconds;  step = policy.send(None)
        else:                           send to hop step.hop
            answered:                   policy.close()
            failed:                     step = policy.send(AttemptFailed(error, now, streamed))
                                        its StopIteration holds the error to raise

It never sleeps and reads no clock: `deadline` and `AttemptFailed.at` are on the driver's clock.

Errors that are `retryable` are sent again to the same hop, except for an exhausted quota. The wait
is the provider's `retry_after`, even where that exceeds `longest_wait`; otherwise it is drawn
between 0 and a ceiling that doubles each time. A wait that would reach the deadline is not begun.

The next hop is tried for errors of the provider or the account, never for an invalid request. Once
an event has reached the caller, nothing is sent again.

When every hop failed, the last error of the first hop is raised: that is where the call was meant
to go, and a fallback's small context window or missing key would hide it. Two errors belong to the
call and are always raised: `Timeout`, and an error after the first event.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import msgspec

from anaphora.client.config.values import RetryConfig
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
    """Send to this hop."""

    hop: int


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Sleep before the next attempt at this hop."""

    seconds: float
    hop: int


class AttemptFailed(msgspec.Struct, frozen=True):
    """How an attempt failed; `streamed`: an event had reached the caller."""

    error: AnaphoraError
    at: float
    streamed: bool = False


RetrySteps: TypeAlias = Generator[Try | Wait, AttemptFailed | None, AnaphoraError]


def retry_policy(
    retries: Sequence[RetryConfig], *, deadline: float | None, draw: Callable[[], float]
) -> RetrySteps:
    """The steps of one call over its hops, with one `RetryConfig` each; `draw` returns numbers in
    [0, 1)."""
    end = float("inf") if deadline is None else deadline
    first: AnaphoraError | None = None
    for hop, retry in enumerate(retries):
        sent, ceiling = 0, retry.first_wait
        while True:
            failed = yield Try(hop)
            if failed is None:
                raise TypeError("send AttemptFailed(...) after a Try")
            error, sent = failed.error, sent + 1
            if failed.streamed or isinstance(error, Timeout):
                return error
            if sent >= retry.max_attempts or not _is_retryable(error):
                break
            seconds: float | None = getattr(error, "retry_after", None)
            if seconds is None:
                seconds = draw() * min(ceiling, retry.longest_wait)
                ceiling = min(2 * ceiling, retry.longest_wait)
            if failed.at + seconds >= end:
                break
            if seconds:
                yield Wait(seconds, hop)
        if first is None:
            first = error
        if failed.at >= end or not isinstance(error, _ELSEWHERE):
            break
    if first is None:
        raise ValueError("a call has at least one hop")
    return first


def _is_retryable(error: AnaphoraError) -> bool:
    """Whether the same hop may succeed at another time."""
    return error.retryable and not isinstance(error, QuotaExhausted)
