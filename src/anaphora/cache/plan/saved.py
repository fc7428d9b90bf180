"""The planner's memory of a conversation, saved for another process or restored from it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from anaphora.cache.simulator.view import Position, Time

from .changes import KINDS, MOST_BOUNDARIES, UNKNOWN, SentBoundary
from .memory import MOST_GAPS, MOST_OPEN, AppMemory, ConversationState, ConversationUses, Gaps

Uses = Annotated[int, Meta(ge=0, lt=1 << 50)]
Changes = Annotated[int, Meta(ge=-1, lt=1 << 50)]
Gap = Annotated[float, Meta(ge=0, le=1e12)] | Annotated[int, Meta(ge=0, le=10**15)]
"""Seconds; whole numbers are milliseconds, which take less room."""


class SavedGaps(msgspec.Struct, frozen=True, array_like=True):
    """`Gaps` for another process."""

    gaps: Annotated[tuple[Gap, ...], Meta(max_length=MOST_GAPS)]
    last: Time | None
    count: Uses

    def rounded(self) -> SavedGaps:
        return SavedGaps(tuple(round(gap * 1000) for gap in self.gaps), self.last, self.count)


class SavedUses(msgspec.Struct, frozen=True, array_like=True):
    """How often conversations with one beginning, or all of an app, continued and ended."""

    continued: Uses
    ended: Uses
    gaps: SavedGaps

    @property
    def seen(self) -> int:
        return self.continued + self.ended


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

    def rounded(self) -> SavedPlanner:
        """A copy with pauses in milliseconds."""
        same = self.same
        if same is not None:
            same = replace(same, gaps=same.gaps.rounded())
        return replace(self, gaps=self.gaps.rounded(), same=same)


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


def adopt_conversation(memory: AppMemory, saved: SavedPlanner) -> ConversationState:
    """A conversation that another process may continue as well, under its number there. Of the
    statistics of similar conversations, those of more calls are kept."""
    state = ConversationState(saved.number)
    state.gaps = _restore_gaps(saved.gaps)
    state.written, state.cache_key = saved.written, saved.cache_key
    state.counted = saved.counted
    state.changes, state.sent = saved.changes, saved.sent
    if saved.all.seen > memory.all_uses.continued + memory.all_uses.ended:
        _restore_uses(memory.all_uses, saved.all)
    adopt_beginning(memory, saved)
    if state.counted and saved.gaps.last is not None:
        memory.open_calls[state.number] = saved.gaps.last, saved.beginning
        memory.open_calls.move_to_end(state.number)
    return state


def adopt_beginning(memory: AppMemory, saved: SavedPlanner) -> None:
    """Adopt another process's statistics of conversations with one beginning."""
    if saved.same is None or saved.beginning is None:
        return
    same = memory.beginnings.get(saved.beginning)
    if same is None or saved.same.gaps.count > same.gaps.count:
        _restore_uses(memory.beginning(saved.beginning), saved.same)


def _save_gaps(gaps: Gaps) -> SavedGaps:
    return SavedGaps(tuple(gaps.lengths), gaps.last, gaps.count)


def _restore_gaps(saved: SavedGaps) -> Gaps:
    gaps = Gaps(gap / 1000 if isinstance(gap, int) else gap for gap in saved.gaps)
    gaps.last, gaps.count = saved.last, saved.count
    return gaps


def _save_uses(uses: ConversationUses) -> SavedUses:
    return SavedUses(uses.continued, uses.ended, _save_gaps(uses.gaps))


def _restore_uses(uses: ConversationUses, saved: SavedUses) -> None:
    uses.continued, uses.ended = saved.continued, saved.ended
    uses.gaps = _restore_gaps(saved.gaps)


def _bytes(key: Hashable) -> bytes | None:
    return key if isinstance(key, bytes) else None
