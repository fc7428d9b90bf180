"""One call's place in the queue, and what it counts for once it started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .lane import Lane

State: TypeAlias = Literal["waiting", "started", "over"]


class Reservation:
    """`at` is when the call starts: by what is known so far, until it has started."""

    __slots__ = ("at", "lane", "number", "requests", "state", "tokens")

    def __init__(self, lane: Lane, number: int, tokens: int, at: float) -> None:
        self.lane = lane
        self.number = number
        """Who came first has the lower one."""
        self.tokens = tokens
        self.requests = 1
        self.at = at
        self.state: State = "waiting"

    def __repr__(self) -> str:
        return f"<Reservation {self.number}: {self.tokens} tokens, {self.state} at {self.at:g}>"
