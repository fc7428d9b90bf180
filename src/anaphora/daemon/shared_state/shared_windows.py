"""Requests and tokens of the last minute by name, exact over all processes of a daemon: what
`MinuteWindows` is for one process, in the memory of `SharedCounts`.

A row has the digest of a name, the number of its last slot, and a ring with the slots of a minute.
No sums are kept, so that a process killed in the middle of a change leaves a row that is wrong by
its own call at most.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from math import ceil
from typing import Literal

from anaphora.bounded import BoundedMap

from .shared_counts import WINDOW_CELLS, PartLock, SharedCounts
from .windows import MINUTE, NEXT_TRY, SLOT, MinuteLimit, MinuteWindows, Taken

#: Slots of a minute: those of which a part is within it.
_RING = int(MINUTE / SLOT) + 1
#: Rows in which a name may be.
_NEAR = 32
#: Places in a row, after the digest of its name.
_LAST, _REQUESTS, _TOKENS = 2, 3, 3 + _RING
_WIDTH = _TOKENS + _RING
_ROWS = WINDOW_CELLS // _WIDTH
_MOST_NAMES = 4_096
_MOST_TOKENS = 2**62


class SharedWindows(MinuteWindows):
    """One process's view. All processes pass times of the same monotonic clock."""

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts
        self._locked = PartLock(counts.descriptor, 2)
        self._first = counts.processes
        self._places = BoundedMap[str, tuple[int, int, int]](_MOST_NAMES)

    def take(self, name: str, limit: MinuteLimit, tokens: int, now: float) -> Taken:
        runs = limit.running is not None
        if limit.running is not None and not self._run(name, 1, limit.running):
            return Taken(name, int(now // SLOT), tokens, NEXT_TRY, "running")
        with self._locked:
            row, number = self._row(name, now)
            wait, by = self._wait(row, number, limit, tokens, max(now, number * SLOT))
            if not wait:
                self._add(row + _REQUESTS + number % _RING, 1)
                self._add(row + _TOKENS + number % _RING, tokens)
                return Taken(name, number, tokens, runs=runs)
        if runs:
            self._run(name, -1)
        return Taken(name, number, tokens, wait, by)

    def correct(self, taken: Taken, tokens: int) -> None:
        change, taken.tokens = tokens - taken.tokens, tokens
        if not change or taken.wait or not taken.slot:  # 0: not counted
            return
        with self._locked:
            row, number = self._row(taken.name, taken.slot * SLOT)
            if number - _RING < taken.slot:
                self._add(row + _TOKENS + taken.slot % _RING, change)

    def release(self, taken: Taken) -> None:
        if taken.runs:
            taken.runs = False
            self._run(taken.name, -1)

    def requests(self, name: str, now: float) -> int:
        with self._locked:
            row, _ = self._row(name, now)
            return sum(self._counts.cells[row + _REQUESTS : row + _TOKENS])

    def _run(self, name: str, by: int, most: float = 0.0) -> bool:
        return self._counts.add(f"running {name}", by, ceil(most))

    def _add(self, place: int, by: int) -> None:
        cells = self._counts.cells
        cells[place] = max(-_MOST_TOKENS, min(cells[place] + by, _MOST_TOKENS))

    def _wait(
        self, row: int, number: int, limit: MinuteLimit, tokens: int, now: float
    ) -> tuple[float, Literal["requests", "tokens"] | None]:
        """Seconds until the limit allows a call, and which limit it is."""
        cells, left, left_tokens, room, room_tokens = self._counts.cells, 0, 0, 0.0, 0.0
        if limit.requests is not None:
            left, room = sum(cells[row + _REQUESTS : row + _TOKENS]), limit.requests - 1
        if limit.tokens is not None:
            left_tokens = sum(cells[row + _TOKENS : row + _WIDTH])
            room_tokens = max(0.0, limit.tokens - tokens)
        by: Literal["requests", "tokens"] = "requests" if left > room else "tokens"
        at, slot = 0.0, number - _RING
        while (left > room or left_tokens > room_tokens) and slot < number:
            slot += 1
            counted = cells[row + _REQUESTS + slot % _RING], cells[row + _TOKENS + slot % _RING]
            if any(counted):
                left -= counted[0]
                left_tokens -= counted[1]
                at = (slot + 1) * SLOT + MINUTE
        return (at - now, by) if at > now else (0.0, None)

    def _row(self, name: str, now: float) -> tuple[int, int]:
        """The place of a name, and its present slot: the clock's, or a later one that another
        process has begun."""
        place = self._places.use(name)
        if place is None:
            low, high = self._counts.digest(name)
            first = self._first + low % (_ROWS - _NEAR) * _WIDTH
            place = self._places[name] = first, low, high
        first, low, high = place
        cells, row, number = self._counts.cells, first, int(now // SLOT)
        for each in range(first, first + _NEAR * _WIDTH, _WIDTH):
            if cells[each] == low and cells[each + 1] == high:
                last = cells[each + _LAST]
                for slot in range(max(last, number - _RING) + 1, number + 1):
                    cells[each + _REQUESTS + slot % _RING] = 0
                    cells[each + _TOKENS + slot % _RING] = 0
                cells[each + _LAST] = max(last, number)
                return each, max(last, number)
            if not cells[each + 1]:  # never used, so no later one is
                row = each
                break
            if cells[each + _LAST] < cells[row + _LAST]:
                row = each
        # In place of the one without a call for longest.
        cells[row : row + _WIDTH] = array("q", (low, high, number, *repeat(0, 2 * _RING)))
        return row, number
