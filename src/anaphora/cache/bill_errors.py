"""The range of a predicted bill, from the errors of earlier predictions."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

#: Errors before a range follows from them, and the latest ones that it follows from.
_LEAST, _LATEST = 10, 200
#: The share of bills that a range should hold, and what it aims at first.
_SHARE, _AIM = 0.9, 0.93
#: How fast the aim follows bills that were outside of their ranges.
_STEP = 0.02


class BillRange(NamedTuple):
    low: float
    high: float


class _Errors:
    """Billed amounts over predicted ones, as logarithms."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._aim = _AIM

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, error: float) -> None:
        if len(self) >= _LEAST:
            low, high = self.spread()
            outside = not low <= error <= high
            self._aim = min(1.0, max(_SHARE, self._aim + _STEP * (outside - (1 - _AIM))))
        self._latest.append(error)
        insort(self._sorted, error)
        if len(self) > _LATEST:
            self._sorted.remove(self._latest.popleft())

    def spread(self) -> tuple[float, float]:
        """The shortest interval that holds the share."""
        errors, count = self._sorted, len(self)
        inside = min(count, math.ceil(self._aim * (count + 1)))
        starts = range(count - inside + 1)
        first = min(starts, key=lambda at: errors[at + inside - 1] - errors[at])
        return errors[first], errors[first + inside - 1]


class BillErrors:
    """The errors of the predicted bills of one provider entry."""

    def __init__(self) -> None:
        self._errors: dict[Hashable, _Errors] = {}

    def range_of(self, situations: Sequence[Hashable], predicted: float) -> BillRange | None:
        """Nine bills in ten are inside. `situations` describe the call, the closest first; the
        first one with enough errors counts. None where none has."""
        for situation in situations:
            errors = self._errors.get(situation)
            if errors is not None and len(errors) >= _LEAST:
                low, high = errors.spread()
                return BillRange(predicted * math.exp(low), predicted * math.exp(high))
        return None

    def learn(self, situations: Sequence[Hashable], predicted: float, billed: float) -> None:
        if predicted > 0 and billed > 0:
            for situation in situations:
                errors = self._errors.setdefault(situation, _Errors())
                errors.add(math.log(billed / predicted))
