"""The clock of this node beside PostgreSQL's: one that is far ahead would begin the next day for
all nodes, with new limits."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds that the clock of a node may differ; a clock that is set by NTP differs by less than one.
MOST_SKEW = 30.0

#: Seconds that a look at PostgreSQL's clock may take: what it says is not older than that.
_MOST_LATE = 2.0

PUBLIC = "this node cannot take calls at the moment; send the call again later"


class ClockCheck:
    """Between two looks at PostgreSQL's clock the monotonic one tells how it goes on, so that a
    clock that is moved is noticed by the next call."""

    def __init__(self, clock: Callable[[], float], most: float | None) -> None:
        """Nothing is checked where `most` is None."""
        self._clock = clock
        self._most = most
        self._offset: float | None = None
        """PostgreSQL's time less the monotonic one."""

    def seen(self, at: float, *, asked: float) -> None:
        """PostgreSQL's clock was at `at` when it was read at `asked`, monotonic."""
        now = time.monotonic()
        if now - asked <= _MOST_LATE:
            self._offset = at - (asked + now) / 2

    @property
    def skew(self) -> float:
        """Seconds that this clock is ahead; 0 where PostgreSQL's is not known."""
        if self._offset is None:
            return 0.0
        return self._clock() - self._offset - time.monotonic()

    @property
    def problem(self) -> str | None:
        if self._most is None or abs(skew := self.skew) <= self._most:
            return None
        direction = "ahead of" if skew > 0 else "behind"
        return (
            f"the clock of this node is {abs(skew):,.0f} s {direction} PostgreSQL's, and may differ"
            f" by {self._most:g} s; set both by NTP"
        )
