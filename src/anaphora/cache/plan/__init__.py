"""Where cache breakpoints go, decided at every call from the prompt, the rules and the history.

    memory = AppMemory(catalog.rules("anthropic", model))     # shared by all calls of an app
    planner = Planner(memory)                                 # one per conversation
    plan = planner.plan(rendered, at=now)
    planner.sent(rendered, plan, at=now)

A marker on a prefix that is already cached costs nothing. The plan decides which prefixes are
written, for how long, and that the next call finds them: within the look-back, and before they
expire.
"""

from __future__ import annotations

import copy

from anaphora.cache.simulator import Chance, Outcome
from anaphora.cache.simulator.view import SavedCache
from anaphora.rendered import Plan, Rendered

from .handles import HandlePlanner
from .marking import reuse_requested
from .memory import AppMemory, Gaps
from .planner import MarkerPlanner
from .saved import SavedPlanner, save_conversation
from .single_calls import (
    MatchedCallPlanner,
    SingleCallPlanner,
    has_replies,
    is_conversation,
    plan_once,
)

__all__ = [
    "AppMemory",
    "Gaps",
    "MatchedCallPlanner",
    "Planner",
    "SingleCallPlanner",
    "has_replies",
    "is_conversation",
    "plan_once",
    "reuse_requested",
]


class Planner(MarkerPlanner):
    """The breakpoints of one conversation. Predicts its calls, and is saved and forked with it."""

    def _beginning_of(self, rendered: Rendered) -> bytes | None:
        """The key of the beginning that the prompt shares with others."""
        shared = self._candidates_of(rendered).shared
        return None if shared is None else self._prompt_of(rendered).key(shared)

    def predict(self, rendered: Rendered, plan: Plan, *, at: float) -> Outcome:
        """The tokens that the call would read and write now. Records nothing."""
        with self._memory.lock:
            return self._memory.current().predict(self._marked(rendered, plan), at=at)

    def chances(self, rendered: Rendered, plan: Plan, *, at: float) -> tuple[Chance, ...]:
        """The other outcomes that the call may have now, if its provider misses at random."""
        with self._memory.lock:
            return self._memory.current().chances(self._marked(rendered, plan), at=at)

    def tokens(self, rendered: Rendered) -> int:
        return self._prompt_of(rendered).total if rendered.runs else 0

    def save(self, rendered: Rendered) -> SavedPlanner:
        """The conversation for another process; `rendered` is its last prompt."""
        return save_conversation(self._memory, self.state, self._beginning_of(rendered))

    def save_cache(self, rendered: Rendered, plan: Plan, before: SavedCache) -> SavedCache:
        """The cached state of the last prompt; `before` is the same for the call before."""
        with self._memory.lock:
            return self._memory.current().save(self._marked(rendered, plan), before)

    def fork(self) -> Planner:
        """For a conversation that continues separately from here. The handle stays with the one
        that created it."""
        other = copy.copy(self)
        other.state = self._memory.fork(self.state)
        other.handles = HandlePlanner(self._rules, self._price)
        return other
