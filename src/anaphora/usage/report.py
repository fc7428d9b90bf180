"""The sums that `anaphora usage` shows."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.cache.verdict import CauseKind, RemedyKind

from .records import COUNTS

Grouping: TypeAlias = Literal[
    "daily", "weekly", "monthly", "session", "project", "model", "program"
]


#: The parts of a bill, and how each is named.
PARTS = {
    "read": "cache reads",
    "written": "cache writes",
    "uncached": "other input",
    "output": "output",
}


class UsageRow(msgspec.Struct, kw_only=True):
    """The sums of a day, a week, a month, a session, a project, a model or a program, or of all
    calls. The dollars are at API prices."""

    name: str
    """The day, the first day of the week, the month, the session's id, …"""
    began: float | None = None
    ended: float | None = None
    programs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    project: str = ""
    """Of the last call, in rows by session or project."""
    calls: int = 0
    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    """Also those whose time is not known."""
    written_30m: int = 0
    written_1h: int = 0
    output: int = 0
    usd: Decimal = Decimal(0)
    """Of the calls whose price is known."""
    unpriced: int = 0
    """Calls without a known price."""
    partial: int = 0
    """Calls with only a part of their tokens in the file: their cost is higher."""
    lost: int = 0
    """Tokens that had been cached and were billed again."""
    lost_usd: Decimal = Decimal(0)

    @property
    def input(self) -> int:
        return self.uncached + self.read + self.written

    @property
    def written(self) -> int:
        return self.written_5m + self.written_30m + self.written_1h

    def add(self, other: UsageRow) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("programs", "models"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, (*mine, *(one for one in theirs if one not in mine)))
        if other.began is not None:
            self.began = other.began if self.began is None else min(self.began, other.began)
        is_last = other.ended is not None and (self.ended is None or other.ended >= self.ended)
        if is_last:
            self.ended = other.ended
        if self.name == other.name and (is_last or not self.project):
            self.project = other.project


_SUMS = (*COUNTS, "calls", "usd", "unpriced", "partial", "lost", "lost_usd")


class CauseRow(msgspec.Struct, kw_only=True):
    """What one cause cost."""

    cause: CauseKind
    calls: int
    tokens: int
    usd: Decimal
    programs: tuple[str, ...]
    advice: tuple[str, ...] = ()
    """What to do about it: a line for each of the programs, or one for all."""
    saved: dict[str, Decimal] = {}
    """About what the remedy would have saved, dearer writes included, by program."""
    saved_usd: Decimal = Decimal(0)
    """The sum of it."""
    remedy: RemedyKind = "nothing"
    """The kind of it, as verdicts name it."""


class ExpensiveLoss(msgspec.Struct, kw_only=True):
    """One loss, with the place of its call."""

    cause: CauseKind
    at: float | None
    file: str
    line: int
    program: str
    session: str
    project: str
    model: str
    tokens: int
    usd: Decimal | None
    sentence: str


class UnpricedModel(msgspec.Struct, kw_only=True):
    provider: str
    model: str
    calls: int
    tokens: int


class UsageReport(msgspec.Struct, kw_only=True):
    by: Grouping
    since: float | None
    until: float | None
    rows: tuple[UsageRow, ...]
    total: UsageRow
    programs: tuple[UsageRow, ...]
    causes: tuple[CauseRow, ...] | None
    """The most expensive first; None if they were not looked for."""
    parts: dict[str, Decimal] = {}
    """What reading, writing, other input and output cost: by `PARTS`."""
    avoidable_usd: Decimal = Decimal(0)
    """About how much of the losses a setting or command would have saved."""
    most_expensive: tuple[ExpensiveLoss, ...] = ()
    unpriced: tuple[UnpricedModel, ...] = ()
    problems: tuple[str, ...] = ()
    """Broken lines and files, with their places."""
    notices: tuple[str, ...] = ()
    files: int = 0
    utc: bool = False
    """Days are those of UTC, not of this machine's time zone."""
    days: tuple[str, ...] = ()
    """Without calls in the time that is asked for: the first and the last day that have some."""
    complete: bool = True
    """False if the work was interrupted: these are the sums so far."""
