"""A clock for what expires: neither a wrong step back nor one ahead has lasting effects.

now = SteadyClock(time.time)
now()
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

#: Seconds after which a step back is no mistake: the clock was ahead before.
_BELIEVED = 60.0


class SteadyClock:
    """Follows another clock. A step back is followed after a minute, as a restart would do at once:
    until then the time stands still, and what has expired stays expired."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest = clock()
        self._behind: float | None = None
        """When the other clock was first behind."""

    def __call__(self) -> float:
        now = self._clock()
        if now < self._latest:
            ticks = monotonic()
            if self._behind is None:
                self._behind = ticks
            if ticks - self._behind <= _BELIEVED:
                return self._latest
        self._latest, self._behind = now, None
        return now
