"""What a call will read, write and pay for: a provider's cache, played by its rules.

    simulator = Simulator(catalog.rules("anthropic", model))
    outcome = simulator.call(RenderedPrompt(rendered, plan), at=now)
    outcome.read, outcome.written, outcome.uncached, outcome.spans

Time is an argument. State is bounded, and a call costs the same however many came before it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from blake3 import blake3

from anaphora.catalog import CacheRules, LookbackUnit

from .account import Account
from .marked import MarkedCache
from .outcome import Fate, Outcome, Reason, Span, spans_of
from .prompt import Key, Marker, Prompt, RenderedPrompt, TokenRuns
from .slots import SlotCache
from .unmarked import UnmarkedCache

__all__ = [
    "Fate",
    "Key",
    "Marker",
    "Outcome",
    "Prompt",
    "Reason",
    "RenderedPrompt",
    "Simulator",
    "Span",
    "TokenRuns",
]


class Simulator:
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
    ) -> None:
        """`lookback_unit` chooses a published reading of the look-back, `delay` is how long after
        an answer has begun its prompt can be read, `loss` the share of calls that find nothing
        though they should (drawn by `seed`), `slots` those of a server of one's own."""
        self.rules = rules
        self._account = Account(rules)
        self._cache: Any = _cache(rules, lookback_unit, slots)
        self._delay = delay
        self._loss = loss
        self._seed = seed
        self._calls = 0

    def __len__(self) -> int:
        """How much is remembered."""
        return len(self._cache)

    def predict(self, prompt: Prompt, *, at: float, scope: Hashable = "") -> Outcome:
        """What a call at that time would read and write; nothing is changed by asking."""
        salted = self._account.salted(prompt, scope)
        outcome, _ = self._cache.predict(prompt, salted, at)
        return self._explained(outcome, prompt, scope)

    def call(
        self, prompt: Prompt, *, at: float, began: float | None = None, scope: Hashable = ""
    ) -> Outcome:
        """What a call at that time reads and writes, and leaves for the next.

        What it writes can be read once its answer has begun: `began`, or right after `at` where
        nobody knows. So calls that start together all write. `scope` keeps accounts, workspaces
        or servers apart.
        """
        self._calls += 1
        if self._loss and self._drawn() < self._loss:
            outcome = self._lost(prompt)
            salted = self._account.salted(prompt, scope)
            _, found = self._cache.predict(prompt, salted, at)
        else:
            salted = self._account.salted(prompt, scope)
            outcome, found = self._cache.predict(prompt, salted, at)
            outcome = self._explained(outcome, prompt, scope)
        readable = (at if began is None else began) + self._delay
        self._cache.commit(prompt, salted, found, at, readable)
        self._account.remember(prompt, scope)
        return outcome

    def _explained(self, outcome: Outcome, prompt: Prompt, scope: Hashable) -> Outcome:
        """With a changed parameter named, where that is what made old tokens new."""
        if outcome.read or not any(span.reason == "new" for span in outcome.spans):
            return outcome
        changed = self._account.changed(prompt, scope)
        if not changed:
            return outcome
        return Outcome(
            tuple(
                Span(span.start, span.end, span.fate, "knob_changed", span.ttl, changed)
                if span.reason == "new"
                else span
                for span in outcome.spans
            )
        )

    def _lost(self, prompt: Prompt) -> Outcome:
        total = prompt.total if len(prompt) else 0
        return Outcome(spans_of(Span(0, total, "uncached", "lost")))

    def _drawn(self) -> float:
        """A number between 0 and 1 that depends on nothing but the seed and the call."""
        said = blake3(f"{self._seed} {self._calls}".encode()).digest(8)
        return int.from_bytes(said) / 2**64


def _cache(rules: CacheRules, lookback_unit: LookbackUnit | None, slots: int) -> Any:
    if rules.mechanism.value != "implicit" and rules.slots.value:
        return MarkedCache(rules, lookback_unit)
    if rules.automatic_breakpoint.value == "slots":
        return SlotCache(slots)
    return UnmarkedCache(rules)
