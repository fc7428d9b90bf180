"""A turn's call as one provider gets it, its history compacted where that is needed."""

from __future__ import annotations

import time

from anaphora.client.asking import Asked
from anaphora.client.composing import Composing
from anaphora.client.writing import Written
from anaphora.prompt.compaction import TokenCount
from anaphora.values import Notice

from .compaction import PromptSizes, shortened, token_limit
from .place import Place
from .prompt_source import TurnPrompt


class TurnWriter:
    """Shared by all branches of a conversation."""

    def __init__(self, composing: Composing, compact_at: int | float | None) -> None:
        self._composing = composing
        self.compact_at = compact_at

    def write(
        self,
        place: Place,
        turn: TurnPrompt,
        asked: Asked,
        *,
        stream: bool = False,
        whole: bool = False,
        too_long: bool = False,
    ) -> tuple[TurnPrompt, Written, tuple[Notice, ...]]:
        """The call, and the turn as it was written: another one when its history was compacted,
        because of `compact_at` or because the provider found the prompt `too_long`."""
        call, at = self._composing.call(place, turn, asked, stream=stream, whole=whole), time.time()
        written = place.write(call, at)
        notices = turn.notices
        if notices:
            planned = {notice.code for notice in written.plan.notices}
            notices = tuple(notice for notice in notices if notice.code not in planned)
        if self.compact_at is None or asked.prewarm or not turn.history:
            return turn, written, notices
        limit = token_limit(self.compact_at, place.model.profile)
        sizes = PromptSizes(written.rendered)
        if sizes.total <= limit and not too_long:
            return turn, written, notices
        if call.ir.continuation is not None:
            # All of the history is to be measured, the stored part too.
            call = self._composing.call(place, turn, asked, stream=stream, whole=True)
            sizes = PromptSizes(place.write(call, at).rendered)
        after, done = shortened(turn, sizes, limit, too_long=too_long)
        if after is not turn:
            call = self._composing.call(place, after, asked, stream=stream, whole=whole)
            written = place.write(call, at)
        return after, written, (*notices, *done.notices)

    def counter(self, place: Place, turn: TurnPrompt) -> TokenCount:
        """Tokens of the history's messages, as this provider would get them."""
        nothing = Asked(messages=())
        call = self._composing.call(place, turn, nothing, stream=False, whole=True)
        return PromptSizes(place.write(call, time.time()).rendered).counter()
