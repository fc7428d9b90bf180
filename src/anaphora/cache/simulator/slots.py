"""An engine of one's own: each slot goes on from the prompt it computed last."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from .account import Salted
from .outcome import Outcome, Span, spans_of
from .prompt import Prompt


class Slot(msgspec.Struct):
    keys: list[Hashable] = []
    used: float = float("-inf")


class Chosen(msgspec.Struct, frozen=True):
    slot: int
    shared: int
    """How many leading blocks the slot's last prompt shares."""


class SlotCache:
    """llama.cpp: the slot that shares most is taken, otherwise the one unused for longest."""

    def __init__(self, slots: int = 4) -> None:
        self._slots = [Slot() for _ in range(slots)]

    def __len__(self) -> int:
        return sum(len(slot.keys) for slot in self._slots)

    def predict(self, prompt: Prompt, salted: Salted, at: float) -> tuple[Outcome, Chosen]:  # noqa: ARG002
        shared = [_shared(slot.keys, prompt, salted) for slot in self._slots]
        most = max(shared)
        if most:
            chosen = shared.index(most)
        else:
            chosen = min(range(len(self._slots)), key=lambda at: self._slots[at].used)
        total = prompt.total if len(prompt) else 0
        # The last token is computed in any case: its output is what comes next.
        read = min(prompt.tokens(most - 1), max(0, total - 1))
        reused = prompt.tokens(most - 1)
        spans = spans_of(
            Span(0, read, "read", "found"),
            Span(read, reused, "uncached", "last_token"),
            Span(reused, total, "uncached", "new"),
        )
        return Outcome(spans), Chosen(chosen, most)

    def lose(self, prompt: Prompt, chosen: Chosen) -> tuple[Outcome, Chosen]:
        """The same when the slot was taken by somebody else in between."""
        total = prompt.total if len(prompt) else 0
        return Outcome(spans_of(Span(0, total, "uncached", "lost"))), Chosen(chosen.slot, 0)

    def commit(
        self,
        prompt: Prompt,
        salted: Salted,
        chosen: Chosen,
        at: float,
        readable: float,  # noqa: ARG002
    ) -> None:
        slot = self._slots[chosen.slot]
        slot.used = at
        del slot.keys[chosen.shared :]
        slot.keys += [salted(position) for position in range(chosen.shared, len(prompt))]


def _shared(keys: list[Hashable], prompt: Prompt, salted: Salted) -> int:
    """How many leading blocks agree. A key stands for all before it, so halving finds it."""
    low, high = 0, min(len(keys), len(prompt))
    if high and keys[high - 1] == salted(high - 1):
        return high
    while low < high:
        middle = (low + high) // 2
        if keys[middle] == salted(middle):
            low = middle + 1
        else:
            high = middle
    return low
