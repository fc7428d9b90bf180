"""Tools and system blocks, rendered once for all conversations that use the same ones.

The bytes live as long as somebody uses them: the memo only points at them weakly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anaphora.rendered import ChunkLog, Run

T = TypeVar("T")


class SharedLogs:
    """Logs of immutable sources: the last turn's where that is equal, or found by identity."""

    def __init__(self) -> None:
        # The log holds its source, so an id in here cannot come to mean another object.
        self._by_identity: WeakValueDictionary[int, ChunkLog] = WeakValueDictionary()

    def get(self, source: T, last: Run | None, render: Callable[[T], ChunkLog]) -> ChunkLog:
        if last is not None and last.log.source == source:
            return last.log
        log = self._by_identity.get(id(source))
        if log is not None and log.source is source:
            return log
        log = render(source)
        log.source = source
        self._by_identity[id(source)] = log
        return log
