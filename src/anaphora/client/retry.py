"""When to send again, and where: a generator that says what to do and is told what happened.

    policy = attempts([retry, ...], deadline=..., draw=random.random)
    step = next(policy)
    while True:
        if isinstance(step, Wait):      sleep step.seconds;  step = policy.send(None)
        else:                           send to hop step.hop
            answered:                   policy.close()
            failed:                     step = policy.send(Failed(error, now, heard))
                                        its StopIteration holds the error to raise

It sleeps nowhere and knows no clock: `deadline` and `Failed.at` are on the driver's.

What is sent again to the same hop are errors that call themselves `retryable`, a spend cap or a
quota for the day never. The wait is what the provider asks for, exactly, even where that is more
than `longest_wait`; otherwise it is drawn between 0 and a ceiling that doubles each time. A wait
that would reach the deadline is not begun.

The next hop gets what is the provider's trouble or its account's, never what is wrong with the
request itself. Once an event has reached the caller, nothing is sent again.

When every hop failed, the error is the first hop's last: that is the place the call was meant for,
and what the caller can wait for or repair; a fallback's small window or missing key would hide it.
Two errors are the call's and no hop's, and are always raised themselves: `Timeout`, and whatever
broke an answer that the caller had already begun to hear.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

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

#: What another provider, or another account, may well do better with.
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
    """Send to that hop."""

    hop: int


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Sleep, then ask on; the hop is sent to again afterwards."""

    seconds: float
    hop: int


class Failed(msgspec.Struct, frozen=True):
    """How sending ended; `heard` when an event had reached the caller."""

    error: AnaphoraError
    at: float
    heard: bool = False


def attempts(
    retries: Sequence[RetryConfig], *, deadline: float | None, draw: Callable[[], float]
) -> Generator[Try | Wait, Failed | None, AnaphoraError]:
    """The steps of one call over its hops, one `Retry` for each; `draw` gives numbers in [0, 1)."""
    end = float("inf") if deadline is None else deadline
    first: AnaphoraError | None = None
    for hop, retry in enumerate(retries):
        sent, ceiling = 0, retry.first_wait
        while True:
            failed = yield Try(hop)
            if failed is None:
                raise TypeError("a Try is answered with Failed")
            error, sent = failed.error, sent + 1
            if failed.heard or isinstance(error, Timeout):
                return error
            if sent >= retry.max_attempts or not _helps(error):
                break
            seconds = _asked(error)
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


def _helps(error: AnaphoraError) -> bool:
    """Whether the same hop may do better another time."""
    return error.retryable and not isinstance(error, QuotaExhausted)


def _asked(error: AnaphoraError) -> float | None:
    """The wait that the provider asks for, in seconds."""
    wait: float | None = getattr(error, "retry_after", None)
    return wait
