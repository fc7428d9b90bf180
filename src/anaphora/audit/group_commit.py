"""The thread that commits items in batches: rows of the audit log, operations of the ledger.

Items that arrive during a commit go into the next one (group commit), so that a disk with a hundred
syncs per second still takes thousands of items.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

#: Maximum number of items of one commit, not counting retried ones.
MOST_ITEMS = 2_000
#: Seconds before a failed commit is retried: at first, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0


class GroupCommit(Generic[T]):
    """Takes items from any thread, and commits them in their order."""

    def __init__(
        self,
        name: str,
        commit: Callable[[list[T]], list[T] | None],
        ended: Callable[[list[T], BaseException | None], None],
        *,
        collect: float = 0.0,
        patient: bool = False,
    ) -> None:
        """`commit` writes a batch. It returns None if it succeeded; otherwise it is called again
        later, with what it returned and the new items: immediately when an item arrives, unless
        `patient`. `ended` is called at the end, with the uncommitted items and the exception of
        `commit`. `collect`: how many seconds items wait for others."""
        self._commit = commit
        self._ended = ended
        self._collect = collect
        self._patient = patient
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: T) -> None:
        self._queue.put(item)

    def wake(self) -> None:
        """Calls `commit` even without an item."""
        self._queue.put(None)

    def hurry(self) -> None:
        """Commits the waiting items without waiting for more."""
        self._hurry.set()

    def close(self) -> None:
        """Commits the waiting items once more, and ends the thread."""
        self._stopped.set()
        self._hurry.set()
        self._queue.put(None)
        if self._thread.ident is None:  # it was never started
            self._run()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        left: list[T] | None = None
        wait, problem = FIRST_WAIT, None
        try:
            while not (self._stopped.is_set() and (left is not None or self._queue.empty())):
                batch = self._next(left, wait)
                has_failed = left is not None
                left = batch  # if `commit` raises
                left = self._commit(batch)
                wait = (
                    min(2 * wait, LONGEST_WAIT) if has_failed and left is not None else FIRST_WAIT
                )
        except BaseException as raised:
            problem = raised
        self._ended([*(left or ()), *self._taken()], problem)

    def _next(self, left: list[T] | None, wait: float) -> list[T]:
        first = None
        if left is None:
            first = self._queue.get()
        elif self._patient:
            self._stopped.wait(wait)
        else:
            with suppress(Empty):
                first = self._queue.get(timeout=wait)
        if self._collect:
            self._hurry.wait(self._collect)
            self._hurry.clear()
        batch = [*(left or ()), *([] if first is None else [first])]
        return batch + self._taken(MOST_ITEMS - len(batch))

    def _taken(self, most: float = float("inf")) -> list[T]:
        found: list[T] = []
        with suppress(Empty):
            while len(found) < most:
                item = self._queue.get_nowait()
                if item is not None:
                    found.append(item)
        return found
