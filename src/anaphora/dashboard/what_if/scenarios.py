"""Simulates audited calls in another way: without caching, with another TTL, on another model.

    run = ScenarioRun(Scenario(title="…", ttl="1h"), prices)
    played = run.play(call, model)      None if the price is not known

Calls are played in the order they were made. Replies, and so later prompts, are assumed to be the
same.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.plan import AppMemory
from anaphora.cache.plan.memory import ConversationState
from anaphora.cache.simulator import Mark
from anaphora.cache.simulator.chances import Distribution, distribution
from anaphora.catalog import CacheRules, Price
from anaphora.catalog.pricing import PriceBook
from anaphora.values import TTL_SECONDS, Ttl, Usage

from .prompts import AuditedCall

Caching: TypeAlias = Literal["sent", "placed", "none"]
"""With the markers that were sent, with those that the planner's costs suggest, or without any
caching."""


class ProviderModel(NamedTuple):
    provider: str
    """As in the catalog."""
    model: str
    wire: str | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    caching: Caching = "sent"
    ttl: Ttl | None = None
    """TTL of all markers; None: as sent, or the one that pays."""
    model: ProviderModel | None = None
    """Instead of each call's own."""


class TokenRatio(NamedTuple):
    """Tokens of one model for one of another, with its bounds."""

    expected: float
    low: float
    high: float


class PlayedCall(NamedTuple):
    """What a call costs in a scenario, in dollars."""

    cost: float
    """Without random misses."""
    outcomes: Distribution
    """The possible costs, with their probabilities."""
    read: float
    """Expected number of tokens read."""
    input: int
    affected: bool
    """Whether the scenario changes this call."""
    least: float
    greatest: float
    """The costs if all of its input were read, and if none were; both equal `cost` if the earlier
    calls are known."""


def model_of(row: AuditEnvelope) -> ProviderModel | None:
    """The catalog's model of a call; None if its provider is unknown."""
    wire = row.wire.rpartition("/")[2] or None
    for name in (row.system, row.provider):
        provider = catalog.provider_named(name) if name else None
        if provider is not None:
            return ProviderModel(provider, row.model, wire)
    return None


def takes_markers(rules: CacheRules) -> bool:
    return rules.mechanism.value != "implicit" and rules.slots.value > 0


def token_ratio(own: ProviderModel, other: ProviderModel) -> TokenRatio:
    """How many tokens of the other model one own token is, for the same text."""
    one, two = catalog.profile(*own[:2]), catalog.profile(*other[:2])
    same = one.tokenizer.value == two.tokenizer.value != "unpublished"
    if own[:2] == other[:2] or (same and one.bytes_per_token.value == two.bytes_per_token.value):
        return TokenRatio(1.0, 1.0, 1.0)
    ratio = one.bytes_per_token.value / two.bytes_per_token.value
    error = math.hypot(one.token_error.value, two.token_error.value)
    return TokenRatio(ratio, ratio * max(0.0, 1 - error), ratio * (1 + error))


class ScenarioRun:
    """Plays the calls of one scenario, with a cache for each model at each account."""

    def __init__(self, scenario: Scenario, prices: PriceBook) -> None:
        self.scenario = scenario
        self._prices = prices
        self._caches: dict[tuple[ProviderModel, str], AppMemory] = {}
        self._states: dict[tuple[AppMemory, int], ConversationState] = {}
        self._ratios: dict[ProviderModel, TokenRatio] = {}

    def ratio(self, own: ProviderModel) -> TokenRatio:
        """How many tokens of this scenario's model one token of a call's own model is."""
        ratio = self._ratios.get(own)
        if ratio is None:
            ratio = self._ratios[own] = token_ratio(own, self.scenario.model or own)
        return ratio

    def play(self, call: AuditedCall, own: ProviderModel) -> PlayedCall | None:
        """None if the price is unknown."""
        model = self.scenario.model or own
        ratio = self.ratio(own).expected
        price = self._prices.price(model.provider, model.model, call.row.at, model.wire)
        if price is None:
            return None
        output = round((call.row.usage.output or 0) * ratio)
        if self.scenario.caching == "none":
            tokens = round(call.row.usage.input * ratio)
            cost = _dollars(price, Usage(uncached=tokens, output=output), marked=True)
            if cost is None:
                return None
            return PlayedCall(cost, [(1.0, cost)], 0.0, tokens, True, cost, cost)
        return self._simulate(call, model, ratio, price, output)

    def listed(self, row: AuditEnvelope, own: ProviderModel) -> float | None:
        """The cost of the billed tokens at the listed price."""
        price = self._prices.price(own.provider, own.model, row.at, own.wire)
        if price is None:
            return None
        ttls = {block.ttl for block in row.blocks if block.marker}
        unsplit = next(iter(ttls)) if len(ttls) == 1 else None
        usage = msgspec.convert(msgspec.structs.asdict(row.usage), Usage)
        cost = price.of(usage, unsplit=unsplit, marked=bool(ttls))
        return None if cost is None else float(cost)

    def _simulate(
        self, call: AuditedCall, model: ProviderModel, ratio: float, price: Price, output: int
    ) -> PlayedCall | None:
        row, prompt, moved = call.row, call.prompt, self.scenario.model is not None
        memory = self._cache(model, "" if moved else row.provider)
        state = self._states.get((memory, call.conversation))
        if state is None:
            state = self._states[memory, call.conversation] = memory.start()
        at = row.at + row.queued
        call.convert(ratio)
        prompt.markers, prompt.automatic = self._marks(call, memory, state, at)
        sent = prompt.markers == call.marks and prompt.automatic == row.automatic
        chances = memory.simulator.chances(prompt, at=at) if moved else ()
        began = row.at + (row.seconds if row.first is None else row.first)
        made = memory.call(prompt, call.shared, state, at, began, row.usage.reasoning)
        outcome = made.outcome
        state.gaps.use(at)
        marked = bool(prompt.markers)
        cost = _dollars(price, outcome.usage(output), marked=marked)
        if cost is None:
            return None
        others = [
            (one.share, other)
            for one in chances
            if (other := _dollars(price, one.outcome.usage(output), marked=marked)) is not None
        ]
        read = outcome.read + sum(one.share * (one.outcome.read - outcome.read) for one in chances)
        least = greatest = cost
        if call.began_before:
            least, greatest = _extremes(price, outcome.total, output, prompt.markers, cost)
        return PlayedCall(
            cost=cost,
            outcomes=distribution(cost, others),
            read=read,
            input=outcome.total,
            affected=moved or not sent,
            least=least,
            greatest=greatest,
        )

    def _marks(
        self, call: AuditedCall, memory: AppMemory, state: ConversationState, at: float
    ) -> tuple[tuple[Mark, ...], Ttl | None]:
        """The markers of a call, and the TTL of an automatic breakpoint."""
        rules, wanted = memory.rules, self.scenario.ttl
        sent = self.scenario.caching == "sent"
        if self.scenario.model is not None:
            sent = self._accepts(call, rules)
        marks, automatic = call.marks, call.row.automatic
        if not takes_markers(rules):
            return ((), None) if self.scenario.model is not None else (marks, automatic)
        if not sent:
            return _placed(call, memory, state, at, wanted), None
        if wanted is None or wanted not in rules.ttls.value:
            return marks, automatic
        automatic = None if automatic is None else wanted
        return tuple(Mark(mark.chunk, wanted) for mark in marks), automatic

    def _accepts(self, call: AuditedCall, rules: CacheRules) -> bool:
        """Whether the other model takes a call's markers as they were sent."""
        ttls = {mark.ttl for mark in call.marks}
        if call.row.automatic is not None:
            ttls.add(call.row.automatic)
        same = catalog.provider_named(call.row.system or call.row.provider) == rules.provider
        return same and bool(ttls) and takes_markers(rules) and ttls <= set(rules.ttls.value)

    def _cache(self, model: ProviderModel, account: str) -> AppMemory:
        memory = self._caches.get((model, account))
        if memory is None:
            memory = self._caches[model, account] = AppMemory(catalog.rules(*model))
        return memory


def _placed(
    call: AuditedCall, memory: AppMemory, state: ConversationState, at: float, ttl: Ttl | None
) -> tuple[Mark, ...]:
    """Markers at the end of the part that conversations share, of the previous call and of this
    one, with the TTL that pays by the planner's costs."""
    costs, shared = memory.costs, call.shared
    beginning = None if shared is None else call.prompt.key(shared)
    history = lead = ttl
    if ttl is None:
        history = lead = costs.best_ttl(state.gaps, at, memory.usual_calls(beginning))
        same = memory.beginnings.get(beginning)
        best = costs.best_ttl(same.gaps, at) if same is not None and same.gaps.count else None
        if best is not None and (history is None or TTL_SECONDS[best] > TTL_SECONDS[history]):
            lead = best
    wanted = {shared: lead, call.before: history, call.tail: history}
    return tuple(
        Mark(position, lifetime)
        for position, lifetime in sorted(
            (position, lifetime)
            for position, lifetime in wanted.items()
            if position is not None and lifetime is not None
        )
    )


def _extremes(
    price: Price, total: int, output: int, marks: tuple[Mark, ...], cost: float
) -> tuple[float, float]:
    """What a call costs if all of its input is read, and if none of it is."""
    usages = [Usage(read=total, uncached=0, output=output), Usage(uncached=total, output=output)]
    usages += [
        Usage(uncached=0, written={ttl: total}, output=output) for ttl in {m.ttl for m in marks}
    ]
    found = [_dollars(price, usage, marked=bool(marks)) for usage in usages]
    costs = [cost, *(one for one in found if one is not None)]
    return min(costs), max(costs)


def _dollars(price: Price, usage: Usage, *, marked: bool) -> float | None:
    cost = price.of(usage, marked=marked)
    return None if cost is None else float(cost)
