"""Stops calling a provider that fails repeatedly, and probes it a while later.

    closed ──failures within a window──▶ open ──open_for──▶ half open ──success──▶ closed
                                           ◀────another failure────┘

Only the provider's failures count: `Overloaded` and `Transport`. A bad key, a bad request or a rate
limit does not. Each success takes one failure back, so that five failures among five thousand
successes do not open it.

Time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque

from anaphora.client.config.values import BreakerConfig
from anaphora.errors import AnaphoraError, Overloaded, RateLimited, Transport, Upstream


class CircuitBreaker:
    """The breaker of one provider."""

    __slots__ = ("_settings", "_failures", "_open_until", "_probes", "calm")

    def __init__(self, settings: BreakerConfig) -> None:
        self._settings = settings
        self._failures: deque[float] = deque()
        """Times of the failures within the window."""
        self._open_until: float | None = None
        """None: closed. After this time: half open."""
        self._probes: deque[float] = deque()
        """Start times of the probes in flight."""
        self.calm = True
        """Closed without a recent failure: calls need neither `enters` nor `succeeded`."""

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
        """A call succeeded."""
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
