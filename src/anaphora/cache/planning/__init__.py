"""Where the breakpoints go, decided anew at every turn from what is known by then.

    memory = AppMemory(catalog.rules("anthropic", model))     # for all conversations of an app
    planner = Planner(memory)                                 # for one of them
    plan = planner.plan(rendered, at=now)
    planner.sent(rendered, plan, at=now)

A marker on something that is cached already costs nothing, so what matters is what is written, for
how long, and that the next call finds it: within the look-back, and before it expires.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from decimal import Decimal

from anaphora.cache.simulator import Outcome, RenderedPrompt
from anaphora.rendered import Held, Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Notice, Ttl

from .advice import Advice, at_compaction, before_fan_out, until_next
from .choose import Chance, best_marks
from .gaps import Gaps
from .holding import plan_holding
from .memory import AppMemory
from .places import Places, places, stable_end
from .prices import by_itself, expected_cost

__all__ = [
    "Advice",
    "AppMemory",
    "Gaps",
    "Planner",
    "at_compaction",
    "before_fan_out",
    "until_next",
]


#: What another way of caching must cost, of what the present one does, to be taken.
_WORTH_A_CHANGE = 0.9


_NOTHING = Plan()


class Planner:
    """The breakpoints of one conversation."""

    def __init__(self, memory: AppMemory, price: Decimal | None = None) -> None:
        """`price` is what a million input tokens cost, in dollars: holding a beginning is billed
        in dollars, so without it nothing is held."""
        self._memory = memory
        self._number = memory.begin()
        self._price = price
        self._chosen_key: str | None = None
        self._held: tuple[Held, float] | None = None
        """The handle there is, and when it ends."""
        self._rules = memory.rules
        self._by_itself = by_itself(memory.rules) is not None
        """The provider caches what nobody marked, too."""
        self._gaps = Gaps()
        self._prompt: tuple[Rendered, RenderedPrompt] | None = None
        self._found: tuple[Rendered, Places] | None = None
        self._written: tuple[int, Hashable, float] | None = None
        """The deepest block that was written, its key, and when that expires."""

    def plan(self, rendered: Rendered, *, at: float) -> Plan:
        """Marks for one request: never more than the rules allow, TTLs never rising."""
        rules = self._rules
        if rendered.frozen_with is not None and rules.storage_price is not None:
            return self._holding(rendered, at)
        if rules.mechanism.value == "implicit" or not rules.slots.value:
            return Plan(key=self._key(rendered, at))
        if rendered.automatic is not None and _leans_on_stored(rendered):
            # What is stored cannot be marked any more, and what is new will be joined to it
            # otherwise: only the provider's own breakpoint is found again.
            return Plan(automatic=rendered.automatic)
        found = self._places(rendered)
        prompt = self._said(rendered)
        own = self._own(prompt, found, at)
        only_marks = self._only_marks(rendered, own)
        automatic = None if only_marks else rendered.automatic
        slots = rules.slots.value
        if automatic is not None:
            slots -= rules.automatic_slots.value
        if not rendered.marks and len(own) <= slots:
            marks = [Mark(chunk, own[chunk]) for chunk in sorted(own)]
            if rules.longer_ttl_first.value:
                marks = _falling(marks)
            return Plan(marks=tuple(marks), automatic=automatic, only_marks=only_marks)
        return self._fitted(rendered, found, own, slots, automatic, only_marks)

    def _fitted(
        self,
        rendered: Rendered,
        found: Places,
        own: Mapping[int, Ttl],
        slots: int,
        automatic: Ttl | None,
        only_marks: bool,
    ) -> Plan:
        """The caller's own marks and as many of the planner's as fit besides."""
        rules, prompt = self._rules, self._said(rendered)
        asked = list(rendered.marks)
        taken = {mark.chunk for mark in asked if mark.splice is None}
        ours = {chunk: ttl for chunk, ttl in own.items() if chunk not in taken}
        room = max(0, slots - len(asked))
        kept = ours
        if len(ours) > room:
            kept = {chunk: ours[chunk] for chunk in self._worth_most(prompt, found, ours, room)}
        notices = [
            *(
                _left_out(rendered, Mark(chunk, ttl), slots, "the planner's")
                for chunk, ttl in ours.items()
                if chunk not in kept
            ),
            *(_left_out(rendered, mark, slots, "the caller's own") for mark in asked[slots:]),
        ]
        chosen = [Mark(chunk, ttl) for chunk, ttl in kept.items()]
        marks = sorted([*asked[:slots], *chosen], key=_hash_order)
        if rules.longer_ttl_first.value:
            marks = _falling(marks)
        return Plan(
            marks=tuple(marks),
            automatic=automatic,
            only_marks=only_marks,
            notices=tuple(notices),
        )

    def sent(
        self, rendered: Rendered, plan: Plan, *, at: float, began: float | None = None
    ) -> Outcome:
        """Notes that a call was made, and says what it reads and writes by the rules."""
        prompt = self._said(rendered)
        prompt.mark(plan)
        shared = self._places(rendered).shared
        outcome = self._memory.call(prompt, shared, self._number, at, began)
        self._gaps.use(at)
        minimum = self._rules.minimum_tokens.value
        for mark in reversed(plan.marks):
            if prompt.tokens(mark.chunk) >= minimum:
                expires = at + TTL_SECONDS[mark.ttl]
                self._written = mark.chunk, prompt.key(mark.chunk), expires
                break
        return outcome

    def tokens(self, rendered: Rendered) -> int:
        """How long the prompt is, by the estimate."""
        return self._said(rendered).total if rendered.runs else 0

    def foresee(self, rendered: Rendered, plan: Plan, *, at: float) -> Outcome:
        """What the call would read and write if it were made now; nothing is noted."""
        prompt = self._said(rendered)
        prompt.mark(plan)
        return self._memory.simulator.predict(prompt, at=at)

    def fork(self) -> Planner:
        """For a conversation that goes on from here on its own. A handle stays with the one that
        had it made."""
        other = copy.copy(self)
        other._number = self._memory.begin()
        other._gaps = copy.deepcopy(self._gaps)
        other._held = None
        return other

    def _lifetime(self, at: float) -> Ttl | None:
        """The lifetime that pays for the history. Where a provider caches by itself as well, going
        from one way to the other gives up what the first has kept: a small gain is not worth it."""
        usual = self._memory.usual()
        best = self._memory.lifetimes.best(self._gaps, at, usual)
        if not self._by_itself or self._gaps.count == 0:
            return best
        if (best is None) == (self._written is None):
            return best
        other = self._rules.ttls.value[-1] if best is None else None
        gain = expected_cost(self._rules, self._gaps, best, at, usual)
        return (
            best
            if gain < _WORTH_A_CHANGE * expected_cost(self._rules, self._gaps, other, at, usual)
            else other
        )

    def _said(self, rendered: Rendered) -> RenderedPrompt:
        if self._prompt is None:
            self._prompt = rendered, RenderedPrompt(rendered, _NOTHING)
        elif self._prompt[0] is not rendered:
            self._prompt = rendered, RenderedPrompt(rendered, _NOTHING, before=self._prompt[1])
        return self._prompt[1]

    def _places(self, rendered: Rendered) -> Places:
        if self._found is None or self._found[0] is not rendered:
            self._found = rendered, places(rendered)
        return self._found[1]

    def _own(self, prompt: RenderedPrompt, found: Places, at: float) -> Mapping[int, Ttl]:
        """The planner's own marks, the most valuable first."""
        rules = self._rules
        minimum = rules.minimum_tokens.value
        history = self._lifetime(at)
        marks: dict[int, Ttl] = {}
        if history is None and self._by_itself:
            return marks  # what it caches by itself, it caches only where nothing is marked

        wanted: list[tuple[int | None, Ttl | None]] = []
        if found.tail is not None:
            again = self._last_write(prompt, found.tail, at)
            wanted = [(found.tail, history), (again, history)]
        if found.shared is not None:
            used = self._memory.uses(prompt.key(found.shared))
            kept = history
            if used.count:
                kept = _longer(self._memory.lifetimes.best(used, at), history)
            wanted += [(found.shared, kept), (found.frozen, history), (found.first, kept)]
        else:
            wanted.append((found.frozen, history))
        for position, ttl in wanted:
            if position is None or ttl is None or position in marks:
                continue
            if prompt.tokens(position) >= minimum:
                marks[position] = ttl
        return marks

    def _key(self, rendered: Rendered, at: float) -> str | None:
        """A cache key for providers that lead requests by one: the same for all conversations that
        begin alike, as long as they are not too many for it, and for good once it is chosen."""
        if self._chosen_key is None and rendered.key_place is not None:
            limit, end = self._rules.key_requests, stable_end(rendered)
            if limit is not None and end is not None and end >= 0:
                said = self._said(rendered).key(end)
                shared = said.hex() if isinstance(said, bytes) else str(said)
                crowded = self._memory.per_minute(at) >= limit.value
                self._chosen_key = f"{shared}-{self._number}" if crowded else shared
        return self._chosen_key if rendered.key_place is not None else None

    def hold(self, held: Held, expires: float) -> None:
        """A handle was made or extended, as a plan had asked."""
        self._held = held, expires

    def let_go(self, handle: str) -> None:
        """A handle is gone."""
        if self._held is not None and self._held[0].handle == handle:
            self._held = None

    def _holding(self, rendered: Rendered, at: float) -> Plan:
        held, expires = self._held if self._held is not None else (None, at)
        if held is not None and expires <= at:
            self._held = held = None
        prompt = self._said(rendered)
        shared = stable_end(rendered)
        length = 0 if shared is None else prompt.tokens(shared)
        decided = plan_holding(
            rendered,
            self._rules,
            self._gaps,
            shared=shared,
            tokens=length,
            held=held,
            expires=expires,
            price=self._price,
            at=at,
            usual=self._memory.usual(),
        )
        if held is not None and decided.held is None:
            self._held = None
        return Plan(held=decided.held, preludes=decided.preludes, notices=decided.notices)

    def _only_marks(self, rendered: Rendered, own: Mapping[int, Ttl]) -> bool:
        """Whether to keep the provider from marking the end by itself: where that is volatile, it
        would write at every call what no call reads."""
        if rendered.only_marks is None or not own:
            return False
        return rendered.cacheable < len(rendered)

    def _worth_most(
        self, prompt: RenderedPrompt, found: Places, own: Mapping[int, Ttl], room: int
    ) -> tuple[int, ...]:
        """The marks that save most, when not all fit. What the next call of this conversation
        reads counts most, what this very call reads by it counts fully; the rest is for others."""
        written = -1 if self._written is None else self._written[0]
        weights = {found.shared: 0.1, found.frozen: 0.05, found.first: 0.02}
        weights |= {found.tail: 0.9, written: 1.0}
        chances = [Chance(chunk, weights.get(chunk, 0.01)) for chunk in own]
        return best_marks(chances, {chunk: prompt.tokens(chunk) for chunk in own}, room)

    def _last_write(self, prompt: RenderedPrompt, tail: int, at: float) -> int | None:
        """Where the last write stands, when the tail's look-back does not reach it."""
        if self._written is None:
            return None
        position, key, expires = self._written
        if position >= tail or expires < at or prompt.key(position) != key:
            return None
        unit, reach = self._rules.lookback_unit, self._rules.lookback_positions
        if unit is not None and unit.value == "breakpoints":
            return position  # only a boundary of this very request is looked up
        # Counted block by block, which is the stricter of the published readings.
        within = reach is not None and tail - position < reach.value
        return None if within else position


def _leans_on_stored(rendered: Rendered) -> bool:
    """Whether some of the prompt is not sent, because the provider has stored it."""
    order = rendered.body_order
    return order is not None and len(order) < len(rendered.runs)


def _longer(one: Ttl | None, other: Ttl | None) -> Ttl | None:
    if one is None or other is None:
        return one or other
    return one if TTL_SECONDS[one] >= TTL_SECONDS[other] else other


def _hash_order(mark: Mark) -> tuple[int, float]:
    """A block's own marker stands at its very end, behind those of blocks inside it."""
    return mark.chunk, float("inf") if mark.splice is None else mark.splice


def _falling(marks: list[Mark]) -> list[Mark]:
    """A longer TTL behind a shorter one is refused: what comes before gets the longer one."""
    if len({mark.ttl for mark in marks}) < 2:
        return marks
    legal: list[Mark] = []
    longest: Ttl | None = None
    for mark in reversed(marks):
        if longest is not None and TTL_SECONDS[mark.ttl] < TTL_SECONDS[longest]:
            mark = Mark(mark.chunk, longest, mark.splice)
        longest = mark.ttl
        legal.append(mark)
    return legal[::-1]


def _left_out(rendered: Rendered, mark: Mark, slots: int, whose: str) -> Notice:
    chunk = rendered.chunk(mark.chunk)
    return Notice(
        "marker_left_out",
        f"only {slots} markers fit; {whose} on {chunk.label} is left out",
        chunk.path,
    )
