"""The queue of calls whose answer has gone: what is left to do for them is done for many at a time,
which costs much less than for each by itself.

It is bounded: when it is full, the call that fills it waits until all are done. A stopping daemon
empties it; the audit rows that a killed one had not written are made from the ledger at its next
start (decision 0028).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

from anaphora.client.failures import log

from .call import AppCall

#: Maximum number of waiting calls. Each keeps its prompt until then.
MOST_WAITING = 64
#: Seconds for which calls are collected.
_COLLECT = 0.02


class AnsweredCall:
    """A call, and the context in which it was made: watchers find its trace there."""

    __slots__ = ("call", "context")

    def __init__(self, call: AppCall, context: Context) -> None:
        self.call = call
        self.context = context


class AnsweredCalls:
    """Used from one event loop."""

    def __init__(self, finish: Callable[[Sequence[AnsweredCall]], None]) -> None:
        """`finish` does what is left to do for some calls, in their order."""
        self._finish = finish
        self._waiting: list[AnsweredCall] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: AppCall) -> None:
        self._waiting.append(AnsweredCall(call, copy_context()))
        if len(self._waiting) >= MOST_WAITING:
            self.finish()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COLLECT, self.finish)

    def finish(self) -> None:
        """Does it for all waiting calls. Never raises."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self._finish(waiting)
            except Exception as problem:
                log(logging.ERROR, "a step behind an answer failed", problem)
