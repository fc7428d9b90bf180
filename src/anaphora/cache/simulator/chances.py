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
    """A figure that depends on chance: what is expected, and the range of nine cases in ten."""

    expected: float
    low: float
    high: float


Distribution: TypeAlias = Sequence[tuple[float, float]]
"""The shares of all outcomes of one call, and a figure of each."""


def distribution(predicted: float, others: Iterable[tuple[float, float]]) -> Distribution:
    """The other figures with their shares, and the predicted one with the remaining share."""
    known = [*others]
    return [(1.0 - sum(share for share, _ in known), predicted), *known]


def estimate(calls: Iterable[Distribution]) -> Estimate:
    """The sum over calls that are independent of each other."""
    mean = variance = least = most = 0.0
    for outcomes in calls:
        figures = [figure for share, figure in outcomes if share > 0]
        expected = sum([share * figure for share, figure in outcomes])
        mean += expected
        if len(figures) > 1:
            variance += sum([s * (figure - expected) ** 2 for s, figure in outcomes])
        least, most = least + min(figures), most + max(figures)
    spread = _DEVIATIONS * math.sqrt(variance)
    return Estimate(mean, max(least, mean - spread), min(most, mean + spread))


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

    @property
    def certain(self) -> bool:
        return self.read.low == self.read.high


class SimulatedCall(NamedTuple):
    read: int
    cost_usd: Decimal | None
    chances: tuple[CallChance, ...]


def expected_usage(calls: Sequence[SimulatedCall]) -> ExpectedUsage:
    """Sums the calls, which are independent of each other."""
    reads = estimate(
        distribution(call.read, ((chance.share, chance.read) for chance in call.chances))
        for call in calls
    )
    return ExpectedUsage(
        read=TokenRange(round(reads.expected), round(reads.low), round(reads.high)),
        cost_usd=_expected_cost(calls),
    )


def _expected_cost(calls: Sequence[SimulatedCall]) -> CostRange | None:
    """None if the cost of one of the calls is unknown, or there are none."""
    certain, others = Decimal(0), list[Distribution]()
    for call in calls:
        if call.cost_usd is None:
            return None
        certain += call.cost_usd  # differences below, so that this part stays exact
        more = [
            (each.share, 0.0 if each.cost_usd is None else float(each.cost_usd - call.cost_usd))
            for each in call.chances
        ]
        others.append(distribution(0.0, more))
    figures = (
        certain + Decimal(more).quantize(_PLACES) if more else certain for more in estimate(others)
    )
    return CostRange(*figures) if calls else None


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
