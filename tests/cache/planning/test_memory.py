"""What an app remembers of its calls is bounded, even where time stands still."""

from __future__ import annotations

import pytest

from anaphora import catalog
from anaphora.cache.planning import AppMemory
from anaphora.cache.planning.memory import _BLOCKS, _MARKERS, _MOST, _TALKING
from anaphora.cache.simulator import Mark, TokenRuns

#: The parameters of so many beginnings are remembered besides.
_BEGINNINGS = 10_000


def call(memory: AppMemory, conversation: int, at: float = 0.0) -> None:
    """A first call, with a beginning of its own."""
    blocks = [((conversation, block), 2000) for block in range(3)]
    places = range(3) if memory.rules.slots.value else ()
    markers = tuple(Mark(position, "5m") for position in places)
    memory.call(TokenRuns(blocks, markers=markers), 0, conversation, at, None)


@pytest.mark.parametrize(
    "provider, model, most",
    [
        ("anthropic", "claude-sonnet-4-6", _MARKERS),
        ("openai", "gpt-5.1", _BLOCKS),
        ("google", "gemini-2.5-flash", _BLOCKS),
    ],
)
def test_prefixes_beginnings_and_conversations(provider: str, model: str, most: int) -> None:
    memory = AppMemory(catalog.rules(provider, model))
    for conversation in range(12_000):
        call(memory, conversation)
    assert most <= len(memory.simulator) <= most + _BEGINNINGS
    assert (len(memory._shared), len(memory._talking)) == (_MOST, _TALKING)


def test_how_long_conversations_go_on_is_known_from_some_of_them_where_there_are_many() -> None:
    """Three calls each, of more conversations at once than are remembered."""
    memory = AppMemory(catalog.rules("anthropic", "claude-sonnet-4-6"))
    many = 2 * _TALKING
    for turn in range(3):
        for conversation in range(many):
            call(memory, conversation, at=turn * 100.0)
    call(memory, many, at=10_000.0)  # they are all over by now
    assert memory.usual() == pytest.approx(3.0, abs=0.1)
