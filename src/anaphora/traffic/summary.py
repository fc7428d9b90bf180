"""The summary of a program's calls: their sums, and what would have cost less.

summary = judge.summary()
summary.advice, summary.share_read, summary.spent_usd, summary.losses, summary.worst
for group in summary.groups: group.conversation, group.side_calls, group.sums
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from anaphora.cache.verdict import CauseKind, Remedy, RemedyKind
from anaphora.wording import counted, format_loss, format_share, format_usd

from .calls import CallKind
from .savings import WORTH_SAYING, SavingsResult
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


class AvoidableCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of remedy would have saved."""

    kind: RemedyKind
    text: str
    """That of the conversation in which it saves the most."""
    conversations: int
    tokens: int
    """How many more tokens would have been read."""
    usd: Decimal | None
    """None if a price is unknown."""
    fixable: bool
    """Whether `anaphora watch --fix` does it."""


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
    avoidable: tuple[AvoidableCost, ...]
    """What remedies would have saved, the most first: the sums over their conversations."""
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
    def avoidable_usd(self) -> Decimal | None:
        """None if a price is unknown."""
        known = [each.usd for each in self.avoidable if each.usd is not None]
        return sum(known, Decimal(0)) if len(known) == len(self.avoidable) else None

    @property
    def all_is_well(self) -> bool:
        """Whether something was read, nothing was lost and nothing would have saved."""
        wrong = (
            self.lost or self.breaks or self.avoidable or abs(self.savings.share) >= WORTH_SAYING
        )
        return bool(self.share_read) and not wrong

    @property
    def advice(self) -> tuple[str, ...]:
        """What would have saved at least one percent; one line if there is nothing to improve."""
        if self.all_is_well:
            assert self.share_read is not None
            text = f"Nothing to improve: {format_share(self.share_read)} read"
            saved = self.saved_usd
            gain = f", {format_usd(saved)} saved by the cache" if saved >= _LEAST_USD else ""
            return (text + gain,)
        markers = (str(self.savings),) if abs(self.savings.share) >= WORTH_SAYING else ()
        return (*self._avoidable_lines(), *markers)

    @property
    def saved_usd(self) -> Decimal:
        """What the cache saved, less the cost of writing to it."""
        return self.judged.saved_usd + self.side_calls.saved_usd

    def _avoidable_lines(self) -> Iterator[str]:
        if not self.avoidable:
            return
        usd, tokens = self.avoidable_usd, sum(each.tokens for each in self.avoidable)
        if usd is None:
            text = f"You could read {counted(tokens, 'more token', 'more tokens')} from the cache"
        else:
            text = f"You could save {format_usd(usd)}"
            spent = self.spent_usd
            if spent and spent >= usd:
                text += f" of {format_usd(spent)} ({format_share(float(usd / spent))})"
        only = len(self.avoidable) == 1
        yield f"{text}: {self.avoidable[0].text}{_fix(self.avoidable[0])}" if only else f"{text}:"
        for each in () if only else self.avoidable:
            amount = counted(each.tokens, "token") if each.usd is None else format_usd(each.usd)
            yield f"  {amount}: {each.text}{_fix(each)}"


def summary_of(
    totals: Totals, savings: SavingsResult, unpriced: tuple[str, ...], *, grouped: bool = True
) -> WatchSummary:
    """The sums so far; with the groups if requested, which takes longer the more conversations
    there are."""
    sums = (totals.judged, totals.side_calls, totals.realtime, totals.unread)
    every = judged, side, realtime, unread = [each.copied() for each in sums]
    priced = any(each.calls > each.unpriced + each.no_bill for each in every)
    spent = sum((each.cost_usd for each in every), Decimal(0)) if priced else None
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
        spent_usd=spent,
        breaks=totals.breaks,
        lost=totals.lost.tokens,
        lost_usd=totals.lost.cost_usd,
        losses={cause: msgspec.structs.replace(each) for cause, each in losses},
        avoidable=_avoidable(totals, spent),
        worst=tuple(totals.worst),
        unpriced=unpriced,
        savings=savings,
    )


def _avoidable(totals: Totals, spent: Decimal | None) -> tuple[AvoidableCost, ...]:
    """Without those that save less than one percent."""
    found: dict[RemedyKind, list[Remedy]] = {}
    for conversation in totals.conversations:
        for kind, remedy in conversation.remedies.items():
            found.setdefault(kind, []).append(remedy)
    sums = []
    for kind, remedies in found.items():
        known = [each.saving.expected for each in remedies if each.saving is not None]
        usd = sum(known, Decimal(0)) if len(known) == len(remedies) else None
        if usd is not None and usd < max(_LEAST_USD, (spent or 0) * Decimal(WORTH_SAYING)):
            continue
        best = max(remedies, key=_by_saving)
        one = AvoidableCost(
            kind=kind,
            text=best.text,
            conversations=len(remedies),
            tokens=sum(each.tokens for each in remedies),
            usd=usd,
            fixable=best.fixable,
        )
        sums.append(one)
    return tuple(sorted(sums, key=lambda each: (each.usd or 0, each.tokens), reverse=True))


def _by_saving(remedy: Remedy) -> tuple[Decimal, int]:
    return Decimal(0) if remedy.saving is None else remedy.saving.expected, remedy.tokens


def _fix(one: AvoidableCost) -> str:
    return ". `anaphora watch --fix` does it." if one.fixable else "."


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
