"""A provider's own limit, as its headers state it, and what was taken from it since.

Headers tell what is left, of how much, and when all of it is there again. Until then it comes back
bit by bit, or all at once; afterwards it is taken to come back at the limit a minute. Whoever is
wrong here sends too early once and is told by the provider; nobody waits longer than the headers
say and a minute more.
"""

from __future__ import annotations

from anaphora.wire.ratelimits import Left

from .scope import SPAN

_INF = float("inf")
#: Amounts are whole; what is missing less than this is rounding.
_ENOUGH = 1e-6


class Stated:
    """One limit. Only kept when its end is known: what has none holds nobody back."""

    __slots__ = ("_at", "_full_at", "_limit", "_rate", "_sudden", "level")

    def __init__(self, left: Left, reset: float, at: float) -> None:
        self._limit = _INF if left.limit is None else max(left.limit, left.remaining)
        self.level = left.remaining
        """What is there at least: what came back since is not in it."""
        self._at = at
        self._full_at = at + reset
        missing = self._limit - self.level
        self._sudden = not left.gradual or missing == _INF or not reset
        self._rate = 0.0 if self._sudden else missing / reset

    def copy(self) -> Stated:
        other: Stated = object.__new__(Stated)
        for name in Stated.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def opens(self, amount: float, at: float) -> float:
        """When so much is there. More than the limit is there when all of it is."""
        amount = min(amount, self._limit) - _ENOUGH
        if self._level_at(at) >= amount:
            return at
        if not self._sudden and self._rate:
            then = self._at + (amount - self.level) / self._rate
            if then < self._full_at:
                return max(at, then)
        full = self._level_at(self._full_at)
        if full >= amount:
            return max(at, self._full_at)
        return max(at, self._full_at + (amount - full) / self._later)

    def take(self, amount: float, at: float) -> None:
        """A call starts; with less than nothing, one that did not happen gives back."""
        if at < self._full_at:
            self.level -= amount
            return
        self.level = self._level_at(at) - amount
        self._at = self._full_at = at
        self._rate, self._sudden = self._later, False

    @property
    def _later(self) -> float:
        """How fast it comes back when the time that the headers spoke of is over."""
        return max(self._rate, self._limit / SPAN)

    def _level_at(self, at: float) -> float:
        if self.level == _INF:
            return _INF
        if at < self._full_at:
            return min(self._limit, self.level + self._rate * (at - self._at))
        if self._sudden:
            return self._limit
        full = min(self._limit, self.level + self._rate * (self._full_at - self._at))
        return min(self._limit, full + self._later * (at - self._full_at))
