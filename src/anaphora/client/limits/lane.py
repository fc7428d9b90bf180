"""One model's way to its provider: what holds it back besides the limits that all models share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from anaphora.client.config.values import Rate
from anaphora.errors import AnaphoraError, RateLimited
from anaphora.values import Usage
from anaphora.wire.ratelimits import What, read_limits

from .reservation import Reservation
from .scope import Scope
from .stated import Stated

#: A limit of which a larger share is left holds nobody back until the next answer tells.
_SCARCE = 0.5


class Lane:
    """Calls of a lane start in the order in which they came."""

    __slots__ = ("counts_reads", "model", "own", "queue", "stated", "stopped")

    def __init__(self, model: str, rate: Rate | None, *, counts_reads: bool) -> None:
        self.model = model
        self.counts_reads = counts_reads
        """Whether the provider counts tokens that it read from its cache."""
        scope = None if rate is None else Scope(rate)
        self.own = scope if scope is not None and scope.binds else None
        self.stated: list[tuple[What, Stated]] = []
        """The provider's own limits. Providers count each model for itself."""
        self.stopped = 0.0
        """Nothing starts before."""
        self.queue: OrderedDict[Reservation, None] = OrderedDict()

    @property
    def first(self) -> Reservation:
        return next(iter(self.queue))

    def open(self, tokens: int, at: float) -> bool:
        """Whether the lane itself lets a call start now."""
        if at < self.stopped:
            return False
        for what, stated in self.stated:
            amount = tokens if what == "tokens" else 1
            if stated.level < amount and stated.opens(amount, at) > at:
                return False
        return self.own is None or self.own.open(tokens, at)

    def opens(self, tokens: int, at: float) -> float:
        """When it does, if nothing else starts before."""
        then = max(at, self.stopped)
        for what, stated in self.stated:
            then = max(then, stated.opens(tokens if what == "tokens" else 1, then))
        # What is stated only grows until then, and so does the room in the last minute.
        return then if self.own is None else max(then, self.own.opens(tokens, at))

    def take(self, tokens: int, requests: int, at: float) -> None:
        """Counts a call against what is stated; with less than nothing, gives it back."""
        for what, stated in self.stated:
            stated.take(tokens if what == "tokens" else requests, at)

    def heard(self, headers: Mapping[str, str], at: float, now: float) -> bool:
        """Learns from an answer; whether there was anything to learn. `now` is the time in seconds
        since 1970, for headers that name a moment."""
        scarce = read_limits(headers, now, at_most=_SCARCE)
        if not scarce and not (self.stated and read_limits(headers, now)):
            return False
        self.stated = [
            (left.what, Stated(left, left.reset, at)) for left in scarce if left.reset is not None
        ]
        return True

    def refused(self, error: AnaphoraError, at: float) -> bool:
        """A rate limit that says how long it lasts stops the lane until then."""
        if not isinstance(error, RateLimited) or error.retry_after is None:
            return False
        self.stopped = max(self.stopped, at + error.retry_after)
        return True

    def counted(self, usage: Usage) -> int | None:
        """The tokens of a prompt, as the provider counts them; None when it did not say."""
        uncached, read, written = usage.uncached, usage.read, usage.written
        if uncached is None and read is None and written is None:
            return None
        counted = (uncached or 0) + (sum(written.values()) if written else 0)
        return counted + (read or 0) if self.counts_reads else counted
