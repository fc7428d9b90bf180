"""What the configuration allows in a minute and at once: of a provider, or of one model."""

from __future__ import annotations

from collections import deque

from anaphora.client.config.values import Rate

from .reservation import Reservation

SPAN = 60.0
_INF = float("inf")


class Scope:
    """Keeps what started in the last minute. Asked about the present, which never goes back."""

    __slots__ = (
        "log",
        "places",
        "requests",
        "running",
        "tokens",
        "used_requests",
        "used_tokens",
        "windowed",
    )

    def __init__(self, rate: Rate) -> None:
        self.requests: float = rate.requests_per_minute or _INF
        self.tokens: float = rate.tokens_per_minute or _INF
        self.places: float = rate.concurrency or _INF
        self.windowed = min(self.requests, self.tokens) < _INF
        """Whether the last minute matters; where it does not, it is not kept."""
        self.log: deque[Reservation] = deque()
        """By start."""
        self.used_requests = 0
        self.used_tokens = 0
        self.running = 0

    @property
    def binds(self) -> bool:
        """Whether it limits anything."""
        return self.windowed or self.places < _INF

    def forget(self, at: float) -> None:
        """What started a minute ago does not count any more."""
        log = self.log
        while log and log[0].at + SPAN <= at:
            gone = log.popleft()
            self.used_requests -= gone.requests
            self.used_tokens -= gone.tokens

    def open(self, tokens: int, at: float) -> bool:
        """Whether a call may start now."""
        self.forget(at)
        return (
            self.running < self.places
            and self.used_requests < self.requests
            and self.used_tokens + tokens <= self.tokens
        )

    def opens(self, tokens: int, at: float) -> float:
        """When a call may start, if nothing else does before; never, as far as is known, while all
        places are taken."""
        if self.running >= self.places:
            return _INF
        self.forget(at)
        requests, used = self.used_requests, self.used_tokens
        for started in self.log:
            if requests < self.requests and used + tokens <= self.tokens:
                return at
            at = started.at + SPAN
            requests -= started.requests
            used -= started.tokens
        return at

    def enter(self, reservation: Reservation) -> None:
        """A call starts."""
        self.running += 1
        if self.windowed:
            self.log.append(reservation)
            self.used_requests += reservation.requests
            self.used_tokens += reservation.tokens
