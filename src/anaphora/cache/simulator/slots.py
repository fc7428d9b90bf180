"""An engine of one's own: each slot goes on from the prompt it computed last.

A prompt that is pushed out of its slot is lost, or waits in memory beside the slots, as the server
was started. Nobody says how many slots it has: bills do (`SlotCache.billed`).
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from anaphora.cache.fingerprint import _common_bytes

from .account import Salted, salt_of
from .outcome import Outcome, Span, spans_of
from .prompt import Prompt

#: A slot is taken for what it shares with a prompt when that is more than this part of the prompt;
#: llama.cpp's --slot-prompt-similarity, unless it is told otherwise.
_SIMILAR = 0.1
#: A slot's prompt is put aside when the next one keeps less than this part of it.
_WORTH_KEEPING = 0.5
#: Prompts that were pushed out and are remembered.
_PUSHED_OUT = 16


class Slot(msgspec.Struct, eq=False):
    keys: list[Hashable] = []
    prompt: Prompt | None = None
    """The prompt that it computed last,"""
    tokens: int = 0
    """and how long that is."""
    used: int = -1
    """The number of the last call that it served."""


class Chosen(msgspec.Struct, frozen=True):
    slot: int
    shared: int
    """How many leading blocks the slot's last prompt shares,"""
    reused: int
    """and how many tokens: blocks may part in their middle."""
    aside: Slot | None = None
    """The prompt is taken back from beside the slots."""


class Played(msgspec.Struct, frozen=True):
    """The last call, until its bill is known."""

    prompt: Prompt
    salted: Salted
    reused: int
    others: int
    """How many other prompts were computed since the one that it goes on from."""
    aside: bool
    goes_on: bool
    """It begins with most of that one: another talk that begins alike proves nothing."""


class SlotCache:
    """llama.cpp: the slot that shares most is taken, otherwise the one unused for longest."""

    def __init__(self, slots: int = 4) -> None:
        self._slots = [Slot() for _ in range(slots)]
        self._out: list[Slot] = []
        """Prompts that were pushed out, the latest last."""
        self._aside = False
        """Whether the server keeps those, too."""
        self._calls = 0
        self._played: Played | None = None

    def __len__(self) -> int:
        return sum(len(slot.keys) for slot in (*self._slots, *self._out))

    def predict(self, prompt: Prompt, salted: Salted, at: float) -> tuple[Outcome, Chosen]:  # noqa: ARG002
        total = prompt.total if len(prompt) else 0
        chosen = self._choose(prompt, salted, total)
        reused, was = chosen.reused, 0
        if 2 * reused < total and self._out:
            out, shared, was = _most(self._out, prompt, salted)
            if self._aside and was > reused:
                chosen, reused = Chosen(chosen.slot, shared, was, self._out[out]), was
        # The last token is computed in any case: its output is what comes next.
        read = min(reused, max(0, total - 1))
        spans = spans_of(
            Span(0, read, "read", "found"),
            Span(read, reused, "uncached", "last_token"),
            Span(reused, was, "uncached", "evicted"),
            Span(max(reused, was), total, "uncached", "new"),
        )
        return Outcome(spans), chosen

    def _choose(self, prompt: Prompt, salted: Salted, total: int) -> Chosen:
        slot, shared, reused = _most(self._slots, prompt, salted)
        if reused <= _SIMILAR * total:
            slot = min(range(len(self._slots)), key=lambda at: self._slots[at].used)
            oldest = self._slots[slot]
            shared = _shared(oldest.keys, prompt, salted)
            reused = _reused(oldest, prompt, salted, shared)
        return Chosen(slot, shared, reused)

    def lose(self, prompt: Prompt, chosen: Chosen) -> tuple[Outcome, Chosen]:
        """The same when the slot was taken by somebody else in between."""
        total = prompt.total if len(prompt) else 0
        return Outcome(spans_of(Span(0, total, "uncached", "lost"))), Chosen(chosen.slot, 0, 0)

    def commit(
        self,
        prompt: Prompt,
        salted: Salted,
        chosen: Chosen,
        at: float,  # noqa: ARG002
        readable: float,  # noqa: ARG002
    ) -> None:
        slot = self._slots[chosen.slot]
        source = chosen.aside or slot
        others = sum(other.used > source.used for other in (*self._slots, *self._out))
        self._played = Played(
            prompt,
            salted,
            chosen.reused,
            others,
            aside=chosen.aside is not None,
            goes_on=2 * chosen.reused > source.tokens,
        )
        if chosen.aside is not None:
            self._out.remove(chosen.aside)
            self._push_out(slot)
            slot.keys = chosen.aside.keys
        elif chosen.reused < _WORTH_KEEPING * slot.tokens:
            self._push_out(slot)
            slot.keys = slot.keys[: chosen.shared]
        slot.used, slot.prompt = self._calls, prompt
        slot.tokens = prompt.total if len(prompt) else 0
        self._calls += 1
        del slot.keys[chosen.shared :]
        slot.keys += [salted(position) for position in range(chosen.shared, len(prompt))]

    def billed(self, share: float) -> None:
        """What share of the last call was really read. It shows how much the server keeps:

        - less than was in a slot, and other prompts came between: it has no more slots than those;
        - less than was put aside: nothing is;
        - as much as was pushed out: that is put aside.

        A prompt that is gone though nothing of ours came between was pushed out by a stranger.
        """
        played, self._played = self._played, None
        if played is None:
            return
        prompt, expected = played.prompt, played.reused
        tokens = share * prompt.total if len(prompt) else 0
        if played.goes_on and 2 * tokens < expected:
            if played.aside:
                self._aside = False
            elif played.others:
                self._has(played.others)
                self._aside = False
        elif not self._aside and 2 * expected < prompt.total and self._out:
            _, _, was = _most(self._out, prompt, played.salted)
            self._aside = 2 * tokens > expected + was > 2 * expected

    def _has(self, slots: int) -> None:
        """Only so many: those that were used last."""
        by_use = sorted(self._slots, key=lambda slot: slot.used)
        for slot in by_use[: max(0, len(by_use) - slots)]:
            self._push_out(slot)
            self._slots.remove(slot)

    def _push_out(self, slot: Slot) -> None:
        if slot.keys:
            self._out.append(Slot(slot.keys, slot.prompt, slot.tokens, slot.used))
            del self._out[:-_PUSHED_OUT]


def _most(slots: list[Slot], prompt: Prompt, salted: Salted) -> tuple[int, int, int]:
    """The one that shares most with a prompt; how many blocks, and how many tokens."""
    shared = [_shared(slot.keys, prompt, salted) for slot in slots]
    most = max(range(len(slots)), key=shared.__getitem__)
    reused = _reused(slots[most], prompt, salted, shared[most])
    if len(prompt) and 2 * reused < prompt.total:
        # No talk that goes on, and others may begin alike in the middle of a block.
        each = [_reused(slot, prompt, salted, n) for slot, n in zip(slots, shared, strict=True)]
        most = max(range(len(slots)), key=each.__getitem__)
        reused = each[most]
    return most, shared[most], reused


def _reused(slot: Slot, prompt: Prompt, salted: Salted, shared: int) -> int:
    """The tokens of so many blocks, and what the next one has in common with the slot's."""
    before = prompt.tokens(shared - 1)
    if slot.prompt is None or shared >= min(len(slot.keys), len(prompt)):
        return before
    if salt_of(slot.keys[shared]) != salt_of(salted(shared)):
        return before
    mine, theirs = prompt.data(shared), slot.prompt.data(shared)
    if not mine:
        return before
    part = _common_bytes(mine, theirs) / len(mine)
    return before + int(part * (prompt.tokens(shared) - before))


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
