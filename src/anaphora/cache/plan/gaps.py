"""How long a conversation pauses between its calls, learned from the pauses it made."""

from __future__ import annotations

import functools

#: Prior P(next call within t): most calls follow within minutes.
_PRIOR = ((300.0, 0.9), (3600.0, 0.98))
#: How many observed pauses the prior is worth.
_WEIGHT = 0.5
#: Expected number of further uses without any history.
SOME = 8
#: Pauses that are remembered; old ones say little about the next.
_MOST = 64


class Gaps:
    """The pauses between uses of a prefix."""

    __slots__ = ("_last", "_seen", "_short", "count")

    def __init__(self) -> None:
        self._seen: list[float] = []  # few, and of these objects there are many
        self._short: dict[float, int] = {}
        """How many of them were no longer than a duration that was asked for."""
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
        """P(the use after one at `at` comes within this many seconds)."""
        short, seen = self._short.get(seconds), len(self._seen)
        if short is None:
            short = self._short[seconds] = sum(gap <= seconds for gap in self._seen)
        if self._last is not None:
            seen += 1
            short += at - self._last <= seconds
        return (_WEIGHT * _prior(seconds) + short) / (_WEIGHT + seen)

    def typical(self, at: float) -> float:
        """The median pause; one minute before the first."""
        seen = sorted(self._seen)
        if self._last is not None and at > self._last:
            seen = sorted([*seen, at - self._last])
        return seen[len(seen) // 2] if seen else 60.0

    def horizon(self, usual: float | None = None) -> float:
        """How many more uses to expect after the one at hand: about as many as there were, and
        `SOME` at first. `usual` is how many uses there are in all, where that is known; only
        before the first use may that mean none."""
        left = SOME if usual is None else min(SOME, usual - 1 - self.count)
        return max(left, self.count, 1 if self.count else 0)


@functools.cache
def _prior(seconds: float) -> float:
    """Linear between the two points of the prior; beyond them towards 1 at 24 hours."""
    (short, some), (long, most) = _PRIOR
    if seconds <= short:
        return some * seconds / short
    if seconds <= long:
        return some + (most - some) * (seconds - short) / (long - short)
    return most + (1 - most) * min(1.0, (seconds - long) / (24 * 3600 - long))
