"""Tools and system blocks, rendered once for all conversations that use the same ones.

The bytes live as long as somebody uses them; the memo only points at them weakly, but for the last
few: calls on their own come one after the other, with the same tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast
from weakref import WeakValueDictionary

from anaphora.rendered import ChunkLog, ChunkRun

from .seen import has_mutable_extras

T = TypeVar("T")

#: Logs that are kept though nobody uses them at the moment.
_KEPT = 16


class SharedLogs:
    """Logs of immutable sources: the last turn's where that is equal, or found by identity."""

    def __init__(self) -> None:
        # The log holds its source, so an id in here cannot come to mean another object.
        self._by_identity: WeakValueDictionary[int, ChunkLog] = WeakValueDictionary()
        self._recent: deque[ChunkLog] = deque(maxlen=_KEPT)

    def get(self, source: T, last: ChunkRun | None, render: Callable[[T], ChunkLog]) -> ChunkLog:
        if isinstance(source, list):
            source = cast(T, tuple(source))  # somebody may change the list
        if last is not None and last.log.source == source:
            return last.log
        log = self._by_identity.get(id(source))
        if log is not None and log.source is source:
            return log
        log = render(source)
        log.source = source
        if not has_mutable_extras(source):
            self._by_identity[id(source)] = log
            self._recent.append(log)
        return log
