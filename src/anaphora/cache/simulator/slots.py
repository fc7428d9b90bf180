"""Self-hosted servers (llama.cpp): each slot continues from the last prompt it computed.

A prompt that is pushed out of its slot is lost, or kept in memory beside the slots, depending on
how the server was started. The number of slots is learned from bills (`SlotCache.billed`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable

import msgspec

from anaphora.cache.prefix_difference import common_length
from anaphora.cache.sent_call import MadeCall

from .outcome import Outcome, Span, spans_of
from .view import KeyOf, PromptView, SavedCache, salt_of

#: A slot is reused if it shares more than this part of the prompt: the default of llama.cpp's
#: --slot-prompt-similarity.
SIMILARITY = 0.1
#: A slot's prompt is kept in memory if the next one shares less than this part of it.
_WORTH_KEEPING = 0.5
#: Evicted prompts that are remembered.
_EVICTED = 16


class Slot(msgspec.Struct, eq=False):
    keys: list[Hashable] = []
    prompt: PromptView | None = None
    tokens: int = 0
    used: int = -1
    """The number of the last call that it served."""


class SlotChoice(msgspec.Struct, frozen=True):
    slot: int
    shared: int
    """How many leading blocks the slot's prompt shares with the call's."""
    reused: int
    """How many tokens; prompts may differ in the middle of a block."""
    restored: Slot | None = None
    """The evicted prompt that is restored into the slot."""


class UnbilledCall(msgspec.Struct, frozen=True):
    """The last call, until its bill is known."""

    prompt: PromptView
    key_of: KeyOf
    choice: SlotChoice
    others: int
    """How many other prompts were computed since the one it continues."""
    continues: bool
    """It begins with most of an earlier prompt: a shared beginning alone proves nothing."""


class SlotCache:
    """The slot that shares most is used, else the least recently used one."""

    def __init__(self, slots: int = 4) -> None:
        self._slots = [Slot() for _ in range(slots)]
        self._evicted: list[Slot] = []
        self._keeps_evicted = False
        """Whether the server keeps evicted prompts in memory."""
        self._calls = 0
        self._unbilled: UnbilledCall | None = None

    def __len__(self) -> int:
        return sum(len(slot.keys) for slot in (*self._slots, *self._evicted))

    def predict(self, prompt: PromptView, key_of: KeyOf, _: float) -> tuple[Outcome, SlotChoice]:
        total = prompt.total if len(prompt) else 0
        choice = self._choose(prompt, key_of, total)
        reused, evicted = choice.reused, 0
        if 2 * reused < total and self._evicted:
            index, shared, evicted = _most_shared(self._evicted, prompt, key_of)
            if self._keeps_evicted and evicted > reused:
                choice = SlotChoice(choice.slot, shared, evicted, self._evicted[index])
                reused = evicted
        # The last token is always computed: the output follows it.
        read = min(reused, max(0, total - 1))
        spans = spans_of(
            Span(0, read, "read", "found"),
            Span(read, reused, "uncached", "last_token"),
            Span(reused, evicted, "uncached", "evicted"),
            Span(max(reused, evicted), total, "uncached", "new"),
        )
        return Outcome(spans), choice

    def _choose(self, prompt: PromptView, key_of: KeyOf, total: int) -> SlotChoice:
        slot, shared, reused = _most_shared(self._slots, prompt, key_of)
        if reused <= SIMILARITY * total:
            slot = min(range(len(self._slots)), key=lambda index: self._slots[index].used)
            oldest = self._slots[slot]
            shared = _shared_blocks(oldest.keys, prompt, key_of)
            reused = _shared_tokens(oldest, prompt, key_of, shared)
        return SlotChoice(slot, shared, reused)

    def lose(self, prompt: PromptView, choice: SlotChoice) -> tuple[Outcome, SlotChoice]:
        """The outcome and slot if another client has taken the slot since."""
        total = prompt.total if len(prompt) else 0
        outcome = Outcome(spans_of(Span(0, total, "uncached", "lost")))
        return outcome, SlotChoice(choice.slot, 0, 0)

    def commit(
        self, prompt: PromptView, key_of: KeyOf, choice: SlotChoice, _: MadeCall
    ) -> tuple[()]:
        """A slot holds its prompt at once: a server answers one call in it at a time."""
        slot, restored = self._slots[choice.slot], choice.restored
        source = restored or slot
        others = sum(other.used > source.used for other in (*self._slots, *self._evicted))
        continues = 2 * choice.reused > source.tokens
        self._unbilled = UnbilledCall(prompt, key_of, choice, others, continues)
        if restored is not None:
            self._evicted.remove(restored)
            self._evict(slot)
            slot.keys = restored.keys
        elif choice.reused < _WORTH_KEEPING * slot.tokens:
            self._evict(slot)
            slot.keys = slot.keys[: choice.shared]
        slot.used, slot.prompt = self._calls, prompt
        slot.tokens = prompt.total if len(prompt) else 0
        self._calls += 1
        del slot.keys[choice.shared :]
        slot.keys += [key_of(position) for position in range(choice.shared, len(prompt))]
        return ()

    def refresh(self, _: PromptView, _key_of: KeyOf, _choice: SlotChoice, _at: float) -> None:
        """A slot has no lifetime."""

    def save(self, _: PromptView, _key_of: KeyOf, saved: SavedCache) -> SavedCache:
        slots, kept = len(self._slots), self._keeps_evicted
        return msgspec.structs.replace(saved, slots=slots, keeps_evicted=kept)

    def restore(self, prompt: PromptView, key_of: KeyOf, saved: SavedCache) -> None:
        """The prompt takes a slot that no call of this process has used."""
        count = len(prompt)
        if not count or not saved.slots:
            return
        if not self._calls:
            del self._slots[saved.slots :]
            self._keeps_evicted = saved.keeps_evicted
        last = key_of(count - 1)
        if any(len(slot.keys) >= count and slot.keys[count - 1] == last for slot in self._slots):
            return
        free = next((slot for slot in self._slots if slot.used < 0), None)
        if free is not None:
            free.keys = [key_of(position) for position in range(count)]
            free.prompt, free.tokens, free.used = prompt, prompt.total, self._calls
            self._calls += 1

    def billed(self, share: float) -> None:
        """Learns from the share of the last call that was read:

        - less than was in a slot, with other prompts in between: there are no more slots than those
        - less than was kept in memory: the server keeps no evicted prompts
        - as much as an evicted prompt shares: it does

        A prompt that is gone with no call of ours in between was evicted by another client.
        """
        call, self._unbilled = self._unbilled, None
        if call is None:
            return
        prompt, expected = call.prompt, call.choice.reused
        tokens = share * prompt.total if len(prompt) else 0
        if call.continues and 2 * tokens < expected:
            if call.choice.restored is not None:
                self._keeps_evicted = False
            elif call.others:
                self._limit_slots(call.others)
                self._keeps_evicted = False
        elif not self._keeps_evicted and 2 * expected < prompt.total and self._evicted:
            _, _, evicted = _most_shared(self._evicted, prompt, call.key_of)
            self._keeps_evicted = 2 * tokens > expected + evicted > 2 * expected

    def _limit_slots(self, slots: int) -> None:
        """Keeps only the most recently used slots."""
        by_use = sorted(self._slots, key=lambda slot: slot.used)
        for slot in by_use[: max(0, len(by_use) - slots)]:
            self._evict(slot)
            self._slots.remove(slot)

    def _evict(self, slot: Slot) -> None:
        if slot.keys:
            self._evicted.append(Slot(slot.keys, slot.prompt, slot.tokens, slot.used))
            del self._evicted[:-_EVICTED]


def _most_shared(slots: list[Slot], prompt: PromptView, key_of: KeyOf) -> tuple[int, int, int]:
    """The slot that shares most with a prompt; how many blocks, and how many tokens."""
    shared = [_shared_blocks(slot.keys, prompt, key_of) for slot in slots]
    best = max(range(len(slots)), key=shared.__getitem__)
    reused = _shared_tokens(slots[best], prompt, key_of, shared[best])
    if len(prompt) and 2 * reused < prompt.total:
        # Another conversation: the difference may be in the middle of a block.
        pairs = zip(slots, shared, strict=True)
        tokens = [_shared_tokens(slot, prompt, key_of, blocks) for slot, blocks in pairs]
        best = max(range(len(slots)), key=tokens.__getitem__)
        reused = tokens[best]
    return best, shared[best], reused


def _shared_tokens(slot: Slot, prompt: PromptView, key_of: KeyOf, shared: int) -> int:
    """The tokens of the shared blocks, and of the common beginning of the next block."""
    before = prompt.tokens(shared - 1)
    if slot.prompt is None or shared >= min(len(slot.keys), len(prompt)):
        return before
    if salt_of(slot.keys[shared]) != salt_of(key_of(shared)):
        return before
    same = common_length(prompt.data(shared), slot.prompt.data(shared))
    return prompt.tokens_within(shared, same)


def _shared_blocks(keys: list[Hashable], prompt: PromptView, key_of: KeyOf) -> int:
    """How many leading blocks agree, by bisection: a key identifies a whole prefix."""
    high = min(len(keys), len(prompt))
    if high and keys[high - 1] == key_of(high - 1):
        return high
    return bisect_left(range(high), True, key=lambda position: keys[position] != key_of(position))
