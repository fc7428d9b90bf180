"""One rich request of each wire, changed in one place at a time: readers that accept it see the
same functions, markers, roles, ids and inline bytes."""

from __future__ import annotations

import pytest
from support.readers import disagreements
from support.rich_bodies import RICH

#: How many bodies may be seen differently.
MOST = {
    "anthropic": 11,
    "openai_chat": 26,
    "openai_responses": 20,
    "gemini": 11,
    "ollama": 10,
}


@pytest.mark.parametrize("wire", RICH)
def test_readers_see_the_same(wire: str) -> None:
    bodies = list(disagreements(wire))
    assert len(bodies) > 750
    different = [body for body in bodies if body.reasons]
    assert len(different) <= MOST[wire], different[:5]
