"""Counts that the processes of one daemon share, in memory that they inherit.

    counts = SharedCounts.create(processes=3)           in the process that starts the others
    counts = SharedCounts(counts.descriptor, 3, 1)      in one of those, which inherits the file
    counts.add("calls notes", 1, most=16)               exact over all processes
    counts.clear(1)                                     a process has ended, and its counts with it

A row of the table has the digest of a name and a number for each process. A process changes only
its own number, with the file locked; the system releases the lock of a process that is killed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any, Self

from blake3 import blake3

from anaphora.bounded import BoundedMap
from anaphora.serving.counts import NamedCounts, remaining

#: Rows for counts and for failures, and rows in which a name may be.
_ROWS, _FAILING_ROWS, _NEAR = 1 << 15, 1 << 14, 64
#: Numbers of a row before those of the processes: the digest of its name.
_HEAD = 2
WINDOW_CELLS = 1 << 22
"""Numbers of `SharedWindows`. The system provides memory only for those that are used."""
#: Of failures: how many, in millionths, and when, in microseconds.
_MILLION = 1_000_000
_MOST_NAMES = 4_096


class SharedCounts(NamedCounts):
    """One process's view. Used from one event loop."""

    def __init__(self, descriptor: int, processes: int, own: int) -> None:
        """`own` is the number of this process, from 0 on."""
        super().__init__()
        self.descriptor = descriptor
        self.processes = processes
        self._width = _HEAD + max(processes, 2)
        self._own = _HEAD + own
        self._first = processes + WINDOW_CELLS
        self._memory = mmap.mmap(descriptor, _size(processes))
        self.cells = memoryview(self._memory).cast("q")
        self._own_beat = own
        self.locked = PartLock(descriptor, 0)
        self._places = BoundedMap[str, tuple[int, int, int]](_MOST_NAMES)

    @classmethod
    def create(cls, processes: int) -> Self:
        if hasattr(os, "memfd_create"):  # a disk may be full when a page is first written to
            opened = os.memfd_create("anaphora counts")
        else:
            with tempfile.TemporaryFile() as file:
                opened = os.dup(file.fileno())
        os.truncate(opened, _size(processes))
        return cls(opened, processes, 0)

    def close(self) -> None:
        self.cells.release()
        self._memory.close()
        os.close(self.descriptor)

    def add(self, name: str, by: int, most: float = inf) -> bool:
        if by < 0:  # as long as a process counts something in it, a row is not given away
            self.cells[self._row(name) + self._own] += by
            return True
        with self.locked:
            row = self._row(name)
            if most != inf and self._sum(row) + by > most:
                return False
            self.cells[row + self._own] += by
            return True

    def beat(self) -> None:
        """Called every second: this process runs. Needs no lock."""
        self.cells[self._own_beat] += 1

    def beats(self, process: int) -> int:
        return self.cells[process]

    def of(self, name: str) -> int:
        with self.locked:
            return self._sum(self._row(name))

    def add_failure(self, name: str, now: float, rate: float, most: float) -> float:
        cells = self.cells
        with self.locked:
            row = self._row(name, failing=True)
            found, since = cells[row + _HEAD] / _MILLION, cells[row + _HEAD + 1] / _MILLION
            used = remaining(found, since, now, rate) if found else 0.0
            cells[row + _HEAD] = round((used if used + 1 > most else used + 1) * _MILLION)
            cells[row + _HEAD + 1] = round(now * _MILLION)
            return used

    def clear(self, process: int) -> None:
        """Forgets the counts of a process that has ended."""
        with self.locked:
            for row in range(self._first, self._first + _ROWS * self._width, self._width):
                if self.cells[row + _HEAD + process]:
                    self.cells[row + _HEAD + process] = 0

    def log_lock(self) -> AbstractContextManager[None]:
        """Only one process writes to the log at a time. For another thread than the rest."""
        return PartLock(self.descriptor, 1)

    @staticmethod
    def digest(name: str) -> tuple[int, int]:
        """Two numbers; the second is not 0, by which unused rows are known."""
        found = blake3(name.encode(errors="replace")).digest(16)
        low, high = (int.from_bytes(part, signed=True) for part in (found[:8], found[8:]))
        return low, high or 1

    def _sum(self, row: int) -> int:
        return sum(self.cells[row + _HEAD : row + self._width])

    def _row(self, name: str, *, failing: bool = False) -> int:
        """The place of a name. If it has none, it gets one that is not in use."""
        place = self._places.use(name)
        if place is None:
            low, high = self.digest(name)
            rows = _FAILING_ROWS if failing else _ROWS
            first = (_ROWS if failing else 0) + low % (rows - _NEAR)
            place = self._places[name] = first, low, high
        first, low, high = place
        cells, width, unused, oldest = self.cells, self._width, -1, inf
        first = self._first + first * width
        for row in range(first, first + _NEAR * width, width):
            if cells[row] == low and cells[row + 1] == high:
                return row
            if not cells[row + 1]:  # never used, so no later one is
                unused = row if unused < 0 else unused
                break
            if failing:
                if cells[row + _HEAD + 1] < oldest:
                    unused, oldest = row, cells[row + _HEAD + 1]
            elif unused < 0 and not any(cells[row + _HEAD : row + width]):
                unused = row
        assert unused >= 0, "the table of counts is full"
        cells[unused], cells[unused + 1] = low, high
        for cell in range(unused + _HEAD, unused + width):
            cells[cell] = 0
        return unused


class PartLock(AbstractContextManager[None]):
    """A lock of one part of a file, for one process at a time."""

    def __init__(self, descriptor: int, part: int) -> None:
        self._take = partial(fcntl.lockf, descriptor, fcntl.LOCK_EX, 1, part)
        self._release = partial(fcntl.lockf, descriptor, fcntl.LOCK_UN, 1, part)

    def __enter__(self) -> None:
        while True:
            try:
                self._take()
                return
            except OSError as problem:
                # Two threads of each process wait for different parts, none for two. The system,
                # which knows only processes, may take that for a deadlock.
                if problem.errno != errno.EDEADLK:
                    raise

    def __exit__(self, *_: Any) -> None:
        self._release()


def _size(processes: int) -> int:
    """Bytes of beats, windows and counts."""
    counts = (_HEAD + max(processes, 2)) * (_ROWS + _FAILING_ROWS)
    return 8 * (processes + WINDOW_CELLS + counts)
