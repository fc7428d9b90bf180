"""A simulated call whose response has not ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from anaphora.catalog import CacheRules, Moment

from .outcome import Outcome


class Written(Protocol):
    """Something that a call wrote, and from when it can be read."""

    readable: float


class OpenCall:
    """A call whose response has not ended. Calls that are open at the same time do not read what
    the others write."""

    __slots__ = ("_delay", "_refresh", "_rules", "_written", "outcome")

    def __init__(
        self,
        rules: CacheRules,
        outcome: Outcome,
        written: Sequence[Written] = (),
        refresh: Callable[[float], None] = lambda _: None,
        delay: float = 0.0,
    ) -> None:
        self.outcome = outcome
        self._rules = rules
        self._written = written
        self._refresh = refresh
        self._delay = delay

    @property
    def writes(self) -> bool:
        """Whether it wrote something that cannot be read yet."""
        return any(each.readable == math.inf for each in self._written)

    def respond(self, *, began: float | None = None, ended: float | None = None) -> None:
        """The response began, or ended, at that time."""
        moments: dict[Moment, float | None] = {"response_start": began, "response_end": ended}
        readable = moments.get(self._rules.readable_from.value)
        if readable is not None:
            for each in self._written:
                each.readable = min(each.readable, readable + self._delay)
        lives_from = moments.get(self._rules.ttl_from.value)
        if lives_from is not None:
            self._refresh(lives_from)
