"""The certainty of a prediction: some providers miss reads at random, and the rules state how
often.

    chances = simulator.chances(prompt, at=now)
    expected_usage([SimulatedCall(read, cost_usd, call_chances)])

A prediction stays the most likely outcome; its chances are the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.catalog import CacheRules
from anaphora.values import Usage

from .markers import MarkerCache, MarkerLookup
from .outcome import Outcome, Span, spans_of
from .prefixes import PrefixCache
from .view import KeyOf, PromptView

ChanceReason: TypeAlias = Literal["missed", "cut_short", "late_writes", "thinking_dropped"]
"""The figure of the rules that states the share."""

#: Nine cases in ten are within so many standard deviations.
_DEVIATIONS = 1.645
#: Decimal places of a dollar.
_PLACES = Decimal("0.00000001")


class Chance(msgspec.Struct, frozen=True):
    """Another outcome that a call may have, and in which share of such calls."""

    share: float
    reason: ChanceReason
    outcome: Outcome

    def priced(self, output: int | None, cost: Callable[[Usage], Decimal | None]) -> CallChance:
        """The chance as tokens and dollars."""
        usage = self.outcome.usage(output=output)
        return CallChance(
            share=self.share, reason=self.reason, read=usage.read or 0, cost_usd=cost(usage)
        )


class Estimate(NamedTuple):
    """A figure that depends on chance: its mean, the range of nine cases in ten, and its median."""

    expected: float
    low: float
    high: float
    median: float


Distribution: TypeAlias = Sequence[tuple[float, float]]
"""The shares of all outcomes of one call, and a figure of each; the predicted one first."""


def distribution(predicted: float, others: Iterable[tuple[float, float]]) -> Distribution:
    """The other figures with their shares, and the predicted one with the remaining share."""
    known = [*others]
    return [(1.0 - sum(share for share, _ in known), predicted), *known]


class Sum:
    """The sum over calls that are independent of each other."""

    def __init__(self, calls: Iterable[Distribution] = ()) -> None:
        self._mean = self._variance = self._skew = self._least = self._most = 0.0
        self._predicted, self._share = 0.0, 1.0
        """The sum if every call is as predicted, and how often that is so."""
        for outcomes in calls:
            self.add(outcomes)

    def add(self, outcomes: Distribution) -> None:
        share, predicted = outcomes[0]
        self._predicted, self._share = self._predicted + predicted, self._share * share
        figures = [figure for share, figure in outcomes if share > 0]
        expected = sum([share * figure for share, figure in outcomes])
        self._mean += expected
        if len(figures) > 1:
            self._variance += sum([s * (figure - expected) ** 2 for s, figure in outcomes])
            self._skew += sum([s * (figure - expected) ** 3 for s, figure in outcomes])
        self._least, self._most = self._least + min(figures), self._most + max(figures)

    @property
    def median(self) -> float:
        """By the first terms of the Cornish-Fisher expansion, if the predicted sum is not it."""
        if self._share >= 0.5 or not self._variance:
            return self._predicted
        return self._within(self._mean - self._skew / self._variance / 6)

    @property
    def estimate(self) -> Estimate:
        spread = _DEVIATIONS * math.sqrt(self._variance)
        low, high = self._within(self._mean - spread), self._within(self._mean + spread)
        return Estimate(self._mean, low, high, self.median)

    def _within(self, figure: float) -> float:
        return max(self._least, min(self._most, figure))


class CallChance(msgspec.Struct, frozen=True, kw_only=True):
    """A chance as tokens and dollars."""

    share: float
    reason: ChanceReason
    read: int
    cost_usd: Decimal | None


class TokenRange(msgspec.Struct, frozen=True):
    expected: int
    low: int
    high: int


class CostRange(msgspec.Struct, frozen=True):
    expected: Decimal
    low: Decimal
    high: Decimal


class ExpectedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The expected usage of one call or of many, and the range of nine cases in ten."""

    read: TokenRange
    cost_usd: CostRange | None
    median_usd: Decimal | None = None
    """As many bills are higher as lower."""

    @property
    def certain(self) -> bool:
        return self.read.low == self.read.high


class SimulatedCall(NamedTuple):
    read: int
    cost_usd: Decimal | None
    chances: tuple[CallChance, ...]


def expected_usage(calls: Sequence[SimulatedCall]) -> ExpectedUsage:
    """Sums the calls, which are independent of each other."""
    reads = Sum(
        distribution(call.read, ((chance.share, chance.read) for chance in call.chances))
        for call in calls
    ).estimate
    costs = _expected_cost(calls)
    return ExpectedUsage(
        read=TokenRange(round(reads.expected), round(reads.low), round(reads.high)),
        cost_usd=CostRange(*costs[:3]) if costs else None,
        median_usd=costs[3] if costs else None,
    )


def _expected_cost(calls: Sequence[SimulatedCall]) -> list[Decimal]:
    """Mean, range and median; empty if the cost of one of the calls is unknown, or there are
    none."""
    certain, others = Decimal(0), list[Distribution]()
    for call in calls:
        if call.cost_usd is None:
            return []
        certain += call.cost_usd  # differences below, so that this part stays exact
        more = [
            (each.share, 0.0 if each.cost_usd is None else float(each.cost_usd - call.cost_usd))
            for each in call.chances
        ]
        others.append(distribution(0.0, more))
    return [
        certain + Decimal(more).quantize(_PLACES) if more else certain
        for more in (Sum(others).estimate if calls else ())
    ]


def find_chances(
    rules: CacheRules,
    cache: Any,
    prompt: PromptView,
    key_of: KeyOf,
    at: float,
) -> tuple[Chance, ...]:
    """The other outcomes of a call, by the shares that the rules state; none if nothing is read."""
    if rules.missed is None and rules.cut_short is None and rules.late_writes is None:
        return ()
    outcome, lookup = cache.predict(prompt, key_of, at)
    read = outcome.read
    if not read:
        return ()
    chances: list[Chance] = []
    missed = rules.missed
    if rules.first_missed is not None and isinstance(cache, PrefixCache):
        missed = rules.first_missed if cache.sent_once(prompt, lookup) else missed
    if missed is not None and missed.value:
        chances.append(Chance(missed.value, "missed", cache.lose(prompt, lookup)[0]))
    cut_short = rules.cut_short.value if rules.cut_short is not None else 0.0
    late, older = 0.0, None
    if isinstance(cache, MarkerCache):
        if rules.late_writes is not None and _is_fresh(rules, lookup, at):
            late = rules.late_writes.value
        if late or cut_short:
            older = cache.older(prompt, key_of, lookup, at)
    if cut_short:
        part = _halved(rules, prompt, outcome) if older is None else older
        chances.append(Chance(cut_short, "cut_short", part))
    if late and older is not None:
        share = late * (1.0 - sum([chance.share for chance in chances]))
        chances.append(Chance(share, "late_writes", older))
    return tuple([chance for chance in chances if chance.outcome.read < read])


def _is_fresh(rules: CacheRules, lookup: MarkerLookup, at: float) -> bool:
    """Whether the entry was written so recently that it may not be visible yet."""
    entry = lookup.entry
    return entry is not None and at <= entry.since + rules.visibility_delay.value


def _halved(rules: CacheRules, prompt: PromptView, outcome: Outcome) -> Outcome:
    """A partial read. Its end is not known: between the end of the system prompt and tools, which
    conversations share, and the full read. Half way is expected."""
    full, lead = outcome.read, prompt.tokens(prompt.leading)
    read = rules.whole_granules((full + (lead if lead < full else 0)) // 2)
    return Outcome(
        spans_of(Span(0, read, "read", "found"), Span(read, outcome.total, "uncached", "lost"))
    )
