"""How sure a prediction is: some providers miss reads at random, and the rules state how often.

    chances = simulator.chances(prompt, at=now)
    estimate([distribution(outcome.read, [(each.share, each.outcome.read) for each in chances])])

A prediction stays the most likely outcome; its chances are the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.catalog import CacheRules

from .markers import MarkerCache, MarkerLookup
from .outcome import Outcome, Span, spans_of
from .view import KeyOf, PromptView

ChanceReason: TypeAlias = Literal["missed", "cut_short", "late_writes"]
"""The figure of the rules that states the share."""

#: Nine cases in ten are within so many standard deviations.
_DEVIATIONS = 1.645


class Chance(msgspec.Struct, frozen=True):
    """Another outcome that a call may have, and in which share of such calls."""

    share: float
    reason: ChanceReason
    outcome: Outcome


class Estimate(NamedTuple):
    """A figure that depends on chance: what is expected, and the range of nine cases in ten."""

    expected: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        return self.low == self.high


Distribution: TypeAlias = Sequence[tuple[float, float]]
"""The shares of all outcomes of one call, and a figure of each."""


def distribution(predicted: float, others: Iterable[tuple[float, float]]) -> Distribution:
    """The predicted figure and the others; what their shares leave is the predicted one's."""
    known = [*others]
    return [(1.0 - sum(share for share, _ in known), predicted), *known]


def estimate(calls: Iterable[Distribution]) -> Estimate:
    """The sum over calls that are independent of each other."""
    mean = variance = least = most = 0.0
    for outcomes in calls:
        figures = [figure for share, figure in outcomes if share > 0]
        expected = sum(share * figure for share, figure in outcomes)
        mean += expected
        if len(figures) > 1:
            variance += sum(share * (figure - expected) ** 2 for share, figure in outcomes)
        least, most = least + min(figures), most + max(figures)
    spread = _DEVIATIONS * math.sqrt(variance)
    return Estimate(mean, max(least, mean - spread), min(most, mean + spread))


def find_chances(
    rules: CacheRules, cache: Any, prompt: PromptView, key_of: KeyOf, at: float
) -> tuple[Chance, ...]:
    """The other outcomes of a call, by the shares that the rules state; none where nothing is
    read."""
    if rules.missed is None and rules.cut_short is None and rules.late_writes is None:
        return ()
    outcome, lookup = cache.predict(prompt, key_of, at)
    if not outcome.read:
        return ()
    chances: list[Chance] = []
    if rules.missed is not None and rules.missed.value:
        chances.append(Chance(rules.missed.value, "missed", cache.lose(prompt, lookup)[0]))
    older: Outcome | None = None
    if isinstance(cache, MarkerCache):
        older = cache.older(prompt, key_of, lookup, at)
    if rules.cut_short is not None and rules.cut_short.value:
        part = _halved(rules, prompt, outcome) if older is None else older
        chances.append(Chance(rules.cut_short.value, "cut_short", part))
    if rules.late_writes is not None and older is not None and _is_fresh(rules, lookup, at):
        share = rules.late_writes.value * (1.0 - sum(chance.share for chance in chances))
        chances.append(Chance(share, "late_writes", older))
    return tuple(chance for chance in chances if chance.outcome.read < outcome.read)


def _is_fresh(rules: CacheRules, lookup: MarkerLookup, at: float) -> bool:
    """Whether what is read was written so recently that it may not be visible yet."""
    return lookup.entry is not None and at <= lookup.entry.readable + rules.visibility_delay.value


def _halved(rules: CacheRules, prompt: PromptView, outcome: Outcome) -> Outcome:
    """A read that is cut short. Where is not known: between the end of the system prompt and tools,
    which others have in common, and what would be read in full. Half way is expected."""
    full, lead = outcome.read, prompt.tokens(prompt.leading)
    granule = rules.granule_tokens.value
    read = (full + (lead if lead < full else 0)) // 2 // granule * granule
    read = read if read >= rules.minimum_tokens.value else 0
    return Outcome(
        spans_of(Span(0, read, "read", "found"), Span(read, outcome.total, "uncached", "lost"))
    )
