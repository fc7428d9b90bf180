"""How long a conversation pauses between its calls, learned from the pauses it made."""

from __future__ import annotations

import functools

#: What is believed before anything was seen: most calls follow within minutes.
_BELIEF = ((300.0, 0.9), (3600.0, 0.98))
#: How many pauses that belief is worth.
_WEIGHT = 0.5
#: How often something is used again, when nobody knows.
SOME = 8
#: Pauses that are remembered; what was long ago says little about what comes.
_MOST = 64


class Gaps:
    """The pauses between uses of a prefix."""

    __slots__ = ("_last", "_seen", "_short", "count")

    def __init__(self) -> None:
        self._seen: list[float] = []  # few, and of these objects there are many
        self._short: dict[float, int] = {}
        """How many of them were no longer than what somebody asked for."""
        self._last: float | None = None
        self.count = 0
        """Uses so far."""

    def use(self, at: float) -> None:
        if self._last is not None:
            gap = max(0.0, at - self._last)
            gone = self._seen.pop(0) if len(self._seen) == _MOST else None
            self._seen.append(gap)
            for seconds in self._short:
                if gap <= seconds:
                    self._short[seconds] += 1
                if gone is not None and gone <= seconds:
                    self._short[seconds] -= 1
        self._last = at
        self.count += 1

    def within(self, seconds: float, at: float) -> float:
        """How likely the use after one at `at` comes within so many seconds."""
        short, seen = self._short.get(seconds), len(self._seen)
        if short is None:
            short = self._short[seconds] = sum(gap <= seconds for gap in self._seen)
        if self._last is not None:
            seen += 1
            short += at - self._last <= seconds
        return (_WEIGHT * _believed(seconds) + short) / (_WEIGHT + seen)

    def typical(self, at: float) -> float:
        """The pause in the middle of those seen; a minute where none was."""
        seen = sorted(self._seen)
        if self._last is not None and at > self._last:
            seen = sorted([*seen, at - self._last])
        return seen[len(seen) // 2] if seen else 60.0

    def horizon(self, usual: float | None = None) -> float:
        """How many more uses to expect: about as many as there were, and at least some, unless
        it is usually over before."""
        left = SOME if usual is None else min(SOME, usual - self.count)
        return max(left, self.count, 1)


@functools.cache
def _believed(seconds: float) -> float:
    """Between the two points, in proportion; beyond them, flat or towards certainty."""
    (short, some), (long, most) = _BELIEF
    if seconds <= short:
        return some * seconds / short
    if seconds <= long:
        return some + (most - some) * (seconds - short) / (long - short)
    return most + (1 - most) * min(1.0, (seconds - long) / (24 * 3600 - long))
