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
from anaphora.rendered import Mark

from .account import Account, Salted
from .following import Following, Habits
from .holding import Holding
from .marked import MarkedCache
from .outcome import Fate, Outcome, Reason, Span
from .prompt import Key, Prompt, RenderedPrompt, TokenRuns
from .routed import RoutedCache
from .slots import SlotCache
from .unmarked import UnmarkedCache

__all__ = [
    "Fate",
    "Following",
    "Key",
    "Mark",
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
        most: int | None = None,
    ) -> None:
        """`lookback_unit` chooses a published reading of the look-back, `delay` is how long after
        an answer has begun its prompt can be read, `loss` the share of calls that find nothing
        though they should (drawn by `seed`), `slots` those of a server of one's own. `most` is how
        many prefixes are remembered; those that were not used for longest are forgotten first."""
        self.rules = rules
        self._account = Account(rules)
        self._cache: Any = _cache(rules, lookback_unit, slots, most)
        self._holding = Holding(rules)
        self._habits = Habits()
        self._delay = delay
        self._loss = loss
        self._seed = seed
        self._calls = 0

    def __len__(self) -> int:
        """How much is remembered."""
        return len(self._cache) + len(self._account) + len(self._holding)

    def predict(self, prompt: Prompt, *, at: float, scope: Hashable = "") -> Outcome:
        """What a call at that time would read and write; nothing is changed by asking."""
        if prompt.held:
            return self._holding.read(prompt, at)
        return self._look(prompt, self._account.salted(prompt, scope), at, scope)[0]

    def call(
        self,
        prompt: Prompt,
        *,
        at: float,
        began: float | None = None,
        ended: float | None = None,
        scope: Hashable = "",
    ) -> Outcome:
        """What a call at that time reads and writes, and leaves for the next.

        What it writes can be read once its answer has begun, or is over, as the rules say: `began`
        and `ended`, or right after `at` where nobody knows. So calls that start together all write.
        `scope` keeps accounts, workspaces or servers apart.
        """
        self._calls += 1
        if prompt.held:
            return self._holding.read(prompt, at)
        salted = self._account.salted(prompt, scope)
        outcome, found = self._look(prompt, salted, at, scope)
        if self._loss and outcome.read and self._drawn() < self._loss:
            outcome, found = self._cache.lose(prompt, found)
        moment: float | None = at
        if self.rules.readable_from.value != "request_start":
            from_end = self.rules.readable_from.value == "response_end"
            moment = (ended or began) if from_end else began
        readable = (at if moment is None else moment) + self._delay
        self._cache.commit(prompt, salted, found, at, readable)
        self._account.remember(prompt, scope)
        return outcome

    def following(self) -> Following | None:
        """A conversation on a server of one's own; None where the provider's rules say it all."""
        return Following(self._habits) if isinstance(self._cache, SlotCache) else None

    def billed(self, share: float) -> None:
        """What share of the last call's input was read, by its bill. A server of one's own shows by
        that how much it keeps; a provider's cache is played by its rules."""
        if isinstance(self._cache, SlotCache):
            self._cache.billed(share)

    # ── Under a handle ───────────────────────────────────────────────────────────────────────────

    def hold(self, handle: str, tokens: int, *, at: float, seconds: float) -> Outcome:
        """Lets the provider hold so many tokens under a handle: paid as input now, read by calls
        whose prompt says so (`held`, `handle`), stored by the hour until it ends."""
        return self._holding.create(handle, tokens, at, seconds)

    def extend(self, handle: str, *, at: float, seconds: float) -> None:
        self._holding.extend(handle, at, seconds)

    def release(self, handle: str, *, at: float) -> None:
        self._holding.delete(handle, at)

    def token_hours(self, at: float) -> float:
        """What was held so far, tokens times hours. Times `rules.storage_price`, per million, that
        is what storage has cost."""
        return self._holding.token_hours(at)

    # ── Why ──────────────────────────────────────────────────────────────────────────────────────

    def _look(
        self, prompt: Prompt, salted: Salted, at: float, scope: Hashable
    ) -> tuple[Outcome, Any]:
        outcome, found = self._cache.predict(prompt, salted, at)
        return self._explained(outcome, prompt, scope), found

    def _explained(self, outcome: Outcome, prompt: Prompt, scope: Hashable) -> Outcome:
        """With a changed parameter named, where that is what made old tokens new."""
        for span in outcome.spans:
            if span.reason == "new":
                break
        else:
            return outcome
        if outcome.read > prompt.tokens(prompt.leading):
            return outcome  # it reads messages, so no parameter has voided them
        changed = self._account.changed(prompt, scope)
        if not changed:
            return outcome
        return Outcome(
            tuple(
                Span(span.start, span.end, span.fate, "param_changed", span.ttl, changed)
                if span.reason == "new"
                else span
                for span in outcome.spans
            )
        )

    def _drawn(self) -> float:
        """A number between 0 and 1 that depends on nothing but the seed and the call."""
        said = blake3(f"{self._seed} {self._calls}".encode()).digest(8)
        return int.from_bytes(said) / 2**64


def _cache(
    rules: CacheRules, lookback_unit: LookbackUnit | None, slots: int, most: int | None
) -> Any:
    by_itself = rules.automatic_breakpoint.value
    if by_itself == "slots":
        return SlotCache(slots)
    takes_markers = rules.mechanism.value != "implicit" and rules.slots.value > 0
    if not takes_markers and by_itself != "none":
        return UnmarkedCache(rules, most)
    marked = MarkedCache(rules, lookback_unit, most)
    if rules.mechanism.value == "both" and by_itself in ("granules", "units"):
        return RoutedCache(marked, UnmarkedCache(rules, most))
    return marked
