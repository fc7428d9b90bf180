"""Observers of relayed calls, in a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence

from anaphora.client.failures import log

from .bypasses import bypass_notices
from .exchange import Observer, RelayedCall

#: Bodies that wait for observers, in bytes: above that, new calls wait for them.
_WAITING_BYTES = 256 * 1024 * 1024
#: Seconds between two looks at what waits.
_LOOK = 0.01


class ObserverThread:
    """Gives each call to the observers in the order they ended, beside the relay."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._queue: queue.SimpleQueue[RelayedCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._calls = 0
        self._thread: threading.Thread | None = None
        if self._observers:
            name = "anaphora-proxy-observers"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    @property
    def is_needed(self) -> bool:
        """Whether anyone looks at what is kept of a call."""
        return bool(self._observers)

    @property
    def is_busy(self) -> bool:
        """Whether a call was not observed yet."""
        return self._calls > 0

    async def has_room(self) -> None:
        """Returns when what waits fits in memory."""
        while self._waiting > _WAITING_BYTES:  # noqa: ASYNC110 - another thread's doing
            await asyncio.sleep(_LOOK)

    def add(self, call: RelayedCall) -> None:
        if self._thread is not None:
            with self._lock:
                self._waiting += _size(call)
                self._calls += 1
            self._queue.put(call)

    def close(self) -> None:
        """Returns when every call was observed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            size = _size(call)
            try:
                call.notices += bypass_notices(call)
            except Exception as problem:
                log(logging.ERROR, "looking for addresses in a response failed", problem)
            for observer in self._observers:
                self._tell(observer, call)
            with self._lock:
                self._waiting -= size
                self._calls -= 1

    def _tell(self, observer: Observer, call: RelayedCall) -> None:
        try:
            observer.call_ended(call)
        except Exception as problem:
            name = type(observer).__name__
            text = f"the observer {name} failed for call {call.number}: {type(problem).__name__}"
            log(logging.ERROR, text, problem)


def _size(call: RelayedCall) -> int:
    pieces = sum(len(piece.data) for piece in call.pieces or ())
    return pieces + len(call.request_body or b"") + len(call.sent_body or b"")
