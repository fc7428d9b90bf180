"""How long a conversation pauses between its calls, learned from the pauses it made."""

from __future__ import annotations

from collections import deque

#: What is believed before anything was seen: most calls follow within minutes.
_BELIEF = ((300.0, 0.9), (3600.0, 0.98))
#: How many pauses that belief is worth.
_WEIGHT = 0.5
#: Pauses that are remembered; what was long ago says little about what comes.
_MOST = 64


class Gaps:
    """The pauses between uses of a prefix."""

    __slots__ = ("_last", "_seen", "count")

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_MOST)
        self._last: float | None = None
        self.count = 0
        """Uses so far."""

    def use(self, at: float) -> None:
        if self._last is not None:
            self._seen.append(max(0.0, at - self._last))
        self._last = at
        self.count += 1

    def within(self, seconds: float) -> float:
        """How likely the next use comes within so many seconds."""
        short = sum(1 for gap in self._seen if gap <= seconds)
        return (_WEIGHT * _believed(seconds) + short) / (_WEIGHT + len(self._seen))

    @property
    def horizon(self) -> int:
        """How many more uses to expect: about as many as there were, and at least a few."""
        return max(3, self.count)


def _believed(seconds: float) -> float:
    """Between the two points, in proportion; beyond them, flat or towards certainty."""
    (short, some), (long, most) = _BELIEF
    if seconds <= short:
        return some * seconds / short
    if seconds <= long:
        return some + (most - some) * (seconds - short) / (long - short)
    return most + (1 - most) * min(1.0, (seconds - long) / (24 * 3600 - long))
