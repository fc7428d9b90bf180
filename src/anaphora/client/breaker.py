"""Leaves a provider alone that fails again and again, and asks a little later whether it is well.

    closed ──so many failures within a time──▶ open ──a while──▶ half open ──an answer──▶ closed
                                                 ◀────another failure────┘

Only the provider's own failures count: `Overloaded` and `Transport`. A bad key, a bad request or a
rate limit says nothing of its health; a rate limit has the limits to keep it. An answer takes one
failure back: five failures among five thousand answers open nothing, five more failures than
answers do.

Time is an argument, in seconds on any clock that does not go back.
"""

from __future__ import annotations

from collections import deque

from anaphora.client.config.values import BreakerConfig
from anaphora.errors import AnaphoraError, Overloaded, RateLimited, Transport, Upstream


class Breaker:
    """One provider's."""

    __slots__ = ("_settings", "_failures", "_open_until", "_probes")

    def __init__(self, settings: BreakerConfig) -> None:
        self._settings = settings
        self._failures: deque[float] = deque()
        """When it failed, in the time that counts."""
        self._open_until: float | None = None
        """None while closed. Past that moment it is half open."""
        self._probes: deque[float] = deque()
        """When the calls began that try whether it is well."""

    def allows(self, at: float) -> float:
        """0.0 when a call may go now, otherwise how many seconds it would have to wait. Only asks:
        a call that goes says so with `enters`."""
        if self._open_until is None:
            return 0.0
        if at < self._open_until:
            return self._open_until - at
        settings = self._settings
        # A probe whose end nobody told is not waited for any longer than the provider itself.
        while self._probes and at >= self._probes[0] + settings.open_for:
            self._probes.popleft()
        if len(self._probes) < settings.probes:
            return 0.0
        return self._probes[0] + settings.open_for - at

    def enters(self, at: float) -> float:
        """Like `allows`, and with 0.0 the call is on its way: while half open it is a probe, until
        `succeeded`, `failed` or `left` is told."""
        if self._open_until is None:
            return 0.0
        wait = self.allows(at)
        if not wait:
            self._probes.append(at)
        return wait

    def succeeded(self, at: float) -> None:
        """A call was answered."""
        if self._open_until is None:
            if self._failures:
                self._forget(at)
                if self._failures:
                    self._failures.popleft()
        elif at >= self._open_until:
            self._close()

    def failed(self, error: AnaphoraError, at: float) -> None:
        """A call failed; which calls count is decided here."""
        if isinstance(error, Overloaded | Transport):
            self._count(at)
        elif isinstance(error, Upstream) and not isinstance(error, RateLimited):
            # It answered, and it was the request or the key that it did not like.
            if self._open_until is not None and at >= self._open_until:
                self._close()
        else:
            self.left(at)

    def left(self, at: float) -> None:
        """A call ended without a word about the provider: cancelled, say."""
        if self._open_until is not None and at >= self._open_until and self._probes:
            self._probes.popleft()

    def _count(self, at: float) -> None:
        if self._open_until is not None:
            # Failures of calls that began before it opened add nothing to that.
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
        self._failures.clear()
        self._probes.clear()
