"""The thread that fills the sums while pages are served."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from time import monotonic

from anaphora.client.failures import described, log
from anaphora.errors import AnaphoraError

from .filling import Filler

_log = logging.getLogger("anaphora.dashboard")

#: Seconds between two looks at the log, and while a page is open.
_INTERVAL, _SHORT_INTERVAL = 3.0, 0.2
#: A page is open for so many seconds after it asked for something.
_OPEN = 5.0
#: Seconds of rest for each second of work, and while a page is open.
_REST, _SHORT_REST = 3.0, 1.0


class FillThread:
    """Fills every few seconds; several times a second while a page is open. It rests longer than it
    works, so that a long log is read beside the daemon's calls."""

    def __init__(self, filler: Filler) -> None:
        self.filler = filler
        self.version = 0
        """Grows when calls were added."""
        self.problem = ""
        """Why the sums cannot be filled; empty where they can."""
        self._asked = float("-inf")
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="anaphora dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it was adding is added at the next start."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.filler.close()

    def asked(self) -> None:
        """A page asks for something."""
        before, self._asked = self._asked, monotonic()
        if self._asked - before > _OPEN:
            self._wake.set()

    @property
    def _page_is_open(self) -> bool:
        return monotonic() - self._asked < _OPEN

    def fill(self, pause: Callable[[float], None]) -> None:
        """Adds all that is new. For callers without a thread."""
        while self.filler.fill(pause):
            self.version += 1
        self.problem = self.filler.problem

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                if not self._fill():
                    self._wake.wait(_SHORT_INTERVAL if self._page_is_open else _INTERVAL)
                    self._wake.clear()
        except _Ended:
            pass

    def _fill(self) -> bool:
        """Whether there may be more."""
        try:
            more = self.filler.fill(self._rest)
        except _Ended:
            raise
        except Exception as problem:  # a page shows what was summed before
            self._failed(problem)
            return False
        self.problem = self.filler.problem
        self.version += more
        return more

    def _failed(self, problem: Exception) -> None:
        if isinstance(problem, sqlite3.DatabaseError) and not isinstance(
            problem, sqlite3.OperationalError
        ):
            self.filler.discard()  # damaged: it is made anew
        known = isinstance(problem, OSError | sqlite3.Error | AnaphoraError)
        reason = str(problem) if known else described(problem)
        if reason != self.problem:
            log(
                logging.ERROR, f"the sums of the dashboard were not filled: {reason}", problem, _log
            )
        self.problem = reason

    def _rest(self, worked: float) -> None:
        if self._ending.wait(worked * (_SHORT_REST if self._page_is_open else _REST)):
            raise _Ended


class _Ended(Exception):
    """The thread ends within a batch, which is not written."""
