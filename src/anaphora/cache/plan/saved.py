"""The planner's memory of a conversation, saved for another process or restored from it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import msgspec
from msgspec import Meta

from anaphora.cache.simulator.view import Position, Time

from .changes import KINDS, MOST_BOUNDARIES, UNKNOWN, SentBoundary
from .memory import MOST_GAPS, MOST_OPEN, AppMemory, ConversationState, ConversationUses, Gaps

Uses = Annotated[int, Meta(ge=0, lt=1 << 50)]
Changes = Annotated[int, Meta(ge=-1, lt=1 << 50)]
Gap = Annotated[float, Meta(ge=0, le=1e12)]


class SavedGaps(msgspec.Struct, frozen=True, array_like=True):
    """`Gaps` for another process."""

    gaps: Annotated[tuple[Gap, ...], Meta(max_length=MOST_GAPS)]
    last: Time | None
    count: Uses


class SavedUses(msgspec.Struct, frozen=True, array_like=True):
    """How often conversations with one beginning, or all of an app, continued and ended."""

    continued: Uses
    ended: Uses
    gaps: SavedGaps


class SavedPlanner(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's memory of a conversation, for another process."""

    number: int
    gaps: SavedGaps
    written: tuple[Position, bytes | None, Time] | None
    cache_key: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,128}(-[0-9]{1,20})?$")] | None
    counted: bool
    beginning: bytes | None
    same: SavedUses | None
    """The uses of conversations with this beginning, in the process that saved it."""
    all: SavedUses
    changes: Annotated[tuple[Changes, ...], Meta(min_length=len(KINDS), max_length=len(KINDS))] = (
        UNKNOWN
    )
    sent: Annotated[tuple[SentBoundary, ...], Meta(max_length=MOST_BOUNDARIES)] = ()


def save_conversation(
    memory: AppMemory, state: ConversationState, beginning: bytes | None
) -> SavedPlanner:
    """A conversation for another process, with statistics of similar conversations."""
    same = None if beginning is None else memory.beginnings.get(beginning)
    written = state.written
    return SavedPlanner(
        number=state.number,
        gaps=_save_gaps(state.gaps),
        written=None if written is None else (written[0], _bytes(written[1]), written[2]),
        cache_key=state.cache_key,
        counted=state.counted,
        beginning=beginning,
        same=None if same is None else _save_uses(same),
        all=_save_uses(memory.all_uses),
        changes=state.changes,
        sent=state.sent,
    )


def restore_conversation(
    memory: AppMemory, saved: SavedPlanner, *, here: bool
) -> ConversationState:
    """The conversation. `here`: this process saved it and still knows it; otherwise the statistics
    of similar conversations are adopted if none are known yet."""
    state = ConversationState(saved.number) if here else memory.start()
    state.gaps = _restore_gaps(saved.gaps)
    state.written, state.cache_key = saved.written, saved.cache_key
    state.counted = saved.counted
    state.changes, state.sent = saved.changes, saved.sent
    if here:
        return state
    if not memory.beginnings and not memory.all_uses.continued and not memory.all_uses.ended:
        _restore_uses(memory.all_uses, saved.all)
    if saved.same is not None and saved.beginning not in memory.beginnings:
        _restore_uses(memory.beginning(saved.beginning), saved.same)
    if state.counted and saved.gaps.last is not None and len(memory.open_calls) < MOST_OPEN:
        memory.open_calls[state.number] = saved.gaps.last, saved.beginning
    return state


def _save_gaps(gaps: Gaps) -> SavedGaps:
    return SavedGaps(tuple(gaps.lengths), gaps.last, gaps.count)


def _restore_gaps(saved: SavedGaps) -> Gaps:
    gaps = Gaps(saved.gaps)
    gaps.last, gaps.count = saved.last, saved.count
    return gaps


def _save_uses(uses: ConversationUses) -> SavedUses:
    return SavedUses(uses.continued, uses.ended, _save_gaps(uses.gaps))


def _restore_uses(uses: ConversationUses, saved: SavedUses) -> None:
    uses.continued, uses.ended = saved.continued, saved.ended
    uses.gaps = _restore_gaps(saved.gaps)


def _bytes(key: Hashable) -> bytes | None:
    return key if isinstance(key, bytes) else None
