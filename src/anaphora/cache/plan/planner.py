"""The planner: one choice among all candidates for a cache breakpoint.

The caller's own marks are always set. Then, in one choice: the end of each run of blocks with one
`CachePolicy`, the end of the shared beginning, the frozen boundary, the tail of the history, and
the last write if the look-back would not reach it. Free slots go to the end of the previous turn
(with the tail: the rolling pair) and to the end of the first section.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from functools import cached_property
from typing import TypeAlias

import msgspec

from anaphora.cache.sent_call import begins_with, expiry, is_alive, shared_chunks, writing_marks
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.prompt import UNMARKED
from anaphora.cache.simulator.view import automatic_position
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Notice, Ttl
from anaphora.values.stability import nearest_ttl

from . import marking
from .changes import ALIKE, FIRST, FROZEN, SHARED, TAIL, TURN, count_changes, sent_boundaries
from .deferred import SentTurn
from .handles import HandlePlanner
from .marking import Candidates, MarkerChoice, only_marks_of, reuse_requested
from .memory import AppMemory, ConversationState, Gaps

#: The share by which another way of caching must be cheaper before the planner changes to it.
_WORTH_A_CHANGE = 0.9
_Places: TypeAlias = list[tuple[int | None, Ttl | None]]


class MarkerPlanner:
    """The breakpoints of one conversation, or of a single call. The base of `Planner`."""

    def __init__(
        self,
        memory: AppMemory,
        price: Decimal | None = None,
        state: ConversationState | None = None,
    ) -> None:
        """`price` is the cost of a million input tokens in dollars. Storage under a handle is
        billed in dollars by the hour, so without a price no handle is created."""
        self._memory = memory
        self._rules = rules = memory.rules
        self._slots, self._minimum = rules.slots.value, rules.minimum_tokens.value
        self._takes_marks = rules.mechanism.value != "implicit" and bool(self._slots)
        self._tail_found = (each := rules.trailing_system_reused) is None or each.value
        self._caches_unmarked = memory.costs.unmarked is not None
        self._prompt: RenderedPrompt | None = None
        self._candidates: tuple[Rendered, Candidates] | None = None
        self._price = price
        self._state = memory.start() if state is None else state
        self._unkeyed: RenderedPrompt | None = None
        """The prompt of the last write, if its key is not computed yet: mostly the next prompt
        shares its bytes."""
        self._changed: tuple[RenderedPrompt, tuple[int, ...]] | None = None
        """The result of `_changes` for the prompt at hand."""
        self._uncompared: tuple[RenderedPrompt, Candidates] | None = None
        """The last prompt, if the keys of its boundaries are not computed yet, as well."""

    @cached_property
    def handles(self) -> HandlePlanner:
        return HandlePlanner(self._rules, self._price)

    @property
    def state(self) -> ConversationState:
        if self._unkeyed is not None and self._state.written is not None:
            position, _, expires = self._state.written
            self._state.written = position, self._unkeyed.key(position), expires
            self._unkeyed = None
        if self._uncompared is not None:
            state, last = self._state, self._uncompared
            state.sent = sent_boundaries(*last, state.sent)
            self._uncompared = None
        return self._state

    @state.setter
    def state(self, state: ConversationState) -> None:
        self._state, self._unkeyed, self._uncompared, self._changed = state, None, None, None

    @property
    def gaps(self) -> Gaps:
        """The pauses of the conversation. Unlike `state`, this computes no key."""
        return self._state.gaps

    def plan(
        self, rendered: Rendered, *, at: float, reuse_expected: bool = True, is_last: bool = False
    ) -> Plan:
        """Marks for one request: never more than the rules allow, TTLs never rising. Without
        `reuse_expected` nothing is written. `is_last`: no later call has this history, which is
        read only."""
        plan = self._planned(rendered, at, reuse_expected=reuse_expected, is_last=is_last)
        if rendered.messages_cacheable:
            return plan
        notices = (*plan.notices, *marking.uncacheable_messages(rendered))
        return msgspec.structs.replace(plan, notices=notices)

    def _planned(
        self, rendered: Rendered, at: float, *, reuse_expected: bool, is_last: bool
    ) -> Plan:
        if not reuse_expected:
            return marking.unwritten_plan(rendered)
        if rendered.frozen_with is not None and self._rules.storage_price is not None:
            end = marking.stable_end(rendered)
            tokens = 0 if end is None else self._prompt_of(rendered).tokens(end)
            usual = self._memory.usual_calls()
            return self.handles.plan(rendered, self._state.gaps, end, tokens, at, usual)
        if not self._takes_marks:
            return Plan(key=self._cache_key(rendered, at))
        order = rendered.body_order
        if rendered.automatic is not None and order is not None and len(order) < len(rendered.runs):
            # A part of the prompt is stored at the provider and takes no marker, and the new part
            # will be joined to it in another way: only the provider's own breakpoint is found.
            return Plan(automatic=rendered.automatic)
        choice = self._choose(rendered, at, is_last=is_last)
        only_marks = only_marks_of(rendered, choice)
        automatic = None if only_marks else rendered.automatic
        slots = self._slots - (0 if automatic is None else self._rules.automatic_slots.value)
        marks = self._fit(rendered, choice, slots)
        return Plan(
            marks=tuple(marks),
            automatic=automatic,
            only_marks=only_marks,
            changing=choice.changing and not marks and automatic is None,
            notices=tuple(choice.notices),
        )

    def sent(
        self,
        rendered: Rendered,
        plan: Plan,
        *,
        at: float,
        began: float | None = None,
        reasoning: int | None = None,
        before: SentTurn | None = None,
    ) -> SentTurn:
        """Record a call of the conversation, after the one `before`; its outcome is what it reads
        and writes by the rules."""
        prompt = self._marked(rendered, plan)
        shared = self._candidates_of(rendered).shared
        turn = self._memory.call(prompt, shared, self._state, at, began, reasoning, before)
        self._compare(prompt)
        self._state.gaps.use(at)
        if self._write(prompt, plan, at, keyed=False):
            self._unkeyed = prompt
        return turn

    def kept(self, rendered: Rendered, plan: Plan) -> int | None:
        """The tokens that a call with this plan leaves in the cache, if its markers show it;
        None if that takes a simulation."""
        prompt = self._prompt_of(rendered)
        written = writing_marks(self._rules, plan.marks, prompt.tokens)
        last = written[-1].chunk if written else -1
        if plan.automatic is not None:
            own = automatic_position(self._rules, prompt)
            last = last if own is None else max(last, own)
        if last < 0 or plan.held is not None:
            return None
        tokens = prompt.tokens(last)
        return tokens if tokens >= self._rules.minimum_tokens.value else None

    def counts(self, rendered: Rendered) -> Counts:
        """The estimated tokens of the prompt, chunk by chunk."""
        return self._prompt_of(rendered).counts

    def _choose(self, rendered: Rendered, at: float, *, is_last: bool) -> MarkerChoice:
        prompt = self._prompt_of(rendered)
        candidates = self._candidates_of(rendered)
        notices: list[Notice] = []
        maximum = self._rules.maximum_tokens
        if maximum is not None and prompt.tokens(rendered.cacheable - 1) > maximum.value:
            notices.append(marking.above_maximum(maximum))
        policies = candidates.policies
        wanted: dict[int, Ttl] = {}
        for position, requested in policies:
            fits = requested in rendered.markers
            ttl = requested if fits else nearest_ttl(requested, rendered.markers)
            assert ttl is not None, "candidates are only found if there are markers"
            if ttl != requested:
                notices.append(marking.ttl_changed(rendered, position, requested, ttl))
            wanted[position] = ttl
        ttls = self._history_ttls(prompt, candidates.shared, at)
        changing = None in ttls and ttls[-1] is not None
        notices += marking.changing_history(rendered, ttls[TAIL])
        if ttls[TAIL] is None and ttls[TURN] is None and self._caches_unmarked:
            if not wanted and not rendered.marks:
                return MarkerChoice({}, {}, None, notices, changing)
            ttls = (min(rendered.markers, key=TTL_SECONDS.__getitem__),) * len(ttls)
        own, extra, history = self._places(prompt, ttls, at, is_last=is_last)
        # Lengths are estimates, and a marker on too short a prefix costs nothing: a prompt that
        # requests caching gets its markers at any length.
        long_enough = 0 if policies or reuse_requested(rendered) else len(prompt)
        fillers: dict[int, Ttl] = {}
        for positions, into in ((own, wanted), (extra, fillers)):
            for chunk, lifetime in positions:
                if chunk is None or lifetime is None or chunk in wanted:
                    continue
                if chunk < long_enough:
                    if prompt.tokens(chunk) < self._minimum:
                        continue
                    long_enough = chunk
                into[chunk] = lifetime
        return MarkerChoice(wanted, fillers, history, notices, changing)

    def _places(
        self, prompt: RenderedPrompt, ttls: tuple[Ttl | None, ...], at: float, *, is_last: bool
    ) -> tuple[_Places, _Places, Ttl | None]:
        """Places and TTLs of the planner's own markers, those for free slots, and the TTL that pays
        at the tail; `ttls` are those by kind."""
        rendered = prompt.rendered
        candidates = self._candidates_of(rendered)
        # Policies say how tools and system blocks are cached; without one the planner decides.
        shared = candidates.prefix if candidates.policies else candidates.shared
        shared_ttl = None
        if shared is not None:
            shared_ttl = self._shared_ttl(prompt.key(shared), ttls[SHARED], at)
        own: _Places = [(shared, shared_ttl)]
        extra: _Places = []
        tail, last = None if is_last else candidates.tail, ttls[TAIL]
        history = last
        if tail is not None and history is None:  # what follows the turn before may change
            tail, last = marking.previous_turn(rendered, prompt, tail), ttls[TURN]
        if not is_last:
            own += [(tail, last), (candidates.frozen, ttls[FROZEN])]
        if tail is not None and last is not None:
            written = self._last_write(prompt, tail, at)
            if written is not None and not self._reaches(tail, written):
                own.append((written, ttls[-1]))
            elif candidates.frozen is None:
                if written is None:
                    written = marking.previous_turn(rendered, prompt, tail)
                extra.append((written, last))
        elif is_last or candidates.tail is not None:
            written = self._last_write(prompt, len(prompt), at)
            own.append((written, ttls[-1]))
            history = history if written is not None else None
        if not candidates.policies:
            extra.append((candidates.first, shared_ttl or ttls[FIRST]))
        return own, extra, history

    def _fit(self, rendered: Rendered, choice: MarkerChoice, slots: int) -> list[Mark]:
        """The caller's own marks, and as many of the planner's as there are slots left."""
        wanted, own, notices = choice.wanted, rendered.marks, choice.notices
        taken: set[int] = set()
        if own:
            taken = {mark.chunk for mark in own if mark.splice is None}
            wanted = {chunk: ttl for chunk, ttl in wanted.items() if chunk not in taken}
        room = max(0, slots - len(own))
        if len(wanted) > room:
            candidates, prompt = self._candidates_of(rendered), self._prompt_of(rendered)
            written = None if self._state.written is None else self._state.written[0]
            kept = marking.most_valuable(candidates, prompt, wanted, written, room, self._minimum)
            dropped = [chunk for chunk in wanted if chunk not in kept]
            notices += marking.left_out(rendered, dropped, slots, "the planner's")
            wanted = {chunk: wanted[chunk] for chunk in kept}
        if len(own) > slots:
            dropped = [mark.chunk for mark in own[slots:]]
            notices += marking.left_out(rendered, dropped, slots, "the caller's own")
        for position, ttl in choice.fillers.items():
            if len(wanted) < room and position not in taken:
                wanted.setdefault(position, ttl)
        marks = [Mark(chunk, wanted[chunk]) for chunk in sorted(wanted)]
        if own:
            marks = sorted([*own[:slots], *marks], key=marking.hash_order)
        if len({*wanted.values()}) < 2 and not own:
            return marks
        seconds = [TTL_SECONDS[mark.ttl] for mark in marks]
        if seconds == sorted(seconds, reverse=True) or not self._rules.longer_ttl_first.value:
            return marks
        requested = taken.union(chunk for chunk, _ in self._candidates_of(rendered).policies)
        return marking.falling_ttls(rendered, marks, requested, notices)

    def _history_ttls(
        self, prompt: RenderedPrompt, shared: int | None, at: float
    ) -> tuple[Ttl | None, ...]:
        """The TTL of markers for each kind of boundary, and of one that has not changed."""
        rendered = prompt.rendered
        beginning = None if shared is None else prompt.key(shared)
        changes = self._changes(prompt)
        if max(changes) <= 0:  # nothing changes, as in nearly all conversations
            return (self._history_ttl(rendered, beginning, at, 0),) * (len(changes) + 1)
        counts = [max(0, count) for count in (*changes, 0)]
        ttls = {each: self._history_ttl(rendered, beginning, at, each) for each in {*counts}}
        return tuple([ttls[each] for each in counts])

    def _history_ttl(
        self, rendered: Rendered, beginning: Hashable, at: float, changes: int
    ) -> Ttl | None:
        """The TTL of markers in the history: the caller's, or the one that pays, after so many
        changes. If a provider also caches unmarked requests, changing from one way to the other
        loses the cached prefix, so a small gain is not enough."""
        stated = rendered.message_ttl
        if stated is not None and not changes:
            return stated
        gaps = self._state.gaps
        costs = self._memory.costs.by_ttl(gaps, at, self._memory.usual_calls(beginning), changes)
        best = min(costs, key=costs.__getitem__)
        if stated is not None:
            return best and stated
        if not self._caches_unmarked or gaps.count == 0:
            return best
        if (best is None) == (self._state.written is None):
            return best
        other = self._rules.ttls.value[-1] if best is None else None
        return best if costs[best] < _WORTH_A_CHANGE * costs[other] else other

    def _shared_ttl(self, beginning: Hashable, history: Ttl | None, at: float) -> Ttl | None:
        """The TTL of a marker on the shared beginning: not shorter than that of the history."""
        same = self._memory.beginnings.get(beginning)
        if same is None or not same.gaps.count:
            return history
        best = self._memory.costs.best_ttl(same.gaps, at)
        longer = best and (history is None or TTL_SECONDS[best] > TTL_SECONDS[history])
        return best if longer else history

    def _last_write(self, prompt: RenderedPrompt, tail: int, at: float) -> int | None:
        """The position of the last write, if that is before the tail and has not expired."""
        if self._state.written is None:
            return None
        position, key, expires = self._state.written
        if position >= tail or not is_alive(expires, at):
            return None
        if (last := self._unkeyed) is not None:
            if shared_chunks(prompt.rendered, last.rendered) > position:
                return position
            key = last.key(position)
        if key is None:  # a single call: this prompt begins like that one or like a fork of it
            return position if prompt.can_mark(position) else None
        return position if prompt.key(position) == key else None

    def _reaches(self, tail: int, written: int) -> bool:
        """Whether a marker at the tail finds the last write without a marker there."""
        unit, reach = self._rules.lookback_unit, self._rules.lookback_positions
        if unit is not None and unit.value == "breakpoints":
            return False  # only boundaries of the request itself are looked up
        # Counted block by block, the stricter of the published readings.
        return reach is not None and tail - written < reach.value

    def _write(self, prompt: RenderedPrompt, plan: Plan, at: float, *, keyed: bool = True) -> bool:
        """Remember the position of a call's write, if there was one."""
        marks = writing_marks(self._rules, plan.marks, prompt.tokens)
        if not marks:
            return False
        mark = marks[-1]
        key = prompt.key(mark.chunk) if keyed else None
        self._state.written = mark.chunk, key, expiry(at, TTL_SECONDS[mark.ttl])
        self._unkeyed = None
        return True

    def _cache_key(self, rendered: Rendered, at: float) -> str | None:
        """A cache key for providers that route by one: the same for all conversations that begin
        alike, as long as one key can serve them. It stays."""
        state = self._state
        if rendered.key_place is None:
            return None
        if state.cache_key is None:
            limit, end = self._rules.key_requests, marking.stable_end(rendered)
            if limit is not None and end is not None and end >= 0:
                state.cache_key = self._prompt_of(rendered).key(end).hex()
                if self._memory.calls_per_minute(at) >= limit.value:
                    state.cache_key = self._split_key(rendered, state.cache_key)
        return state.cache_key

    def _split_key(self, rendered: Rendered, shared: str) -> str:
        """The cache key of one conversation among many with the same beginning: by its first
        message, so that any process gives it the same one."""
        prompt, end = self._prompt_of(rendered), marking.stable_end(rendered)
        first = min(0 if end is None else end + 1, len(prompt) - 1)
        return f"{shared}-{int.from_bytes(prompt.key(first)[:8])}"

    def key_plan(self, rendered: Rendered, *, at: float) -> Plan | None:
        """The plan of a call at a provider that routes by a cache key and takes no markers: also of
        the first call of a conversation, since a later one has the same key. None elsewhere."""
        if self._takes_marks or self._rules.key_requests is None:
            return None
        key = self._cache_key(rendered, at)
        return None if key is None else Plan(marks=rendered.marks, key=key)

    def _prompt_of(self, rendered: Rendered) -> RenderedPrompt:
        prompt = self._prompt
        if prompt is None or prompt.rendered is not rendered:
            prompt = self._prompt = RenderedPrompt(rendered, UNMARKED, prompt)
        return prompt

    def _changes(self, prompt: RenderedPrompt) -> tuple[int, ...]:
        """How often in a row each kind of boundary has changed, if this prompt is sent."""
        if self._changed is not None and self._changed[0] is prompt:
            return self._changed[1]
        last = self._uncompared
        if last is not None and begins_with(prompt.rendered, last[0].rendered):
            return ALIKE
        state = self._state if last is None else self.state
        if not state.sent:
            return state.changes
        changes = count_changes(prompt, state.sent, state.changes)
        self._changed = prompt, changes
        return changes

    def _compare(self, prompt: RenderedPrompt) -> None:
        """Remember the boundaries of a prompt that is sent."""
        self._state.changes = self._changes(prompt)
        self._changed = None
        self._uncompared = prompt, self._candidates_of(prompt.rendered)

    def _marked(self, rendered: Rendered, plan: Plan) -> RenderedPrompt:
        prompt = self._prompt_of(rendered)
        prompt.mark(plan)
        return prompt

    def _candidates_of(self, rendered: Rendered) -> Candidates:
        if self._candidates is None or self._candidates[0] is not rendered:
            prompt = self._prompt_of(rendered)
            found = marking.find_candidates(rendered, prompt.lead, tail_found=self._tail_found)
            if self._rules.maximum_tokens is not None:
                found = marking.within_maximum(found, prompt, self._rules.longest_prefix)
            self._candidates = rendered, found
        return self._candidates[1]
