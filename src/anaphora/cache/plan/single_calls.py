"""Plan calls outside any session. A later call with the same beginning is recognised."""

from __future__ import annotations

import itertools

from blake3 import blake3

from anaphora.cache.simulator import PromptView, RenderedPrompt
from anaphora.catalog import CacheRules
from anaphora.rendered import Plan, Rendered

from .changes import SHARED
from .marking import reuse_requested
from .memory import AppMemory, ConversationState, SingleCallStore
from .planner import MarkerPlanner

#: How many earlier turns are compared to recognise the call that a prompt continues.
_EARLIER_TURNS = 32
#: From this many calls with one beginning on, none of them continued, they are single calls.
_SINGLE_CALLS = 4
#: Roles of messages that are no reply.
_ASKING_ROLES = ("user", "system", "developer")


class _CallPlanner(MarkerPlanner):
    """The breakpoints of one call, whose conversation is not known."""

    def _long_prompt(self, rendered: Rendered) -> tuple[RenderedPrompt, int | None] | None:
        """The prompt, and the end of its shared beginning if that is long enough to be cached; None
        if the prompt itself is too short."""
        if not rendered.markers or not rendered.cacheable:
            return None
        prompt, minimum = self._prompt_of(rendered), self._minimum
        if prompt.total < minimum:
            return None
        shared = self._candidates_of(rendered).shared
        if shared is not None and prompt.tokens(shared) < minimum:
            shared = None
        return prompt, shared

    def _record_single(self, prompt: PromptView, shared: int | None, at: float) -> None:
        """Record a call outside any session: ended, unless a later call continues its prompt."""
        beginning = self._memory.record(prompt, shared, at)
        if beginning is not None:
            same = self._memory.beginnings[beginning]
            if self.state.gaps.count:
                same.continued += 1
            else:
                same.ended += 1


class SingleCallPlanner(_CallPlanner):
    """The breakpoints of one call outside any session."""

    continues = False
    """Whether the prompt continues or repeats that of an earlier call."""

    def __init__(self, memory: AppMemory, rendered: Rendered) -> None:
        super().__init__(memory)
        if memory.single_calls is None:
            memory.single_calls = SingleCallStore()
        self._store = memory.single_calls
        self._prompt = self._store.last
        self.reuse_expected = reuse_requested(rendered)
        """Whether the prompt requests caching, or an earlier call began the same."""
        long_enough = self._long_prompt(rendered)
        if long_enough is None:
            return
        prompt, shared = long_enough
        self._store.last = prompt
        ends = itertools.islice(prompt.turn_ends(), _EARLIER_TURNS)
        earlier = self._store.continued(rendered, ends)
        if earlier is not None:
            self.state = earlier
            self.reuse_expected = self.continues = True
            return
        beginning = None if shared is None else prompt.key(shared)
        known = beginning is not None and beginning in memory.beginnings
        self.reuse_expected |= known
        if has_replies(rendered):  # otherwise it is another conversation with this first message
            alike = self._store.begun.get(_first_message(prompt))
            if alike is not None and alike.gaps.count == 1:  # no call continued it
                last = next((key for kind, _, key in alike.sent if kind == SHARED), None)
                if not known or last == beginning:  # otherwise it is another agent's call
                    self.state.changes, self.state.sent = alike.changes, alike.sent

    def sent_single(
        self, rendered: Rendered, plan: Plan, *, at: float, began: float | None = None
    ) -> None:
        """Records the call, so that a later one with the same beginning is recognised."""
        long_enough = self._long_prompt(rendered)
        if long_enough is None:
            return
        prompt, shared = long_enough
        self._record_single(prompt, shared, at)
        self._store.keep(rendered, self.state)
        if plan.marks or plan.automatic is not None:
            prompt.mark(plan)
            self._store.pending.append((prompt, at, began))
        if not self.continues and is_conversation(rendered):
            self._compare(prompt)
            self._store.begun[_first_message(prompt)] = self.state
        self.state.gaps.use(at)
        self._write(prompt, plan, at, keyed=False)


class MatchedCallPlanner(_CallPlanner):
    """The breakpoints of one call of a program that does not name its sessions: the conversation
    was recognised by its prompt (`PrefixIndex`)."""

    def __init__(
        self, memory: AppMemory, rendered: Rendered, earlier: ConversationState | None = None
    ) -> None:
        """`earlier` is the state of the conversation; None for one that begins."""
        super().__init__(memory, state=earlier)
        self.beginning: bytes | None = None
        """The key of the shared beginning, after the call was sent."""
        self._continues = earlier is not None or is_conversation(rendered)
        self.reuse_expected = self._continues or reuse_requested(rendered)
        """Whether the prompt requests caching, continues an earlier call or begins like one, or is
        part of a conversation: it has tools or contains a reply."""
        if not self.reuse_expected:
            self.reuse_expected = self.begins_like_another(rendered)

    def begins_like_another(self, rendered: Rendered) -> bool:
        """Whether an earlier prompt had the same tools and system prompt."""
        long_enough = self._long_prompt(rendered)
        if long_enough is None:
            return False
        prompt, shared = long_enough
        return shared is not None and prompt.key(shared) in self._memory.beginnings

    def sent_matched(self, rendered: Rendered, plan: Plan, *, at: float) -> None:
        """Records the call, for later ones of the conversation or with the same beginning."""
        long_enough = self._long_prompt(rendered)
        if long_enough is None:
            self._memory.recent.append(at)
            return
        prompt, shared = long_enough
        self.beginning = None if shared is None else prompt.key(shared)
        if self._continues:
            self._record_matched(prompt, shared, at)
        else:
            self._record_single(prompt, shared, at)
        self._compare(prompt)
        self.state.gaps.use(at)
        self._write(prompt, plan, at)

    def _record_matched(self, prompt: PromptView, shared: int | None, at: float) -> None:
        beginning = self._memory.record(prompt, shared, at)
        self._memory.learn_length(self.state, beginning, at)
        same = self._memory.beginnings.get(beginning)
        if same is not None and not same.continued and same.gaps.count > _SINGLE_CALLS:
            same.ended = same.gaps.count  # none of them went on: single calls with tools


def _first_message(prompt: RenderedPrompt) -> bytes:
    first = prompt.leading + 1
    return blake3(prompt.data(first)).digest(16) if first < len(prompt) else b""


def is_conversation(rendered: Rendered) -> bool:
    """Whether a prompt has tools, whose results come in a next call, or replies."""
    return any(run.section == "tools" for run in rendered.runs) or has_replies(rendered)


def has_replies(rendered: Rendered) -> bool:
    for run in rendered.runs:
        roles = run.log.roles[: run.log.wire_message_of(run.count - 1) + 1]
        if any(role not in _ASKING_ROLES for role in roles):
            return True
    return False


def plan_once(rendered: Rendered, rules: CacheRules, *, reuse_expected: bool | None = None) -> Plan:
    """A plan without any history. By default, reuse is expected if the prompt requests caching."""
    if reuse_expected is None:
        reuse_expected = reuse_requested(rendered)
    return MarkerPlanner(AppMemory(rules)).plan(rendered, at=0.0, reuse_expected=reuse_expected)
