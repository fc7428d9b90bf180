"""Where the tour is shown while it goes on: live on a terminal, as plain lines everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.live import Live
from rich.status import Status

from anaphora.cli._console import Terminal

from . import show, story
from .report import Break, Lane, Report


class Audience(Protocol):
    """Is told what happens, as it happens."""

    def opens(self, lanes: int) -> None: ...

    def taken(self, turn: int, lanes: Sequence[Lane]) -> None: ...

    def broke(self, found: Break) -> None: ...

    def serving(self) -> None: ...

    def closes(self, report: Report) -> None: ...

    def leave(self) -> None: ...


class Silent:
    """Nobody looks: the report is all that is wanted."""

    def opens(self, lanes: int) -> None: ...

    def taken(self, turn: int, lanes: Sequence[Lane]) -> None: ...

    def broke(self, found: Break) -> None: ...

    def serving(self) -> None: ...

    def closes(self, report: Report) -> None: ...

    def leave(self) -> None: ...


class Stage:
    def __init__(self) -> None:
        self._terminal = Terminal()
        self._moving = self._terminal.is_terminal and not self._terminal.is_dumb_terminal
        self._live: Live | None = None
        self._status: Status | None = None

    def opens(self, lanes: int) -> None:
        self._terminal.page(show.opening(lanes, self._width))
        self._terminal.print("", end="")
        if self._moving:
            self._live = Live(console=self._terminal, transient=True, auto_refresh=False)
            self._live.start()

    def taken(self, turn: int, lanes: Sequence[Lane]) -> None:
        page = show.bills(turn, lanes, self._width)
        if turn == len(story.STEPS):
            self.leave()
            self._terminal.page(page)
            self._terminal.page(show.after_bills(lanes, self._width))
        elif self._live is not None:
            self._live.update(page, refresh=True)

    def broke(self, found: Break) -> None:
        self._terminal.page(show.broken(found, self._width))

    def serving(self) -> None:
        if self._moving:
            self._status = self._terminal.status("llama.cpp reads a long prompt …")
            self._status.start()

    def closes(self, report: Report) -> None:
        self.leave()
        if report.served is not None:
            self._terminal.page(show.served(report.served, self._width))
        else:
            self._terminal.page(show.unserved(report.unserved, self._width))
        self._terminal.page(show.closing(report, self._width))

    def leave(self) -> None:
        """Takes away what moves, however the tour ended."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._status is not None:
            self._status.stop()
            self._status = None

    @property
    def _width(self) -> int:
        return self._terminal.width
