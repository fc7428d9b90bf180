"""Compaction of a session's history: measuring the prompt, and dropping old messages.

limit = token_limit(0.8, profile)               compact_at= in tokens
sizes = PromptSizes(rendered)                   the prompt and each message of the history
done = shortened(turn, sizes, limit)            half of the limit is left to grow into
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from anaphora.catalog import Profile
from anaphora.client.content import wrong_type
from anaphora.errors import InvalidRequest
from anaphora.prompt import Compaction, compact
from anaphora.prompt.context import TokenCount
from anaphora.rendered import Rendered
from anaphora.tokens import Counts, tokens_in
from anaphora.values import Message, Notice, SegmentRole, to_json
from anaphora.wording import counted

from .turn_prompt import TurnPrompt

_HISTORY = SegmentRole.CONVERSATION


def compact_at_of(value: Any, profiles: Iterable[Profile]) -> int | float | None:
    """The checked value of `compact_at=`. Every model must have a limit in tokens."""
    if value is None:
        return None
    share = isinstance(value, float) and 0 < value <= 1
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 1
    if not share and not tokens:
        raise InvalidRequest(
            "must be a number of input tokens (an int above 1) or a share of the model's context"
            f" window (a float above 0, up to 1.0), not {value!r}",
            path="compact_at",
        )
    compact_at: int | float = value
    for profile in profiles:
        token_limit(compact_at, profile)
    return compact_at


def token_limit(compact_at: int | float, profile: Profile) -> int:
    """`compact_at` in tokens of one model."""
    if isinstance(compact_at, int):
        return compact_at
    if profile.context_tokens is None:
        raise InvalidRequest(
            f"{compact_at:g} is a share of the context window, and the catalog states none for"
            f" {profile.id}; give a number of tokens",
            path="compact_at",
        )
    return math.floor(compact_at * profile.context_tokens.value)


class PromptSizes:
    """Tokens of a rendered prompt and of its messages, corrected by the bills so far."""

    def __init__(self, rendered: Rendered) -> None:
        self._rendered = rendered
        self._counts = Counts(rendered)
        self.total = self._counts.total

    def counter(self) -> TokenCount:
        """Tokens by message: as rendered, or by its length if it is not in the prompt."""
        run = next((run for run in self._rendered.runs if run.role is _HISTORY), None)
        messages = () if run is None else run.source
        sizes = {
            id(message): tokens for message, tokens in zip(messages, self.messages(), strict=True)
        }

        def tokens(message: Message) -> int:
            known = sizes.get(id(message))
            if known is not None:
                return known
            return tokens_in(len(to_json(message.parts)), self._rendered.bytes_per_token)

        return tokens

    def messages(self) -> list[int]:
        first = 0
        for run in self._rendered.runs:
            if run.role is _HISTORY:
                ends = [first + end for end in run.log.message_ends[: len(run.source)]]
                upto = [self._counts.tokens(end) for end in (first, *ends)]
                return [after - before for before, after in pairwise(upto)]
            first += run.count
        return []


def budget_of(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidRequest(f"must be a positive number of tokens, not {value!r}", path=path)
    return value


def compacted(
    turn: TurnPrompt, budget: Any, tokens: TokenCount | None, summary: Any = None
) -> Compaction:
    """The history within `budget` tokens, in whole exchanges: what is left begins with a user
    message, as some providers require."""
    budget_of(budget, "budget")
    if isinstance(summary, str):
        summary = Message.user(summary)
    if summary is not None and not isinstance(summary, Message):
        raise wrong_type("a text or a Message", summary, "summary")
    context = turn.to_context()
    if tokens is None or not turn.history:
        return Compaction(context, 0, ())
    return compact(context, budget=budget, tokens=tokens, summary=summary, user_first=True)


def shortened(
    turn: TurnPrompt, sizes: PromptSizes, limit: int, *, too_long: bool = False
) -> tuple[TurnPrompt, Compaction]:
    """The turn with its prompt cut to half of the limit, or of its size if that is less; to a
    quarter of the limit if half was `too_long` for the provider."""
    history = sum(sizes.messages()[: len(turn.history)])
    room = min(limit, sizes.total) // 2
    if too_long and sizes.total > limit:
        room //= 2
    counter = sizes.counter()
    done = compacted(turn, max(1, room - (sizes.total - history)), counter)
    if not done.dropped:
        return turn, done
    after = turn.compacted(done)
    tokens = sum(counter(message) for message in turn.history[: done.dropped])
    refused = too_long and sizes.total <= limit
    why = "the provider refused it as too long" if refused else f"compact_at is {limit}"
    notice = Notice(
        "compacted",
        f"the prompt was about {sizes.total} tokens and {why}: the oldest"
        f" {counted(done.dropped, 'message')} ({counted(tokens, 'token')}) left out of this"
        f" call; the history is now frozen through message {after.ir.cache.frozen_through}",
        "compact_at",
        tokens,
    )
    notices = (notice, *done.notices)
    return after, Compaction(done.context, done.dropped, notices)
