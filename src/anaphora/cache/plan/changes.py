"""How often the boundaries of a conversation's prompts changed from call to call: an entry that is
written behind a change is never read."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.view import Position

from . import marking
from .marking import Candidates

#: Kinds of boundaries; the turn is that before the tail's.
KINDS = FIRST, SHARED, FROZEN, TURN, TAIL = range(5)
#: Those of four calls are compared, while each call changes them.
MOST_BOUNDARIES = 4 * len(KINDS)
#: Nothing was compared yet. The first change after calls alike does not count: mostly it stays.
UNKNOWN, ALIKE = (0,) * len(KINDS), (-1,) * len(KINDS)


SentBoundary: TypeAlias = tuple[
    Annotated[int, Meta(ge=0, lt=len(KINDS))], Position, Annotated[bytes, Meta(max_length=64)]
]
"""The kind, position and key of a boundary that an earlier call sent."""


def sent_boundaries(
    prompt: RenderedPrompt, found: Candidates, before: tuple[SentBoundary, ...]
) -> tuple[SentBoundary, ...]:
    """The boundaries of a prompt, and those of calls before it that it does not have: prompts that
    are sent in turn come again."""
    turn = None
    if found.tail is not None:
        turn = marking.previous_turn(prompt.rendered, prompt, found.tail)
    ends = (found.first, found.shared, found.frozen, turn, found.tail)
    own: list[SentBoundary] = []
    for kind, end in enumerate(ends):
        if end is not None:
            own.append((kind, end, prompt.key(end)))
    others = [each for each in before if not _has(prompt, each)]
    return (*own, *others)[:MOST_BOUNDARIES]


def _has(prompt: RenderedPrompt, boundary: SentBoundary) -> bool:
    _, end, key = boundary
    return end < prompt.count and prompt.key(end) == key


def count_changes(
    prompt: RenderedPrompt, before: tuple[SentBoundary, ...], counts: tuple[int, ...]
) -> tuple[int, ...]:
    """How often in a row each kind of boundary has changed, this prompt included. One behind a
    change has changed as well; nothing is known of one that was not sent."""
    known, same = set[int](), set[int]()
    for boundary in before:
        kind = boundary[0]
        known.add(kind)
        if kind not in same and _has(prompt, boundary):
            same.add(kind)
    changed, counted = False, list[int]()
    for kind, times in enumerate(counts):
        changed = kind not in same and (changed or kind in known)
        if kind in same:
            counted.append(-1)
        else:
            counted.append(times + 1 if changed else min(times, 0))
    return tuple(counted)
