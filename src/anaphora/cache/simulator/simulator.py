"""A simulated call: what it reads and writes by the rules of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from blake3 import blake3

from anaphora.cache.lifetime import moments, used_at
from anaphora.catalog import CacheRules, Moment

from .outcome import Outcome, Span
from .state import SimulatedCaches, Written
from .view import KeyOf, MadeCall, PromptView


class SimulatedCalls(SimulatedCaches):
    """Calls of one model at one provider. The base of `Simulator`."""

    _delay: float
    _loss: float
    _seed: int
    _calls = 0

    def call(
        self,
        prompt: PromptView,
        *,
        at: float,
        began: float | None = None,
        ended: float | None = None,
        reasoning: int | None = None,
        scope: Hashable = "",
    ) -> Outcome:
        """What a call at that time reads and writes; the next call finds what it wrote.

        Writes become readable when the response has begun or ended, as the rules say: `began` and
        `ended`, or right after `at` where neither is known. So calls that start together all write.
        `reasoning` are the tokens of hidden reasoning in the reply, which some providers do not
        cache. `scope` separates accounts, workspaces or servers.
        """
        made = made_call(
            self.rules, at, began=began, ended=ended, reasoning=reasoning, delay=self._delay
        )
        return self._make(prompt, made, scope)[0]

    def _make(
        self, prompt: PromptView, made: MadeCall, scope: Hashable
    ) -> tuple[Outcome, Sequence[Written], Callable[[float], None]]:
        """The outcome, what was written, and what restarts the lifetime of that."""
        self._calls += 1
        if prompt.held:
            return self.read_handle(prompt, made.at), (), _restart_nothing
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        outcome, lookup = self._look_up(cache, prompt, key_of, made.at, scope)
        if self._loss and outcome.read and self._draw() < self._loss:
            outcome, lookup = cache.lose(prompt, lookup)
        written = cache.commit(prompt, key_of, lookup, made)
        self._keys.remember(prompt, scope)
        return outcome, written, partial(cache.refresh, prompt, key_of, lookup)

    def _cache_of(self, prompt: PromptView) -> Any:
        return self._marked if prompt.markers or prompt.automatic else self._unmarked

    def _look_up(
        self, cache: Any, prompt: PromptView, key_of: KeyOf, at: float, scope: Hashable
    ) -> tuple[Outcome, Any]:
        """The outcome; where a changed parameter made old tokens new, it is named."""
        outcome, lookup = cache.predict(prompt, key_of, at)
        for span in outcome.spans:
            # Where messages are read, no parameter has invalidated them.
            if span.reason == "new" and outcome.read <= prompt.tokens(prompt.leading):
                changed = self._keys.changed(prompt, scope)
                return _explained(outcome, changed) if changed else outcome, lookup
        return outcome, lookup

    def _draw(self) -> float:
        """A number between 0 and 1, from the seed and the number of the call."""
        drawn = blake3(f"{self._seed} {self._calls}".encode()).digest(8)
        return int.from_bytes(drawn) / 2**64


def made_call(
    rules: CacheRules,
    at: float,
    *,
    began: float | None = None,
    ended: float | None = None,
    reasoning: int | None = None,
    delay: float = 0.0,
) -> MadeCall:
    """A call of that time, as the rules count it: see `Simulator.call`."""
    start = at if began is None else began
    readable_from: Moment = rules.readable_from.value
    if readable_from == "response_start" and began is None:
        readable_from = "response_end"  # it began before that
    lives_from = used_at(rules, at, began=began, ended=ended)
    readable = moments(at, began=began, ended=ended)[readable_from] + delay
    return MadeCall(at, readable, lives_from, start, reasoning)


def _restart_nothing(_: float) -> None:
    """A handle lives until its own end."""


def _explained(outcome: Outcome, changed: str) -> Outcome:
    """The outcome with new tokens attributed to changed parameters."""
    spans = (
        Span(span.start, span.end, span.fate, "param_changed", span.ttl, changed)
        if span.reason == "new"
        else span
        for span in outcome.spans
    )
    return Outcome(tuple(spans))
