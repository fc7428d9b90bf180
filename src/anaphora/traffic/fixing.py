"""Which changes of a program's request would have saved over its conversation so far: markers that
its provider would write, and longer lifetimes. What has not paid yet is left out: a conversation
can only lose what its first marked call writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeAlias

from msgspec.structs import replace

from anaphora.cache.plan import AppMemory, Gaps
from anaphora.cache.plan.memory import ConversationState
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.stories import (
    CallStory,
    StoryCaching,
    StoryPlayer,
    relative_cost,
    saving,
)
from anaphora.cache.simulator.view import automatic_position
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Ttl

#: The share of pauses, of conversations before, that must be within a lifetime.
_MOSTLY = 0.5
#: The calls of a conversation that are simulated.
_MOST_CALLS = 32


#: A lifetime of markers that has saved, compared with another or with no markers.
Known: TypeAlias = frozenset[tuple[Ttl, Ttl | None]]


class CallsSoFar:
    """The calls of a conversation until the one that is planned, or of all prompts that begin like
    it."""

    def __init__(
        self,
        rules: CacheRules,
        gaps: Gaps,
        at: float,
        story: Callable[[Sequence[float]], CallStory],
        *,
        known: Known = frozenset(),
    ) -> None:
        """`story` makes the story of the calls at these times, if it is needed; `known` is what has
        saved until the call before, and still does."""
        self.rules = rules
        self.at = at
        self.known = {pair for pair in known if gaps.last and at - gaps.last <= _seconds(pair[0])}
        self._gaps = gaps
        self._story = story

    @cached_property
    def story(self) -> CallStory:
        return self._story(self.times[-_MOST_CALLS:])

    @cached_property
    def times(self) -> list[float]:
        """When the calls were, this one included."""
        last = self._gaps.last
        times = [self.at] if last is None else [self.at, last]
        for pause in reversed(self._gaps.lengths if last is not None else ()):
            times.append(times[-1] - pause)
        return times[::-1]

    def saves(self, now: Ttl, was: Ttl | None = None) -> bool:
        """Whether markers with that lifetime would have saved, compared with none; or with those of
        a shorter one, also at the lower end of the range."""
        if (now, was) in self.known:
            return True
        if self._gaps.last is None or len(self.story.times) < 2:
            return False
        story, cost = self.story, relative_cost(self.rules)
        had, has = (StoryPlayer(self.rules, story, StoryCaching(t, True), cost) for t in (was, now))
        saved = saving(had.cost_usd, has.cost_usd)
        if saved is None:
            return False
        found = (saved.expected if was is None else saved.low) > 0
        self.known |= {(now, was)} if found else set()
        return found


def longer_ttl(memory: AppMemory, gaps: Gaps, so_far: CallsSoFar) -> Ttl | None:
    """The longer lifetime that the program's own markers should have; None if none has paid."""
    shortest = memory.rules.ttls.value[-1]
    pauses = pairwise(so_far.times)
    if not any(later - before > TTL_SECONDS[shortest] for before, later in pauses):
        return None
    best = memory.costs.best_ttl(gaps, so_far.at)
    if best is None or TTL_SECONDS[best] <= TTL_SECONDS[shortest]:
        return None
    return best if so_far.saves(best, shortest) else None


def proven_plan(
    plan: Plan,
    own: Plan,
    rendered: Rendered,
    memory: AppMemory,
    state: ConversationState,
    so_far: CallsSoFar,
    beginning: tuple[int, Gaps] | None,
) -> Plan | None:
    """The plan without markers and lifetimes that have not paid yet; None if nothing is left.
    `own` are the markers that the program has sent, `beginning` the end of the prompt's beginning
    and the pauses between prompts that begin so."""
    rules, prompt = memory.rules, RenderedPrompt(rendered, own)
    shortest = rules.ttls.value[-1]
    if rules.unmarked_caching is not None:  # marked and unmarked requests have separate caches
        return plan if own.marks else None
    last = max([mark.chunk for mark in own.marks], default=-1)
    if own.automatic is not None:
        last = max(last, automatic_position(rules, prompt) or -1)
    stories = [(len(rendered), so_far, _continues(memory, state, shortest))]
    if beginning is not None:
        end, gaps = beginning
        tokens = prompt.tokens(end)
        alike = CallsSoFar(rules, gaps, so_far.at, partial(_alike, tokens))
        stories.append((end + 1, alike, False))
    marks = list[Mark]()
    for mark in plan.marks:
        known = [story for story in stories if mark.chunk < story[0]]
        longer = TTL_SECONDS[mark.ttl] > TTL_SECONDS[shortest]
        if longer and not _saves(known, mark.ttl, shortest):
            mark = Mark(mark.chunk, shortest, mark.splice)
        going_on = mark.chunk <= last or any(continues for _, _, continues in known)
        if going_on or _saves(known, mark.ttl):
            marks.append(mark)
    if not marks and plan.only_marks and own.automatic is not None and so_far.saves(own.automatic):
        plan = replace(plan, automatic=own.automatic, only_marks=False)  # it has paid so far
    if not marks and plan.automatic == own.automatic and plan.key is None and not plan.only_marks:
        return None
    return replace(plan, marks=tuple(marks))


def _saves(
    stories: list[tuple[int, CallsSoFar, bool]], ttl: Ttl, shorter: Ttl | None = None
) -> bool:
    return any(calls.saves(ttl, shorter) for _, calls, _ in stories)


def _alike(tokens: int, times: Sequence[float]) -> CallStory:
    """The story of prompts that share so many tokens."""
    return CallStory(tuple(times), (tokens,) * len(times), tokens)


def _seconds(ttl: Ttl) -> float:
    return float(TTL_SECONDS[ttl])


def _continues(memory: AppMemory, state: ConversationState, ttl: Ttl) -> bool:
    """Whether conversations of this program mostly go on within that lifetime; of the first call of
    one that begins."""
    pauses = memory.pauses.lengths
    if state.gaps.count or not pauses:
        return False
    return sum(pause <= TTL_SECONDS[ttl] for pause in pauses) > _MOSTLY * len(pauses)
