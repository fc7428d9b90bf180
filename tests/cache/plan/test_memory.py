"""The memory of an app is bounded, even when the clock does not advance."""

from __future__ import annotations

import pytest

from anaphora import catalog
from anaphora.cache.plan import AppMemory
from anaphora.cache.plan.memory import (
    _MOST_BEGINNINGS,
    _MOST_BLOCKS,
    _MOST_MARKERS,
    MOST_OPEN,
    ConversationState,
)
from anaphora.cache.simulator import Mark, TokenRuns

#: The parameters of so many beginnings are remembered besides.
_BEGINNINGS = 10_000


def call(
    memory: AppMemory, conversation: int, at: float = 0.0, state: ConversationState | None = None
) -> None:
    """A call of a conversation with a beginning of its own."""
    blocks = [((conversation, block), 2000) for block in range(3)]
    places = range(3) if memory.rules.slots.value else ()
    markers = tuple(Mark(position, "5m") for position in places)
    prompt = TokenRuns.given(blocks, markers=markers)
    assert memory.call(prompt, 0, state or memory.start(), at, None).outcome


@pytest.mark.parametrize(
    "provider, model, most",
    [
        ("anthropic", "claude-sonnet-4-6", _MOST_MARKERS),
        ("openai", "gpt-5.1", _MOST_BLOCKS),
        ("google", "gemini-2.5-flash", _MOST_BLOCKS),
    ],
)
@pytest.mark.long
def test_memory_of_prefixes_beginnings_and_conversations_is_bounded(
    provider: str, model: str, most: int
) -> None:
    memory = AppMemory(catalog.rules(provider, model))
    for conversation in range(12_000):
        call(memory, conversation)
    assert most <= len(memory.simulator) <= most + _BEGINNINGS
    assert (len(memory.beginnings), len(memory.open_calls)) == (_MOST_BEGINNINGS, MOST_OPEN)


def test_usual_length_is_learned_from_a_sample_of_many_conversations() -> None:
    """Three calls each, of more conversations at once than are remembered."""
    memory = AppMemory(catalog.rules("anthropic", "claude-sonnet-4-6"))
    states = [memory.start() for _ in range(2 * MOST_OPEN)]
    for turn in range(3):
        for number, state in enumerate(states):
            call(memory, number, at=turn * 100.0, state=state)
    call(memory, len(states), at=10_000.0)  # all others have ended by now
    assert memory.usual_calls() == pytest.approx(3.0, abs=0.1)


def test_conversations_with_one_beginning_have_their_own_usual_length() -> None:
    memory = AppMemory(catalog.rules("anthropic", "claude-sonnet-4-6"))
    prompt = TokenRuns.given([("same beginning", 2000)])
    for number in range(3):
        memory.beginning(memory.record(prompt, 0, at=float(number))).ended += 1
    assert memory.usual_calls(prompt.key(0)) < 1.2
    assert memory.usual_calls("another beginning") == 9.0


def test_a_conversation_that_comes_back_after_a_pause_has_not_ended() -> None:
    memory = AppMemory(catalog.rules("anthropic", "claude-sonnet-4-6"))
    state = memory.start()
    for turn in range(20):
        call(memory, 0, at=turn * 5000.0, state=state)
    assert memory.usual_calls() > 15
