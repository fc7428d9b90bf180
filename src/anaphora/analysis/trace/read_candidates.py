"""The ways to predict what a call of a recorded conversation reads, from the bills before it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple, TypeAlias

from anaphora.cache.read_history import CHAIN, KEPT, ReadClass, read_class
from anaphora.catalog import CacheRules

from .format import TraceUsage

CallKind: TypeAlias = Literal["first", "turn", "loop", "added", "again"]
"""The first call of a conversation, one after a user's message, one after tool results, one after
both, or one that sends the same messages once more."""

#: The prediction of the simulator, by the rules.
SIMULATED = "simulated"
#: What the previous call left, in the steps that bills have shown.
LEFT = "left"
#: What the first call of the latest conversation read.
BEGINNING = "beginning"


class CallSituation(NamedTuple):
    """What is known of a call before its bill."""

    kind: CallKind
    model: str
    agent: Hashable
    """The beginning of its prompt, where that is recorded."""
    idle: bool
    """What the previous call left has expired, as far as known."""
    lapsed: bool
    """It has by the catalog, which may be a stand-in."""
    marked: bool
    """What the previous call left is at markers."""
    hidden: bool | None
    """The previous reply has hidden reasoning; None: not known."""


class ConversationReads:
    """What the earlier calls of one conversation left and read, by their bills."""

    def __init__(self) -> None:
        self._usage: TraceUsage | None = None
        """The last bill."""
        self._left = self._left_before = self._kept = 0
        """What the last call left, and the one before it; the first by the catalog."""
        self._turn: tuple[int, int] | None = None
        """What the last call outside of a tool loop left and read."""
        self._classes: dict[CallKind, ReadClass] = {}
        """The class of the last read, by the kind of call."""

    def candidates(
        self,
        call: CallSituation,
        rules: CacheRules,
        simulated: int,
        beginning: int,
        reply_end: int | None,
    ) -> dict[str, int]:
        """The tokens that each way predicts. `reply_end` is how far from the end of a reply reads
        end, where bills have shown that."""
        found = {SIMULATED: simulated, BEGINNING: beginning, "nothing": 0}
        usage = self._usage
        if usage is None:
            return found
        if call.marked and call.kind == "loop":
            # Nothing is cached behind the last marker.
            found[SIMULATED] = min(simulated, self._left)
        found[LEFT], found[KEPT] = self._left, self._kept
        found[CHAIN] = 0 if call.lapsed else self._kept
        found["as before"] = usage.cache_read
        found["older"] = self._left_before
        output, reasoning = usage.output or 0, usage.reasoning or 0
        for name, reply in (("reply", output), ("visible reply", output - reasoning)):
            if call.marked and reply_end is None:
                found[name] = self._left + reply
            else:
                found[name] = rules.whole_granules(usage.total + reply + (reply_end or 0))
        if self._turn is not None:
            found["turn"], found["as last turn"] = self._turn
        return found

    def situations(self, call: CallSituation) -> tuple[Hashable, ...]:
        """The calls that this one is like, the closest first."""
        kind, model, agent, idle, lapsed, _, hidden = call
        if self._usage is None:
            return (agent, model, kind), (model, kind), (kind,)
        last, pause = self._classes.get(kind), (idle, lapsed)
        return (
            (agent, model, kind, pause, last, hidden),
            (model, kind, pause, last),
            (model, kind, pause),
            (kind, pause, last),
            (kind, pause),
        )

    def add(self, call: CallSituation, usage: TraceUsage, left: int, kept: int) -> None:
        """The bill of the next call, and what it left in the cache by that; `kept`: by the
        catalog."""
        if self._usage is not None:
            self._classes[call.kind] = read_class(usage.cache_read, self._kept)
        self._usage, self._left_before = usage, self._left
        self._left, self._kept = left, kept
        if call.kind != "loop":
            self._turn = left, usage.cache_read
