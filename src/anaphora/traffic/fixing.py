"""Which changes of a program's request would have saved over its conversation so far: markers that
its provider would write, and longer lifetimes. What has not paid yet is left out: a conversation
can only lose what its first marked call writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from anaphora.cache.plan import AppMemory, Gaps
from anaphora.cache.plan.memory import ConversationState
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.stories import (
    CallStory,
    StoryCaching,
    play,
    relative_cost,
    saving,
    story_of,
)
from anaphora.cache.simulator.view import automatic_position
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Ttl

#: The share of pauses, of conversations before, that must be within a lifetime.
_MOSTLY = 0.5
#: A change that loses the cached prefix once must have been worth so many times its cost.
_TIMES_ITS_COST = 2


class CallsSoFar(msgspec.Struct, eq=False):
    """The calls of a conversation until the one that is planned, or of all prompts that begin like
    it."""

    rules: CacheRules
    story: CallStory
    marked: bool = True
    """Whether requests are marked already."""

    @classmethod
    def of(
        cls,
        rules: CacheRules,
        rendered: Rendered,
        gaps: Gaps,
        at: float,
        kept: Sequence[int | None] = (),
        *,
        marked: bool = False,
    ) -> CallsSoFar:
        prompt = RenderedPrompt(rendered, Plan())
        return cls(rules, story_of(prompt, _times(gaps, at), kept=kept), marked)

    @classmethod
    def beginning(cls, rules: CacheRules, tokens: int, gaps: Gaps, at: float) -> CallsSoFar:
        times = _times(gaps, at)
        return cls(rules, CallStory(tuple(times), (tokens,) * len(times), tokens))

    def saves(self, now: Ttl, was: Ttl | None = None) -> bool:
        """Whether markers with that lifetime would have saved, compared with none; or with those of
        a shorter one, also at the lower end of the range."""
        story, cost = self.story, relative_cost(self.rules)
        if len(story.times) < 2:
            return False
        had, has = (play(self.rules, story, StoryCaching(t, True), cost)[0] for t in (was, now))
        saved = saving(had, has)
        if saved is None:
            return False
        return saved.expected > self._change(now) if was is None else saved.low > 0

    def _change(self, ttl: Ttl) -> Decimal:
        """What the change to markers must have saved where unmarked prompts are cached as well."""
        if self.marked or self.rules.unmarked_caching is None:
            return Decimal(0)
        more = self.rules.writing(ttl) - self.rules.unmarked_caching[1]
        return Decimal(str(_TIMES_ITS_COST * self.story.lengths[-1] * more))


def _times(gaps: Gaps, at: float) -> list[float]:
    """When the calls were, this one included."""
    times = [at] if gaps.last is None else [at, gaps.last]
    for pause in reversed(gaps.lengths if gaps.last is not None else ()):
        times.append(times[-1] - pause)
    return times[::-1]


def longer_ttl(rules: CacheRules, memory: AppMemory, gaps: Gaps, so_far: CallsSoFar) -> Ttl | None:
    """The longer lifetime that the program's own markers should have; None if none has paid."""
    shortest = rules.ttls.value[-1]
    times = so_far.story.times
    pauses = [later - before for before, later in pairwise(times)]
    if not any(pause > TTL_SECONDS[shortest] for pause in pauses):
        return None
    best = memory.costs.best_ttl(gaps, times[-1])
    longer = best is not None and TTL_SECONDS[best] > TTL_SECONDS[shortest]
    return best if longer and best is not None and so_far.saves(best, shortest) else None


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
    at, shortest = so_far.story.times[-1], rules.ttls.value[-1]
    if rules.unmarked_caching is not None:  # marked and unmarked requests have separate caches
        return plan if own.marks or so_far.marked or so_far.saves(shortest) else None
    last = max([mark.chunk for mark in own.marks], default=-1)
    if own.automatic is not None:
        last = max(last, automatic_position(rules, prompt) or -1)
    stories = [(len(rendered), so_far, _continues(memory, state, shortest))]
    if beginning is not None:
        end, gaps = beginning
        tokens = prompt.tokens(end)
        stories.insert(0, (end + 1, CallsSoFar.beginning(rules, tokens, gaps, at), False))
    marks = list[Mark]()
    for mark in plan.marks:
        known = [(each, continues) for end, each, continues in stories if mark.chunk < end]
        longer = TTL_SECONDS[mark.ttl] > TTL_SECONDS[shortest]
        if longer and not any(each.saves(mark.ttl, shortest) for each, _ in known):
            mark = Mark(mark.chunk, shortest, mark.splice)
        if mark.chunk <= last or any(
            continues or each.saves(mark.ttl) for each, continues in known
        ):
            marks.append(mark)
    if not marks and plan.automatic == own.automatic and plan.key is None and not plan.only_marks:
        return None
    return replace(plan, marks=tuple(marks))


def _continues(memory: AppMemory, state: ConversationState, ttl: Ttl) -> bool:
    """Whether conversations of this program mostly go on within that lifetime; of the first call of
    one that begins."""
    pauses = memory.pauses.lengths
    if state.gaps.count or not pauses:
        return False
    return sum(pause <= TTL_SECONDS[ttl] for pause in pauses) > _MOSTLY * len(pauses)
