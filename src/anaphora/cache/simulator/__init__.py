"""Simulate a provider's cache: what a call reads, writes and pays for in full.

    simulator = Simulator(catalog.rules("anthropic", model))
    outcome = simulator.call(RenderedPrompt(rendered, plan), at=now)
    outcome.read, outcome.written, outcome.uncached, outcome.spans

Time is an argument. State is bounded, and the cost of a call does not grow with earlier calls.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from anaphora.catalog import CacheRules, LookbackUnit
from anaphora.rendered import Mark

from .chances import Chance, ExpectedUsage, find_chances
from .outcome import Fate, Outcome, Reason, Span
from .prompt import RenderedPrompt
from .simulator import SimulatedCalls
from .slot_predictor import SlotPredictor
from .state import OpenCall
from .view import MadeCall, PromptView, TokenRuns

__all__ = [
    "Chance",
    "ExpectedUsage",
    "Fate",
    "Mark",
    "OpenCall",
    "Outcome",
    "PromptView",
    "Reason",
    "RenderedPrompt",
    "Simulator",
    "SlotPredictor",
    "Span",
    "TokenRuns",
]


class Simulator(SimulatedCalls):
    """One model's cache at one provider, for any number of accounts."""

    def __init__(
        self,
        rules: CacheRules,
        *,
        lookback_unit: LookbackUnit | None = None,
        delay: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        slots: int = 4,
        most: int | None = None,
    ) -> None:
        """`lookback_unit` selects a published reading of the look-back. `delay` is how long after
        its reply began a prompt becomes readable. `loss` is the share of reads that find nothing,
        drawn from `seed`. `slots` is for self-hosted servers. `most` limits the prefixes that are
        remembered; the least recently used are dropped first."""
        super().__init__(rules, lookback_unit=lookback_unit, slots=slots, most=most)
        self._delay = delay
        self._loss = loss
        self._seed = seed

    def predict(self, prompt: PromptView, *, at: float, scope: Hashable = "") -> Outcome:
        """What a call at that time would read and write. Changes nothing."""
        if prompt.held:
            return self.read_handle(prompt, at)
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        return self._look_up(cache, prompt, key_of, at, scope)[0]

    def chances(self, prompt: PromptView, *, at: float, scope: Hashable = "") -> tuple[Chance, ...]:
        """The other outcomes that a call at that time may have, and how often: reads that the
        provider misses at random, by the shares that its rules state."""
        if prompt.held:
            return ()
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        return find_chances(self.rules, cache, prompt, key_of, at)

    def start(
        self, prompt: PromptView, *, at: float, reasoning: int | None = None, scope: Hashable = ""
    ) -> OpenCall:
        """A call whose response is still to come: until `OpenCall.respond`, what it writes cannot
        be read."""
        waits = self.rules.readable_from.value != "request_start"
        readable = math.inf if waits else at + self._delay
        made = MadeCall(at, readable, at, at, reasoning)
        outcome, written, refresh = self._make(prompt, made, scope)
        return OpenCall(self.rules, outcome, written, refresh, self._delay)
