"""Plan calls outside any session. A later call with the same beginning is recognised."""

from __future__ import annotations

import itertools

from anaphora.catalog import CacheRules
from anaphora.rendered import Plan, Rendered

from .memory import AppMemory
from .planner import Planner, reuse_requested

#: How many earlier turns are compared to recognise the call that a prompt continues.
_EARLIER_TURNS = 32


class SingleCallPlanner(Planner):
    """The breakpoints of one call outside any session."""

    def __init__(self, memory: AppMemory, rendered: Rendered) -> None:
        super().__init__(memory)
        self.reuse_expected = reuse_requested(rendered)
        """Whether the prompt asks for caching, or an earlier call began the same."""
        if not rendered.runs or not rendered.markers:
            return
        prompt, minimum = self._prompt_of(rendered), memory.rules.minimum_tokens.value
        if prompt.total < minimum:
            return
        ends = itertools.islice(prompt.turn_ends(), _EARLIER_TURNS)
        earlier = memory.continued(rendered, ends)
        if earlier is not None:
            self.state = earlier
            self.reuse_expected = True
            return
        shared = self._candidates_of(rendered).shared
        if shared is not None and prompt.tokens(shared) >= minimum:
            self.reuse_expected |= memory.is_known(prompt.key(shared))

    def sent_single(
        self, rendered: Rendered, plan: Plan, *, at: float, began: float | None = None
    ) -> None:
        """Records the call, so that a later one with the same beginning is recognised."""
        if not rendered.markers or not rendered.cacheable:
            return
        prompt, minimum = self._prompt_of(rendered), self._rules.minimum_tokens.value
        if prompt.total < minimum:
            return
        shared = self._candidates_of(rendered).shared
        if shared is not None and prompt.tokens(shared) < minimum:
            shared = None
        self._memory.single_call(prompt, shared, self.state, at)
        self._memory.keep_single(rendered, self.state)
        if plan.marks or plan.automatic is not None:
            prompt.mark(plan)
            self._memory.pending.append((prompt, at, began))
        self._record(prompt, plan, at, keyed=False)


def plan_once(rendered: Rendered, rules: CacheRules, *, reuse_expected: bool | None = None) -> Plan:
    """A plan without any history. Reuse is expected where the prompt asks for caching, unless
    stated otherwise."""
    if reuse_expected is None:
        reuse_expected = reuse_requested(rendered)
    return Planner(AppMemory(rules)).plan(rendered, at=0.0, reuse_expected=reuse_expected)
