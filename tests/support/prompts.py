"""Small prompts for the simulator: blocks by name and size."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from anaphora.cache.simulator import Mark, TokenRuns
from anaphora.values import Ttl

Blocks = Sequence[tuple[Hashable, int]]


def marked(blocks: Blocks, ttl: Ttl = "5m") -> TokenRuns:
    """Blocks with one marker, behind the last."""
    return TokenRuns.given(blocks, markers=(Mark(len(blocks) - 1, ttl),))


def chat(blocks: Blocks, marks: Sequence[int] = ()) -> TokenRuns:
    """Blocks with five-minute markers at these positions."""
    return TokenRuns.given(blocks, markers=tuple(Mark(at, "5m") for at in marks))


def unmarked(blocks: Blocks, from_model: Sequence[int] = ()) -> TokenRuns:
    """Blocks without markers, some of which the model wrote."""
    return TokenRuns.given(blocks, from_model=[at in from_model for at in range(len(blocks))])
