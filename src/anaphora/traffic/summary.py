"""The summary of a program's calls: their sums, and what would have cost less.

summary = judge.summary()
summary.share_read, summary.spent_usd, summary.losses, summary.worst
for group in summary.groups: group.conversation, group.side_calls, group.sums
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict import CauseKind
from anaphora.wording import counted, format_loss, format_share, format_usd

from .calls import CallKind
from .savings import SavingsResult
from .sums import CallSums, JudgedCall, Losses, Totals

#: Smaller amounts are shown as $0.
_LEAST_USD = Decimal("0.00005")


class CallGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a conversation, or the side calls of one model."""

    conversation: int
    """Its number; 0 for side calls."""
    model: str
    """Model of its first call."""
    side_calls: bool = False
    sums: CallSums


class WatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    calls: int
    """All relayed calls, of any kind."""
    kinds: dict[CallKind, int]
    conversations: int
    judged: CallSums
    """The calls of these conversations."""
    share_read: float | None
    side_calls: CallSums
    """Counted separately: a title or a summary has nothing to read."""
    realtime: CallSums
    """Responses over OpenAI's Realtime API, by their own bills."""
    unread: CallSums
    """Calls whose bodies are not read, by the bill in their headers."""
    groups: tuple[CallGroup, ...] = ()
    """All judged calls by conversation, followed by the side calls."""
    spent_usd: Decimal | None
    """The cost of all; None if no call has a known price."""
    breaks: int
    """Calls whose prefix broke."""
    lost: int
    """Tokens that could have been read and were not."""
    lost_usd: Decimal | None
    """Their cost; None if a price is unknown."""
    losses: dict[CauseKind, Losses]
    """The same by cause, the largest first."""
    by_order: Losses
    """The part that another order of the prompt would have saved: changing text after stable text,
    tools and blocks in one order."""
    worst: tuple[JudgedCall, ...]
    """The three most expensive breaks."""
    unpriced: tuple[str, ...]
    """Models without a known price."""
    savings: SavingsResult
    """What the same calls would have cost with Anaphora's markers."""

    @property
    def headline(self) -> str:
        """The sums in one line. Pages and reports list only model calls, so others are counted
        separately."""
        others = self.kinds.get("counts_tokens", 0) + self.kinds.get("other", 0)
        parts = [counted(self.calls - others, "call")]
        if others:
            parts.append(f"{counted(others, 'other request')} such as token counts (not listed)")
        if self.share_read is not None:
            parts.append(f"{format_share(self.share_read)} of the input read from the cache")
        if self.spent_usd is not None:
            parts.append(f"{format_usd(self.spent_usd)} spent")
        if self.breaks:
            lost = f"{counted(self.breaks, 'break')}"
            parts.append(f"{format_loss(self.lost_usd)}, {lost}" if self.lost else lost)
        return ", ".join(parts)

    @property
    def would_save(self) -> tuple[str, ...]:
        """What markers and another order of the prompt would have saved, if that is an amount."""
        markers = (str(self.savings),) if abs(self.savings.saved_usd) >= _LEAST_USD else ()
        order = (self._order_sentence(),) if self.by_order.cost_usd != 0 else ()
        return markers + order

    def _order_sentence(self) -> str:
        order = self.by_order
        saved = "an unknown amount" if order.cost_usd is None else format_usd(order.cost_usd)
        were = "was" if order.tokens == 1 else "were"
        return (
            f"Another order of the prompt would have saved {saved}:"
            f" {counted(order.tokens, 'cached token')} in {counted(order.calls, 'call')}"
            f" {were} after text that changed or moved."
        )


def summary_of(
    totals: Totals, savings: SavingsResult, unpriced: tuple[str, ...], *, grouped: bool = True
) -> WatchSummary:
    """The sums so far; with the groups if requested, which takes longer the more conversations
    there are."""
    sums = (totals.judged, totals.side_calls, totals.realtime, totals.unread)
    every = judged, side, realtime, unread = [each.copied() for each in sums]
    priced = any(each.calls > each.unpriced + each.no_bill for each in every)
    losses = sorted(totals.losses.items(), key=lambda each: each[1].tokens, reverse=True)
    return WatchSummary(
        calls=sum(totals.kinds.values()),
        kinds=dict(totals.kinds),
        conversations=len(totals.conversations) - side.calls,
        judged=judged,
        share_read=judged.share_read,
        side_calls=side,
        realtime=realtime,
        unread=unread,
        groups=_groups(totals) if grouped else (),
        spent_usd=sum((each.cost_usd for each in every), Decimal(0)) if priced else None,
        breaks=totals.breaks,
        lost=totals.lost.tokens,
        lost_usd=totals.lost.cost_usd,
        losses={cause: msgspec.structs.replace(each) for cause, each in losses},
        by_order=msgspec.structs.replace(totals.by_order),
        worst=tuple(totals.worst),
        unpriced=unpriced,
        savings=savings,
    )


def _groups(totals: Totals) -> tuple[CallGroup, ...]:
    conversations = []
    beside: dict[str, CallSums] = {}
    for one in totals.conversations:
        if one.is_side_call:
            beside.setdefault(one.first.model, CallSums()).add_sums(one.sums)
        elif one.sums.calls:
            group = CallGroup(
                conversation=one.number, model=one.first.model, sums=one.sums.copied()
            )
            conversations.append(group)
    others = (
        CallGroup(conversation=0, model=model, side_calls=True, sums=sums.copied())
        for model, sums in beside.items()
    )
    return *conversations, *others
