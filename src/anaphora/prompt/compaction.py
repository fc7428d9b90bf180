"""Compaction: drop the oldest units of a history that exceeds its token budget.

A unit is what providers only accept whole: a tool call, its results and the reply that follows.
Dropping units at the front moves all later bytes, so what was cached is written again: a notice
names the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.values import Conversation, Message, Notice, Thinking, ToolCall, ToolResult

from .context import RenderedContext

TokenCount = Callable[[Message], int]


class Compaction(msgspec.Struct, frozen=True):
    """The context after compaction, the number of dropped turns, and notices on the cache."""

    context: RenderedContext
    dropped: int
    notices: tuple[Notice, ...]


def compact(
    context: RenderedContext,
    *,
    budget: int,
    tokens: TokenCount,
    summary: Message | None = None,
    user_first: bool = False,
) -> Compaction:
    """Keep the newest units that fit into `budget` tokens, after `summary` if there is one.

    With `user_first` the first kept turn is a user message, as some providers require: a tool loop
    is then kept or dropped together with the message that started it.

    Within budget nothing changes. The newest unit always stays, even if it alone exceeds the budget
    (with a notice). If bytes before the frozen boundary changed, every remaining turn is frozen
    until the next compaction.
    """
    if budget <= 0:
        raise InvalidRequest(f"must be a positive number of tokens, not {budget}", path="budget")
    turns = context.turns
    sums = _token_sums(turns, tokens)
    if sums[len(turns)] <= budget:
        return Compaction(context, 0, ())

    available = budget - (tokens(summary) if summary else 0)
    keep_from = _keep_from(turns, sums, available, user_first=user_first)
    if keep_from == 0:
        return Compaction(context, 0, (_over_budget(sums[len(turns)], budget),))

    kept = turns[keep_from:]
    compacted = Conversation((summary, *kept) if summary else kept)
    unchanged = compacted.common_prefix(turns)
    if unchanged == len(turns):
        # The summary equals the dropped turns: not a byte changes.
        return Compaction(context, 0, (_over_budget(sums[len(turns)], budget),))
    notices = [
        Notice(
            code="compaction_uncaches",
            message=f"{keep_from} turns dropped; the bytes after them move, so"
            f" {sums[len(turns)] - sums[unchanged]} tokens leave the cache",
            path=f"turns[{unchanged}]",
            tokens=sums[len(turns)] - sums[unchanged],
        )
    ]
    if sums[len(turns)] - sums[keep_from] > available:
        notices.append(_over_budget(sums[len(turns)] - sums[keep_from], available))
    frozen = context.frozen_len()
    kept_boundary = frozen is not None and frozen <= unchanged
    after = msgspec.structs.replace(
        context,
        turns=compacted,
        frozen_prefix_len=frozen if kept_boundary else len(compacted),
    )
    return Compaction(after, keep_from, tuple(notices))


def _keep_from(turns: Conversation, sums: list[int], available: int, *, user_first: bool) -> int:
    """The first turn of the newest units that fit."""
    starts = [unit.start for unit in atomic_units(turns)]
    if user_first:
        starts = [start for start in starts if turns[start].role == "user"] or [0]
    keep_from = starts.pop()
    for start in reversed(starts):
        if sums[len(turns)] - sums[start] > available:
            break
        keep_from = start
    return keep_from


def atomic_units(turns: Conversation) -> list[range]:
    """The turns in ranges that may only be kept or dropped whole.

    A tool call opens a unit; the first assistant message without a tool call closes it. A tool loop
    is therefore one unit. Reasoning alone does not close it: it was cut off, and the reply may
    still follow.
    """
    units: list[range] = []
    start, in_loop = 0, False
    for index, message in enumerate(turns):
        calls = any(isinstance(part, ToolCall) for part in message.parts)
        results = any(isinstance(part, ToolResult) for part in message.parts)
        has_content = any(not isinstance(part, Thinking) for part in message.parts)
        replies = in_loop and message.role == "assistant" and has_content and not calls
        if in_loop and not calls and not results and not replies and message.role == "user":
            # A user message before the reply: the loop ends here.
            units.append(range(start, index))
            start, in_loop = index, False
        in_loop = (in_loop or calls) and not replies
        if not in_loop:
            units.append(range(start, index + 1))
            start = index + 1
    if start < len(turns):
        units.append(range(start, len(turns)))
    return units


def _over_budget(tokens: int, budget: int) -> Notice:
    return Notice(
        code="over_budget",
        message=f"the newest unit alone has {tokens} tokens, more than the available {budget};"
        " it is kept whole",
        tokens=tokens,
    )


def _token_sums(turns: Conversation, tokens: TokenCount) -> list[int]:
    """Running totals, kept with the conversation: only new turns are counted."""
    counted_by, known = turns.memo.get("token_sums", (None, None))
    sums: list[int] = known if counted_by is tokens else [0]
    for message in turns[len(sums) - 1 :]:
        sums.append(sums[-1] + tokens(message))
    turns.memo["token_sums"] = (tokens, sums)
    return sums
