"""The ways to predict what a call of a recorded conversation reads, from the bills before it."""

from __future__ import annotations

from collections.abc import Hashable

from anaphora.cache.read_history import KEPT, ReadClass, read_class
from anaphora.catalog import CacheRules

from .format import TraceUsage

#: The prediction of the simulator, by the rules.
SIMULATED = "simulated"


class ConversationReads:
    """What the earlier calls of one conversation left and read, by their bills."""

    def __init__(self) -> None:
        self._usage: TraceUsage | None = None
        """The last bill."""
        self._left = self._left_before = 0
        """What the last call left, and the one before it."""
        self._turn: tuple[int, int] | None = None
        """What the last call after a user's message left and read."""
        self._classes: dict[str, ReadClass] = {}
        """The class of the last read, by the kind of call."""

    def candidates(
        self, rules: CacheRules, simulated: int, beginning: int, *, marked: bool, in_loop: bool, reply_end: int | None = None
    ) -> dict[str, int]:
        """The tokens that each way predicts. `beginning`: what other conversations have read of
        theirs; `marked`: what the last call left is at markers."""
        found = {SIMULATED: simulated, "beginning": beginning, "nothing": 0}
        usage = self._usage
        if usage is None:
            return found
        found[KEPT] = self._left
        if marked and in_loop:
            # Nothing is cached behind the last marker.
            found[SIMULATED] = min(simulated, self._left)
        found["as before"] = usage.cache_read
        found["older"] = self._left_before
        output, reasoning = usage.output or 0, usage.reasoning or 0
        end = self._left if marked else usage.total
        replies = {"with reply": output, "with visible reply": output - reasoning}
        for name, reply in replies.items():
            found[name] = end + reply if marked else rules.whole_granules(end + reply)
            if reply_end is not None:
                found[name] = usage.total + reply + reply_end
        if self._turn is not None:
            found["turn"], found["as last turn"] = self._turn
        return found

    def situations(
        self, agent: Hashable, model: str, kind: str, *, idle: bool
    ) -> tuple[Hashable, ...]:
        """Of the next call, the closest first."""
        if self._usage is None:
            return (agent, "first"), (model, "first"), ("first",)
        last = self._classes.get(kind)
        return (
            (agent, kind, idle, last),
            (model, kind, idle, last),
            (model, kind, idle),
            (kind, idle, last),
            (kind, idle),
        )

    def add(self, usage: TraceUsage, left: int, kind: str) -> None:
        """The bill of the next call, and what it left in the cache by that."""
        if self._usage is not None:
            self._classes[kind] = read_class(usage.cache_read, self._left)
        self._usage, self._left_before, self._left = usage, self._left, left
        if kind != "loop":
            self._turn = left, usage.cache_read
