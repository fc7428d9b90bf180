"""The planner: one choice among all candidates for a cache breakpoint.

The caller's own marks always count. Then, in one choice: the end of each run of blocks with one
`CachePolicy`, the end of what conversations share, the frozen boundary, the tail of the history,
and the last write where the look-back would not reach it. Free slots go to the end of the previous
turn (with the tail: the rolling pair) and to the end of the first section.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable, Mapping
from decimal import Decimal

import msgspec

from anaphora.cache.simulator import Outcome, RenderedPrompt
from anaphora.catalog import CacheRules
from anaphora.rendered import CacheHandle, Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Notice, Ttl, nearest_ttl

from .candidates import Candidates, find_candidates, previous_turn, stable_end
from .choose import Chance, best_marks, falling_ttls, hash_order, longer_ttl
from .handles import plan_holding
from .memory import AppMemory, ConversationState
from .prices import by_itself, expected_cost

#: The cost of another way of caching, as a share of the present one's, from which on it is used.
_WORTH_A_CHANGE = 0.9
#: How likely a later call reads up to each kind of candidate, and no further: for the choice when
#: there are more candidates than slots.
_READ_AGAIN = {"written": 1.0, "tail": 0.9, "shared": 0.1, "policy": 0.1, "frozen": 0.05}
#: More policy runs than this are not weighed against each other.
_MOST_POLICIES = 32
#: How many earlier turns are compared to recognise the single call that a prompt continues.
_EARLIER_TURNS = 32

_UNMARKED = Plan()


class _Choice(msgspec.Struct, frozen=True):
    """The markers that one call should have, before slots are counted."""

    wanted: dict[int, Ttl]
    fillers: dict[int, Ttl]
    """For slots that stay free: dropping them costs nothing by the rules."""
    history: Ttl | None
    """The TTL that pays inside the history; None where none does."""
    notices: list[Notice]


class Planner:
    """The breakpoints of one conversation, or of one single call."""

    def __init__(
        self,
        memory: AppMemory,
        price: Decimal | None = None,
        state: ConversationState | None = None,
    ) -> None:
        """`price` is the cost of a million input tokens in dollars: a cached prefix under a handle
        is billed in dollars by the hour, so without a price no handle is created."""
        self._memory = memory
        self._rules = memory.rules
        self._price = price
        self._by_itself = by_itself(memory.rules) is not None
        """The provider also caches requests without markers."""
        self._held: tuple[CacheHandle, float] | None = None
        """The handle in use, and when it expires."""
        self._prompt: tuple[Rendered, RenderedPrompt] | None = None
        self._candidates: tuple[Rendered, Candidates] | None = None
        self.state = memory.start() if state is None else state

    @classmethod
    def for_single_call(cls, memory: AppMemory, rendered: Rendered) -> tuple[Planner, bool]:
        """A planner for a call outside any session, and whether its prompt is expected to be used
        again: because it asks for caching, or because an earlier call began alike."""
        planner = cls(memory)
        requested = reuse_requested(rendered)
        if not rendered.runs or not rendered.markers:
            return planner, requested
        prompt = planner._prompt_of(rendered)
        minimum = memory.rules.minimum_tokens.value
        if prompt.total < minimum:
            return planner, requested
        ends = itertools.islice(prompt.turn_ends(), _EARLIER_TURNS)
        earlier = memory.continued(rendered, ends)
        if earlier is not None:
            planner.state = earlier
            return planner, True
        shared = planner._candidates_of(rendered).shared
        seen = (
            shared is not None
            and prompt.tokens(shared) >= minimum
            and memory.seen(prompt.key(shared))
        )
        return planner, requested or seen

    # ── Planning ─────────────────────────────────────────────────────────────────────────────────

    def plan(self, rendered: Rendered, *, at: float, reuse_expected: bool = True) -> Plan:
        """Marks for one request: never more than the rules allow, TTLs never rising. Without
        `reuse_expected` nothing is written to the cache."""
        rules = self._rules
        if not reuse_expected:
            return _unwritten(rendered)
        if rendered.frozen_with is not None and rules.storage_price is not None:
            return self._plan_handle(rendered, at)
        if rules.mechanism.value == "implicit" or not rules.slots.value:
            return Plan(key=self._cache_key(rendered, at))
        if rendered.automatic is not None and _leans_on_stored(rendered):
            # The stored part takes no marker any more, and the new part will be joined to it
            # in another way: only the provider's own breakpoint is found again.
            return Plan(automatic=rendered.automatic)
        choice = self._choose(rendered, at)
        only_marks = _only_marks(rendered, choice)
        automatic = None if only_marks else rendered.automatic
        slots = rules.slots.value
        if automatic is not None:
            slots -= rules.automatic_slots.value
        return self._fit(rendered, choice, slots, automatic, only_marks)

    def _choose(self, rendered: Rendered, at: float) -> _Choice:
        """The planner's own markers, wanted ones and fillers."""
        found, prompt = self._candidates_of(rendered), self._prompt_of(rendered)
        wanted: dict[int, Ttl] = {}
        notices = [] if rendered.messages_cacheable else _uncacheable_messages(rendered)
        for position, asked in found.policies:
            ttl = asked if asked in rendered.markers else nearest_ttl(asked, rendered.markers)
            assert ttl is not None, "candidates are only found where there are markers"
            if ttl != asked:
                why = f"no cache entry lives {asked} here; this one lives {ttl}"
                notices.append(Notice("ttl_changed", why, rendered.chunk(position).path))
            wanted[position] = ttl
        beginning = None if found.shared is None else prompt.key(found.shared)
        history = self._history_ttl(rendered, beginning, at)
        if history is None and self._by_itself:
            if not wanted and not rendered.marks:
                return _Choice({}, {}, None, notices)  # unmarked, the provider caches by itself
            history = _shortest(rendered)
        kept = history
        if beginning is not None and (used := self._memory.uses(beginning)).count:
            kept = longer_ttl(self._memory.lifetimes.best(used, at), history)

        # Policies say how tools and system blocks are cached; without one the planner decides.
        own: list[tuple[int | None, Ttl | None]] = [
            (found.prefix if found.policies else found.shared, kept),
            (found.tail, history),
        ]
        extra: list[tuple[int | None, Ttl | None]] = []
        if found.frozen is not None:
            own.append((found.frozen, history))
        if found.tail is not None:
            written = self._last_write(prompt, found.tail, at)
            if written is not None and not self._reaches(found.tail, written):
                own.append((written, history))
            elif found.frozen is None:
                if written is None:
                    written = previous_turn(rendered, prompt, found.tail)
                extra.append((written, history))
        if not found.policies:
            extra.append((found.first, kept))
        # Lengths are estimates, and a marker on too short a prefix costs nothing: a prompt that
        # asks for caching gets its markers whatever its length.
        enough = 0 if found.policies or reuse_requested(rendered) else len(prompt)
        minimum = self._rules.minimum_tokens.value
        fillers: dict[int, Ttl] = {}
        for positions, into in ((own, wanted), (extra, fillers)):
            for chunk, life in positions:
                if chunk is None or life is None or chunk in wanted:
                    continue
                if chunk < enough:  # not known to be long enough
                    if prompt.tokens(chunk) < minimum:
                        continue
                    enough = chunk
                into[chunk] = life
        return _Choice(wanted, fillers, history, notices)

    def _fit(
        self,
        rendered: Rendered,
        choice: _Choice,
        slots: int,
        automatic: Ttl | None,
        only_marks: bool,
    ) -> Plan:
        """The caller's own marks, and as many of the planner's as there are slots left."""
        wanted, asked, notices = choice.wanted, rendered.marks, choice.notices
        taken: set[int] = set()
        if asked:
            taken = {mark.chunk for mark in asked if mark.splice is None}
            wanted = {at: ttl for at, ttl in wanted.items() if at not in taken}
        room = max(0, slots - len(asked))
        if len(wanted) > room:
            kept = self._best(rendered, wanted, room)
            notices += [
                _left_out(rendered, at, slots, "the planner's") for at in wanted if at not in kept
            ]
            wanted = {at: wanted[at] for at in kept}
        notices += [
            _left_out(rendered, mark.chunk, slots, "the caller's own") for mark in asked[slots:]
        ]
        for position, ttl in choice.fillers.items():
            if len(wanted) < room and position not in taken:
                wanted.setdefault(position, ttl)
        marks = [Mark(at, wanted[at]) for at in sorted(wanted)]
        if asked:
            marks = sorted([*asked[:slots], *marks], key=hash_order)
        if self._rules.longer_ttl_first.value:
            legal = falling_ttls(marks)
            if legal is not marks:
                requested = taken.union(at for at, _ in self._candidates_of(rendered).policies)
                notices += _lengthened(rendered, requested, marks, legal)
            marks = legal
        return Plan(
            marks=tuple(marks),
            automatic=automatic,
            only_marks=only_marks,
            notices=tuple(notices),
        )

    def _best(self, rendered: Rendered, wanted: Mapping[int, Ttl], room: int) -> tuple[int, ...]:
        """The markers that save most when not all fit."""
        found, prompt = self._candidates_of(rendered), self._prompt_of(rendered)
        policies = [at for at, _ in found.policies if at in wanted]
        weights = dict.fromkeys(policies[-_MOST_POLICIES:], _READ_AGAIN["policy"])
        written = -1 if self.state.written is None else self.state.written[0]
        for position, kind in (
            (found.shared, "shared"),
            (found.frozen, "frozen"),
            (found.tail, "tail"),
            (written, "written"),
        ):
            if position is not None and position in wanted:
                weights[position] = max(weights.get(position, 0.0), _READ_AGAIN[kind])
        minimum = self._rules.minimum_tokens.value
        tokens: dict[int, float] = {at: prompt.tokens(at) for at in weights}
        for at, count in tokens.items():
            if count < minimum:
                tokens[at] = count / minimum  # never read, so it goes first
        return best_marks([Chance(at, weight) for at, weight in weights.items()], tokens, room)

    def _history_ttl(self, rendered: Rendered, beginning: Hashable, at: float) -> Ttl | None:
        """The TTL of markers in the history: the caller's, or the one that pays. Where a provider
        also caches by itself, changing from one way to the other gives up what is cached: that
        needs more than a small gain."""
        if rendered.message_ttl is not None:
            return rendered.message_ttl
        gaps = self.state.gaps
        usual = self._memory.usual_calls(beginning)
        best = self._memory.lifetimes.best(gaps, at, usual)
        if not self._by_itself or gaps.count == 0:
            return best
        if (best is None) == (self.state.written is None):
            return best
        other = self._rules.ttls.value[-1] if best is None else None
        cost = expected_cost(self._rules, gaps, best, at, usual)
        present = expected_cost(self._rules, gaps, other, at, usual)
        return best if cost < _WORTH_A_CHANGE * present else other

    def _last_write(self, prompt: RenderedPrompt, tail: int, at: float) -> int | None:
        """Where the last call wrote, if that is before the tail and still alive."""
        if self.state.written is None:
            return None
        position, key, expires = self.state.written
        if position >= tail or expires < at:
            return None
        if key is None:  # a single call: this prompt begins like that one or like a fork of it
            return position if prompt.may_mark(position) else None
        return position if prompt.key(position) == key else None

    def _reaches(self, tail: int, written: int) -> bool:
        """Whether a marker at the tail finds the last write without a marker there."""
        unit, reach = self._rules.lookback_unit, self._rules.lookback_positions
        if unit is not None and unit.value == "breakpoints":
            return False  # only a boundary of this very request is looked up
        # Counted block by block, which is the stricter of the published readings.
        return reach is not None and tail - written < reach.value

    def _cache_key(self, rendered: Rendered, at: float) -> str | None:
        """A cache key for providers that route by one: the same for all conversations that begin
        alike, as long as one key can serve them, and fixed once it is chosen."""
        if self.state.cache_key is None and rendered.key_place is not None:
            limit, end = self._rules.key_requests, stable_end(rendered)
            if limit is not None and end is not None and end >= 0:
                shared = self._prompt_of(rendered).key(end).hex()
                crowded = self._memory.calls_per_minute(at) >= limit.value
                self.state.cache_key = f"{shared}-{self.state.number}" if crowded else shared
        return self.state.cache_key if rendered.key_place is not None else None

    # ── Afterwards ───────────────────────────────────────────────────────────────────────────────

    def sent(
        self, rendered: Rendered, plan: Plan, *, at: float, began: float | None = None
    ) -> Outcome:
        """Records a call of the conversation; returns what it reads and writes by the rules."""
        prompt = self._prompt_of(rendered)
        prompt.mark(plan)
        shared = self._candidates_of(rendered).shared
        outcome = self._memory.call(prompt, shared, self.state, at, began)
        self._record(prompt, plan, at)
        return outcome

    def sent_single(
        self, rendered: Rendered, plan: Plan, *, at: float, began: float | None = None
    ) -> None:
        """Records a single call, so that a later one with the same beginning is recognised."""
        if not rendered.markers or not rendered.cacheable:
            return
        prompt = self._prompt_of(rendered)
        minimum = self._rules.minimum_tokens.value
        if prompt.total < minimum:
            return
        shared = self._candidates_of(rendered).shared
        if shared is not None and prompt.tokens(shared) < minimum:
            shared = None
        self._memory.single_call(prompt, shared, self.state, at)
        self._memory.keep_single(rendered, self.state)
        if plan.marks or plan.automatic is not None:
            prompt.mark(plan)
            self._memory.simulate_later(prompt, at, began)
        self._record(prompt, plan, at, keyed=False)

    def _record(self, prompt: RenderedPrompt, plan: Plan, at: float, *, keyed: bool = True) -> None:
        self.state.gaps.use(at)
        minimum = self._rules.minimum_tokens.value
        for mark in reversed(plan.marks):
            if prompt.tokens(mark.chunk) >= minimum:
                key = prompt.key(mark.chunk) if keyed else None
                self.state.written = mark.chunk, key, at + TTL_SECONDS[mark.ttl]
                break

    def counts(self, rendered: Rendered) -> Counts:
        """The estimated tokens of the prompt, chunk by chunk."""
        return self._prompt_of(rendered).counts

    def tokens(self, rendered: Rendered) -> int:
        """The estimated length of the prompt."""
        return self._prompt_of(rendered).total if rendered.runs else 0

    def predict(self, rendered: Rendered, plan: Plan, *, at: float) -> Outcome:
        """What the call would read and write if it were made now; nothing is recorded."""
        prompt = self._prompt_of(rendered)
        prompt.mark(plan)
        return self._memory.predict(prompt, at)

    def fork(self) -> Planner:
        """For a conversation that continues separately from here. The handle stays with the one
        that created it."""
        other = copy.copy(self)
        other.state = self._memory.fork(self.state)
        other._held = None
        return other

    # ── Handles ──────────────────────────────────────────────────────────────────────────────────

    def hold(self, held: CacheHandle, expires: float) -> None:
        """A handle was created or extended, as a plan had asked."""
        self._held = held, expires

    def let_go(self, handle: str) -> None:
        """A handle is gone."""
        if self._held is not None and self._held[0].handle == handle:
            self._held = None

    def _plan_handle(self, rendered: Rendered, at: float) -> Plan:
        held, expires = self._held if self._held is not None else (None, at)
        if held is not None and expires <= at:
            self._held = held = None
        prompt = self._prompt_of(rendered)
        shared = stable_end(rendered)
        decided = plan_holding(
            rendered,
            self._rules,
            self.state.gaps,
            shared=shared,
            tokens=0 if shared is None else prompt.tokens(shared),
            held=held,
            expires=expires,
            price=self._price,
            at=at,
            usual=self._memory.usual_calls(),
        )
        if held is not None and decided.held is None:
            self._held = None
        return Plan(held=decided.held, preludes=decided.preludes, notices=decided.notices)

    # ── Computed once per rendered prompt ────────────────────────────────────────────────────────

    def _prompt_of(self, rendered: Rendered) -> RenderedPrompt:
        if self._prompt is None:
            self._prompt = rendered, RenderedPrompt(rendered, _UNMARKED)
        elif self._prompt[0] is not rendered:
            self._prompt = rendered, RenderedPrompt(rendered, _UNMARKED, before=self._prompt[1])
        return self._prompt[1]

    def _candidates_of(self, rendered: Rendered) -> Candidates:
        if self._candidates is None or self._candidates[0] is not rendered:
            self._candidates = rendered, find_candidates(rendered)
        return self._candidates[1]


def plan_once(rendered: Rendered, rules: CacheRules, *, reuse_expected: bool | None = None) -> Plan:
    """A plan without any history. Reuse is expected where the prompt asks for caching, unless
    stated otherwise."""
    if reuse_expected is None:
        reuse_expected = reuse_requested(rendered)
    return Planner(AppMemory(rules)).plan(rendered, at=0.0, reuse_expected=reuse_expected)


def reuse_requested(rendered: Rendered) -> bool:
    """Whether the prompt itself asks for caching: by a block's policy, a mark, a frozen boundary or
    a TTL for the history, or by asking the provider for an automatic breakpoint."""
    if rendered.marks or rendered.frozen is not None or rendered.message_ttl is not None:
        return True
    if rendered.automatic is not None and rendered.only_marks is None:
        return True  # otherwise the planner decides: it is the provider's default
    return any(run.log.policies for run in rendered.runs)


def _unwritten(rendered: Rendered) -> Plan:
    """A plan that writes nothing, also where the provider would by default."""
    if rendered.automatic is None:
        return _UNMARKED
    if rendered.only_marks is None:
        return Plan(automatic=rendered.automatic)
    return Plan(only_marks=True)


def _only_marks(rendered: Rendered, choice: _Choice) -> bool:
    """Whether to keep the provider from marking the end by itself: where the history is not worth
    writing, or ends with something volatile, it would write what no call reads."""
    if rendered.only_marks is None:
        return False
    if choice.history is None:
        return True
    return bool(choice.wanted) and rendered.cacheable < len(rendered)


def _leans_on_stored(rendered: Rendered) -> bool:
    """Whether some of the prompt is not sent, because the provider has stored it."""
    order = rendered.body_order
    return order is not None and len(order) < len(rendered.runs)


def _shortest(rendered: Rendered) -> Ttl:
    return min(rendered.markers, key=TTL_SECONDS.__getitem__)


def _uncacheable_messages(rendered: Rendered) -> list[Notice]:
    """The older shape of a context, whose first message carries the state (SPEC B4)."""
    if not rendered.runs or rendered.runs[-1].section != "messages":
        return []
    return [
        Notice(
            "state_in_turns",
            "the first message changes at every call, so nothing behind it can be cached and no"
            " message is marked; pass the state as the volatile tail instead",
            "messages",
        )
    ]


def _lengthened(
    rendered: Rendered, requested: set[int], marks: list[Mark], legal: list[Mark]
) -> list[Notice]:
    """Notices for requested TTLs that had to change."""
    return [
        Notice(
            "ttl_lengthened",
            f"{new.ttl} may not follow {old.ttl}, so this marker gets {new.ttl} as well",
            rendered.chunk(new.chunk).path,
        )
        for old, new in zip(marks, legal, strict=True)
        if old.ttl != new.ttl and old.chunk in requested
    ]


def _left_out(rendered: Rendered, position: int, slots: int, owner: str) -> Notice:
    chunk = rendered.chunk(position)
    return Notice(
        "marker_left_out",
        f"only {slots} markers fit; {owner} on {chunk.label} is left out",
        chunk.path,
    )
