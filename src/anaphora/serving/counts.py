"""Counts by name, in memory: running calls, connections, bytes of unread bodies, failed logins.

    counts = Counts()
    counts.add("calls notes", 1, most=16)       False: there are 16
    counts.add("calls notes", -1)

A daemon with several processes shares its counts: see `daemon.shared_state.shared_counts`.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from anaphora.bounded import BoundedMap

#: Maximum number of names with failures; the one without a failure for longest is dropped.
MOST_FAILING = 10_000


class Counts:
    """Of one process. Used from one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failures = BoundedMap[str, tuple[float, float]](MOST_FAILING)

    def add(self, name: str, by: int, most: float = inf) -> bool:
        """Changes a count. False, without changing it, if it would exceed `most`."""
        found = self._counts[name] + by
        if by > 0 and found > most:
            return False
        self._counts[name] = found
        if not found:
            del self._counts[name]
        return True

    def of(self, name: str) -> int:
        return self._counts[name]

    def add_failure(self, name: str, now: float, rate: float, most: float) -> float:
        """The number of failures so far, less `rate` for each second since they happened. Another
        one is added unless that would exceed `most`."""
        used, since = self._failures.pop(name, (0.0, now))
        used = remaining(used, since, now, rate)
        self._failures[name] = (used if used + 1 > most else used + 1, now)
        return used


def remaining(used: float, since: float, now: float, rate: float) -> float:
    return max(0.0, used - max(0.0, now - since) * rate)
