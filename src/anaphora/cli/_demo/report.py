"""What the tour found: the JSON it prints has these fields."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from .engine import Measured


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's bill, as the provider sent it; None is unknown."""

    input: int
    """Tokens, however they were paid for;"""
    read: int | None
    """of these, those that the provider had seen before,"""
    predicted: int | None
    """and those that it should have, as it was said before sending."""
    written: int | None
    output: int
    cost_usd: Decimal | None


class Bill(msgspec.Struct, frozen=True):
    """All turns of one conversation."""

    turns: tuple[Spent, ...] = ()

    def plus(self, spent: Spent) -> Bill:
        return Bill((*self.turns, spent))

    @property
    def cost_usd(self) -> Decimal | None:
        paid = [turn.cost_usd for turn in self.turns if turn.cost_usd is not None]
        return sum(paid, Decimal(0)) if len(paid) == len(self.turns) else None

    @property
    def input(self) -> int:
        return sum(turn.input for turn in self.turns)

    @property
    def read(self) -> int | None:
        """None where the provider does not tell."""
        told = [turn.read for turn in self.turns if turn.read is not None]
        return sum(told) if told else None

    @property
    def predicted(self) -> int:
        return sum(turn.predicted or 0 for turn in self.turns)


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, asked in both ways."""

    dialect: str
    model: str
    usual: Bill = Bill()
    anaphora: Bill = Bill()

    @property
    def saved(self) -> float | None:
        """The share of the usual bill that is not paid."""
        usual, ours = self.usual.cost_usd, self.anaphora.cost_usd
        return None if not usual or ours is None else float(1 - ours / usual)


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """The change that was planted, and all that was said of it."""

    dialect: str
    model: str
    turn: int
    warned: str
    """Before anything was sent."""
    offset: int
    label: str
    path: str
    before: str
    after: str
    verdict: str
    """When the bill had come."""
    lost: int
    cost_usd: Decimal | None
    mended_read: int
    """Tokens that the next turn read, when the change was taken back,"""
    mended_input: int
    """of so many."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    calls: int
    seconds: float
    lanes: tuple[Lane, ...]
    broken: Break
    served: Measured | None
    """What llama.cpp did; None when it is not installed, or was left out,"""
    unserved: str = ""
    """and why."""
