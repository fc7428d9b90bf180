"""Configured limits over a sliding minute, and limits that response headers state. The time is an
argument, and never goes back."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Literal

import msgspec

from anaphora.client.config import LimitsConfig, Rate
from anaphora.errors import AnaphoraError, RateLimited
from anaphora.values import Usage
from anaphora.wire.response_headers import RemainingLimit, read_limits, seconds_until

#: A stated limit is ignored while more than this share of it remains.
SCARCE = 0.5
MINUTE = 60.0
_INF = float("inf")
#: Amounts are whole; a smaller shortfall is rounding.
_ROUNDING = 1e-6


class Reservation(msgspec.Struct, eq=False):
    """One call, numbered in order of arrival. `at` is when it started; while it waits, the earliest
    time at which it may, with no regard to the calls before it."""

    lane: ModelLane
    number: int
    tokens: int
    at: float
    requests: int = 1
    state: Literal["waiting", "started", "over"] = "waiting"

    def __repr__(self) -> str:
        return f"<Reservation {self.number}: {self.tokens} tokens, {self.state} at {self.at:g}>"


class RateWindow(msgspec.Struct, eq=False):
    """The calls of the last minute and those that run, against a configured rate."""

    requests: float
    tokens: float
    concurrency: float
    started: deque[Reservation] = msgspec.field(default_factory=deque)
    used_requests: int = 0
    used_tokens: int = 0
    running: int = 0

    @classmethod
    def of(cls, rate: Rate | LimitsConfig | None) -> RateWindow | None:
        """None for a rate that limits nothing."""
        if rate is None:
            return None
        given = (rate.requests_per_minute, rate.tokens_per_minute, rate.concurrency)
        requests, tokens, concurrency = (each or _INF for each in given)
        return cls(requests, tokens, concurrency) if any(given) else None

    def headroom(self, now: float) -> dict[str, float]:
        """The remaining share of each configured limit."""
        self.forget(now)
        used = {
            "requests per minute": (self.used_requests, self.requests),
            "tokens per minute": (self.used_tokens, self.tokens),
            "concurrent calls": (self.running, self.concurrency),
        }
        return {
            what: max(0.0, 1 - taken / limit)
            for what, (taken, limit) in used.items()
            if limit < _INF
        }

    def forget(self, now: float) -> None:
        while self.started and self.started[0].at + MINUTE <= now:
            oldest = self.started.popleft()
            self.used_requests -= oldest.requests
            self.used_tokens -= oldest.tokens

    @property
    def is_full(self) -> bool:
        return self.running >= self.concurrency

    def is_open(self, tokens: int, now: float) -> bool:
        return not self.is_full and self.opens(tokens, now) <= now

    def opens(self, tokens: int, now: float) -> float:
        """When the limits per minute let a call start if no other does before."""
        self.forget(now)
        requests, used = self.used_requests, self.used_tokens
        for oldest in self.started:
            if requests < self.requests and used + tokens <= self.tokens:
                break
            now = oldest.at + MINUTE
            requests -= oldest.requests
            used -= oldest.tokens
        return now

    def enter(self, call: Reservation) -> None:
        self.running += 1
        if min(self.requests, self.tokens) < _INF:
            self.started.append(call)
            self.used_requests += call.requests
            self.used_tokens += call.tokens

    def leave(self, call: Reservation, requests: int, tokens: int, now: float) -> None:
        """The call is over, and counts as so many requests and tokens."""
        self.running -= 1
        self.forget(now)
        if self.started and call.at + MINUTE > now:
            self.used_requests += requests - call.requests
            self.used_tokens += tokens - call.tokens


class StatedLimit:
    """A provider's limit from its headers: the remaining amount, the limit, and the reset time.

    Until the reset the amount refills gradually or at once; afterwards at the limit per minute. If
    that is wrong, a call is sent too early and refused; no call waits more than a minute longer
    than the headers state.
    """

    __slots__ = ("_at", "_full_at", "_limit", "_rate", "_sudden", "level")

    def __init__(self, left: RemainingLimit, reset: float, now: float) -> None:
        """`reset` is the number of seconds until all of it is available."""
        self._limit = _INF if left.limit is None else max(left.limit, left.remaining)
        self.level = left.remaining
        self._at = now
        self._full_at = now + reset
        missing = self._limit - self.level
        self._sudden = not left.gradual or missing == _INF or not reset
        self._rate = 0.0 if self._sudden else missing / reset

    def headroom(self, now: float) -> float | None:
        """The remaining share; None if the limit is unknown."""
        if self._limit in (0.0, _INF):
            return None
        return min(1.0, max(0.0, self._level_at(now) / self._limit))

    def opens(self, amount: float, now: float) -> float:
        """When `amount` is available; for more than the limit, when all of it is."""
        amount = min(amount, self._limit) - _ROUNDING
        if self._level_at(now) >= amount:
            return now
        if not self._sudden and self._rate:
            then = self._at + (amount - self.level) / self._rate
            if then < self._full_at:
                return max(now, then)
        full = self._level_at(self._full_at)
        if full >= amount:
            return max(now, self._full_at)
        return max(now, self._full_at + (amount - full) / self._rate_after_reset)

    def take(self, amount: float, now: float) -> None:
        """Count a call that starts; a negative amount gives one back."""
        if now < self._full_at:
            self.level -= amount
            return
        self.level = self._level_at(now) - amount
        self._at = self._full_at = now
        self._rate, self._sudden = self._rate_after_reset, False

    @property
    def _rate_after_reset(self) -> float:
        return max(self._rate, self._limit / MINUTE)

    def _level_at(self, time: float) -> float:
        if self.level == _INF:
            return _INF
        if time < self._full_at:
            return min(self._limit, self.level + self._rate * (time - self._at))
        if self._sudden:
            return self._limit
        full = min(self._limit, self.level + self._rate * (self._full_at - self._at))
        return min(self._limit, full + self._rate_after_reset * (time - self._full_at))


class ModelLane(msgspec.Struct, eq=False):
    """One model: its limits and its queue. Calls of a lane start in order of arrival."""

    model: str
    counts_reads: bool
    """Whether the provider counts tokens read from its cache; if not, calls reserve only the
    others."""
    own: RateWindow | None
    longest_wait: float
    """The maximum for waits that the provider states."""
    stated: list[tuple[bool, StatedLimit]] = []
    """Limits from response headers, and whether they count tokens and not requests. Providers count
    each model separately."""
    blocked_until: float = 0.0
    queue: OrderedDict[Reservation, None] = msgspec.field(default_factory=OrderedDict)

    @property
    def first(self) -> Reservation:
        return next(iter(self.queue))

    def is_open(self, tokens: int, now: float) -> bool:
        full = self.own is not None and self.own.is_full
        return not full and self.opens(tokens, now) <= now

    def opens(self, tokens: int, now: float) -> float:
        """When its limits let a call start if no other starts before."""
        then = max(now, self.blocked_until)
        for by_token, stated in self.stated:
            then = max(then, stated.opens(tokens if by_token else 1, then))
        # Stated amounts only grow until then, and so does the room in the last minute.
        return then if self.own is None else max(then, self.own.opens(tokens, now))

    def take(self, tokens: int, requests: int, now: float) -> None:
        """Count a call against the stated limits; negative amounts give it back."""
        for by_token, stated in self.stated:
            stated.take(tokens if by_token else requests, now)

    def update(self, headers: Mapping[str, str], now: float, epoch: float) -> bool:
        """Learn from response headers; return whether they state any limit. `epoch` is the Unix
        time, for headers with absolute reset times."""
        scarce = read_limits(headers, at_most=SCARCE)
        if not scarce and not (self.stated and read_limits(headers)):
            return False
        self.stated = []
        for left in scarce:
            reset = seconds_until(left.reset, epoch)
            if reset is not None:
                limit = StatedLimit(left, min(reset, self.longest_wait), now)
                self.stated.append((left.unit == "tokens", limit))
        return True

    def block(self, error: AnaphoraError, now: float) -> bool:
        """Block the lane for the `retry_after` of a rate limit error; return whether it is."""
        if not isinstance(error, RateLimited) or error.retry_after is None:
            return False
        self.blocked_until = max(
            self.blocked_until, now + min(error.retry_after, self.longest_wait)
        )
        return True

    def counted(self, usage: Usage) -> int | None:
        """The prompt's tokens as the provider counts them; None if not reported."""
        uncached, read, written = usage.uncached, usage.read, usage.written
        if uncached is None and read is None and written is None:
            return None
        counted = (uncached or 0) + (sum(written.values()) if written else 0)
        return counted + (read or 0) if self.counts_reads else counted
