"""Recurring beginnings of prompts: which ones to look up in an index of earlier calls, what the
index knows about each, and how the planner uses that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from anaphora.cache.simulator import RenderedPrompt
from anaphora.rendered import Rendered
from anaphora.values import TTL_SECONDS

from .marking import Candidates
from .memory import MOST_GAPS, ConversationUses, Gaps
from .planner import MarkerPlanner

#: How many earlier turns are compared to recognise the call that a prompt continues.
EARLIER_TURNS = 32
#: Blocks of the first message that may be worth a marker: documents before a question.
_MOST_BLOCKS = 4
#: A beginning is expected to recur in time if at least this share of its pauses was short enough.
_LIKELY = 0.5


class SeenBeginning(msgspec.Struct, frozen=True, kw_only=True):
    """An index's facts about a beginning: times and counts."""

    last: float
    """When a call with it was sent last."""
    started: int = 0
    """Calls with it that began a conversation."""
    continued: int = 0
    """Calls with it that continued one."""
    pauses: tuple[float, ...] = ()
    """Seconds between calls, the last ones."""
    written_until: float = 0.0
    """When the cache entry at its end expires; 0: none was written there."""

    def gaps(self) -> Gaps:
        gaps = Gaps(self.pauses)
        gaps.last, gaps.count = self.last, min(MOST_GAPS, self.started + self.continued)
        return gaps


class SeenUse(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was answered, for the index: one of the beginnings of its prompt."""

    key: bytes
    at: float
    tokens: int
    continued: bool
    written_until: float = 0.0


class PromptBeginnings(msgspec.Struct, frozen=True):
    """Beginnings of a prompt that other calls may have: chunk indexes, all long enough to be
    cached."""

    shared: int | None
    """The end of tools and system prompt."""
    blocks: tuple[int, ...]
    """In the first message of a conversation, the ends of blocks before the last; latest first."""
    turns: tuple[int, ...]
    """Where turns end, latest first; a later call continues the first of them."""

    def __iter__(self) -> Iterator[int]:
        own = () if self.shared is None else (self.shared,)
        return iter(dict.fromkeys((*self.turns, *self.blocks, *own)))


class RecallingPlanner(MarkerPlanner):
    """A planner that learns the beginnings of other processes' calls."""

    continues = False
    """Whether the prompt continues or repeats that of an earlier call."""
    _recalled: tuple[int, bytes] | None = None
    """A block inside the first message that ends a recurring beginning, and its key."""

    def beginnings(self, rendered: Rendered) -> PromptBeginnings | None:
        """The beginnings of a prompt to look up; None if nothing of it is marked and cached."""
        if not rendered.markers or not rendered.cacheable or not self._takes_marks:
            return None
        prompt, end = self._prompt_of(rendered), rendered.cacheable
        if prompt.total < self._minimum:
            return None
        all_ends = itertools.islice(prompt.turn_ends(), EARLIER_TURNS)
        turns = [each for each in all_ends if each < end]
        shared = super()._candidates_of(rendered).shared
        return PromptBeginnings(
            shared if shared is not None and self._is_long(prompt, shared) else None,
            tuple(self._blocks(rendered, prompt, turns[0])) if len(turns) == 1 else (),
            tuple(each for each in turns if self._is_long(prompt, each)),
        )

    def _blocks(self, rendered: Rendered, prompt: RenderedPrompt, end: int) -> Iterator[int]:
        run, index = rendered.locate(end)
        opening = end - index + run.log.opens[run.log.wire_message_of(index)]
        for position in range(end - 1, max(opening, end - 1 - _MOST_BLOCKS) - 1, -1):
            if prompt.can_mark(position) and self._is_long(prompt, position):
                yield position

    def _is_long(self, prompt: RenderedPrompt, position: int) -> bool:
        return prompt.tokens(position) >= self._minimum

    def keys(self, rendered: Rendered, positions: PromptBeginnings) -> dict[int, bytes]:
        prompt = self._prompt_of(rendered)
        return {position: prompt.key(position) for position in positions}

    def recall(
        self,
        rendered: Rendered,
        positions: PromptBeginnings,
        found: Mapping[int, SeenBeginning],
        at: float,
    ) -> bool:
        """Learn the index's facts about a prompt's beginnings, by position. True if one of them is
        expected to recur while it is cached."""
        prompt, expected = self._prompt_of(rendered), False
        for end in positions.turns:
            if (seen := found.get(end)) is not None:
                self.continues = True
                if self._comes_back(seen, at):
                    self._continue(prompt, end, seen)
                    expected = True
                break
        for position in (positions.shared, *reversed(positions.blocks)):
            seen = None if position is None else found.get(position)
            if position is None or seen is None or not self._comes_back(seen, at):
                continue
            key, expected = prompt.key(position), True
            if key not in self._memory.beginnings:
                same = self._memory.beginnings[key] = ConversationUses()
                same.continued, same.ended, same.gaps = seen.continued, seen.started, seen.gaps()
            if position != positions.shared:
                self._recalled = position, key
        return expected

    def _comes_back(self, seen: SeenBeginning, at: float) -> bool:
        gaps = seen.gaps()
        ttl = self._memory.costs.best_ttl(gaps, at)
        return ttl is not None and gaps.within(TTL_SECONDS[ttl], at) >= _LIKELY

    def _continue(self, prompt: RenderedPrompt, end: int, seen: SeenBeginning) -> None:
        state = self.state
        state.gaps = seen.gaps()
        if seen.written_until:
            state.written = end, prompt.key(end), seen.written_until

    def uses(self, rendered: Rendered, at: float) -> tuple[SeenUse, ...]:
        """A call that was recorded, for the index."""
        positions = self.beginnings(rendered)
        if positions is None:
            return ()
        prompt, written = self._prompt_of(rendered), self.state.written
        continued = self.continues or self.state.gaps.count > 1
        whole = positions.turns[:1]
        uses = []
        for position in dict.fromkeys((*whole, *positions.blocks, positions.shared)):
            if position is not None:
                here = position in whole and written is not None and written[0] == position
                uses.append(
                    SeenUse(
                        key=prompt.key(position),
                        at=at,
                        tokens=prompt.tokens(position),
                        continued=continued,
                        written_until=written[2] if here and written is not None else 0.0,
                    )
                )
        return tuple(uses)

    def _candidates_of(self, rendered: Rendered) -> Candidates:
        """A block that ends a recurring beginning replaces the end of tools and system prompt,
        unless the prompt itself states what is shared."""
        known = self._candidates
        if self._recalled is None and known is not None and known[0] is rendered:
            return known[1]
        candidates = super()._candidates_of(rendered)
        if self._recalled is None or candidates.prefix is not None or candidates.policies:
            return candidates
        position, key = self._recalled
        if position >= rendered.cacheable or self._prompt_of(rendered).key(position) != key:
            return candidates
        return msgspec.structs.replace(candidates, shared=position)
