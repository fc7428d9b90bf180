"""Sums of what a program's calls read, cost and lost; shown by `summary.py`."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from anaphora.cache.verdict import (
    CauseKind,
    Change,
    Remedy,
    RemedyKind,
    Verdict,
    as_side_call,
)
from anaphora.cache.verdict.values import PROMPT_CHANGED, VOLATILE
from anaphora.values import Notice, Usage
from anaphora.wording import format_usd

from .calls import CallKind

Session: TypeAlias = tuple[str, str]
"""Session and user as named by a client; empty if it names none. Never shown."""

#: Breaks that are shown in full.
_WORST = 3


class JudgedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call and its verdict, without the prompt except the excerpts at a change."""

    number: int
    at: float
    """When it was sent, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    kind: CallKind = "judged"
    reason: str = ""
    """Why it was not judged, or its error."""
    method: str = "POST"
    path: str = ""
    provider: str = ""
    wire: str = ""
    model: str = ""
    status: int = 0
    """0 if no response began."""
    conversation: int = 0
    """Its conversation's number, in the order they began; 0 for calls that are not judged."""
    turn: int = 0
    """Its number within the conversation."""
    side_call: bool = False
    """The only call of its conversation, like no other call, in a session that has a longer
    conversation with as many tools: a title, a summary. A later call may change it."""
    compared_with: int | None = None
    """The number of the call that it is judged against."""
    gap: float | None = None
    """Seconds since that call was sent."""
    placed: bool = False
    """Markers were placed in it."""
    usage: Usage | None = None
    """The bill; None if the response has none."""
    predicted: Usage | None = None
    """The predicted usage, if there is no bill or it does not report reads."""
    cost_usd: Decimal | None = None
    output_usd: Decimal | None = None
    """The part of it that is output."""
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()
    """URLs in the response that bypass the proxy, and calls that are not read."""

    @property
    def input_usage(self) -> Usage | None:
        """Tokens read, written and neither, by the bill; as predicted if the bill does not report
        them."""
        return self.usage if self.predicted is None else self.predicted

    @property
    def lost(self) -> int:
        """Tokens that could have been read and were not."""
        return 0 if self.verdict is None else self.verdict.lost

    @property
    def lost_usd(self) -> Decimal | None:
        return None if self.verdict is None else self.verdict.cost_usd

    @property
    def broke(self) -> bool:
        """Whether the prefix broke: see `Verdict.broke`."""
        return self.verdict is not None and self.verdict.broke

    @property
    def change(self) -> Change | None:
        return None if self.verdict is None else self.verdict.change

    @property
    def sentence(self) -> str:
        """The verdict without the excerpts, or why there is none."""
        return self.reason if self.verdict is None else self.verdict.describe(excerpts=False)

    def line(self, *, excerpts: bool = True) -> str:
        """The call and its verdict in one line, with or without the excerpts of a change."""
        place = f", conversation {self.conversation}, turn {self.turn}" if self.conversation else ""
        name = self.model or f"{self.method} {self.path}"
        if self.verdict is None:
            kind = self.kind.replace("_", " ")
            status = f" ({self.status})" if self.status else ""
            return f"{name}{place}: {kind}{status}" + (f": {self.reason}" if self.reason else "")
        cost = "" if self.cost_usd is None else f" Cost: {format_usd(self.cost_usd)}."
        bill = " No bill." if self.usage is None else cost
        return f"{name}{place}: {self.verdict.describe(excerpts=excerpts)}{bill}"

    def __str__(self) -> str:
        return self.line()

    def fields(self) -> dict[str, Any]:
        """All fields for JSON, including derived values."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        lost_usd = None if self.lost_usd is None else str(self.lost_usd)
        fields |= {"lost": self.lost, "lost_usd": lost_usd, "broke": self.broke}
        return fields | {"sentence": self.sentence}


class CallSums(msgspec.Struct):
    """The sums of several calls."""

    calls: int = 0
    no_bill: int = 0
    """Calls without a bill: they are in no other sum."""
    input: int = 0
    unreported: int = 0
    """Input tokens of bills that do not report reads: excluded from shares."""
    read: int = 0
    written: int = 0
    output: int = 0
    cost_usd: Decimal = Decimal(0)
    """The cost of the calls with a known price."""
    unpriced: int = 0
    """Billed calls whose cost is unknown."""
    saved_usd: Decimal = Decimal(0)
    """What the cache saved, less the cost of writing to it."""

    @property
    def share_read(self) -> float | None:
        """The share of the input that was read from the cache, over bills that report it."""
        return self.read / self.reported if self.reported else None

    @property
    def reported(self) -> int:
        """Input tokens of bills that report reads."""
        return self.input - self.unreported

    def add(self, call: JudgedCall) -> None:
        self.calls += 1
        usage = call.usage
        if usage is None:
            self.no_bill += 1
            return
        self.input += usage.input or 0
        self.unreported += (usage.input or 0) if usage.read is None else 0
        self.read += usage.read or 0
        self.written += usage.written_total or 0
        self.output += usage.output or 0
        self.unpriced += call.cost_usd is None
        self.cost_usd += call.cost_usd or 0
        if call.verdict is not None:
            self.saved_usd += call.verdict.saved or 0

    def add_sums(self, other: CallSums, times: int = 1) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))

    def copied(self) -> CallSums:
        return msgspec.structs.replace(
            self, cost_usd=_trimmed(self.cost_usd), saved_usd=_trimmed(self.saved_usd)
        )


class WatchedConversation(msgspec.Struct, eq=False):
    """A conversation, as seen from its prompts."""

    number: int
    session: Session
    first: JudgedCall
    sums: CallSums
    tools: int = 0
    """The bytes of the tools in its first prompt."""
    shared: bool = False
    """Another conversation begins like it."""
    remedies: dict[RemedyKind, Remedy] = {}
    """What each would have saved at its calls so far."""

    @property
    def is_side_call(self) -> bool:
        return self.first.side_call


class Losses(msgspec.Struct):
    """The losses of one cause."""

    calls: int = 0
    tokens: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None if a price is unknown."""

    def add(self, tokens: int, cost_usd: Decimal | None) -> None:
        self.calls += 1
        self.tokens += tokens
        if self.cost_usd is not None:
            self.cost_usd = None if cost_usd is None else self.cost_usd + cost_usd


class Totals:
    """Sums over all calls; only the worst calls are kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the sums are read or changed."""
        self.conversations: list[WatchedConversation] = []
        """In the order they began, side calls included."""
        self.judged = CallSums()
        """The calls of conversations, and"""
        self.side_calls = CallSums()
        """those found to be side calls."""
        self.realtime = CallSums()
        self.unread = CallSums()
        """Calls whose bodies are not read, by the bill beside them."""
        self.kinds: dict[CallKind, int] = {}
        """The number of calls of each kind."""
        self.losses: dict[CauseKind, Losses] = {}
        self.lost = Losses()
        self.breaks = 0
        self.worst: list[JudgedCall] = []
        """The most expensive breaks, the worst first."""
        self._single: dict[Session, list[WatchedConversation]] = {}
        """Conversations with one call, which may turn out to be side calls,"""
        self._most_tools: dict[Session, int] = {}
        """and the largest tool size of a longer conversation, by session."""

    def open_conversation(
        self, session: Session, first: JudgedCall, like: int, tools: int = 0
    ) -> None:
        """Adds a new conversation; `like` is the number of one with the same beginning, or 0;
        `tools` is the size of its tools in bytes."""
        if like:
            with self.lock:
                conversation = self.conversations[like - 1]
                conversation.shared = True
                self._mark(conversation, side_call=False)
        number = len(self.conversations) + 1
        self.conversations.append(WatchedConversation(number, session, first, CallSums(), tools))

    def add(self, call: JudgedCall) -> None:
        self.kinds[call.kind] = self.kinds.get(call.kind, 0) + 1
        if call.kind == "realtime":
            self.realtime.add(call)
        if call.kind == "not_judged" and call.usage is not None:
            self.unread.add(call)
        if call.verdict is None:
            return
        conversation = self.conversations[call.conversation - 1]
        conversation.sums.add(call)
        (self.side_calls if conversation.is_side_call else self.judged).add(call)
        self._find_side_calls(conversation)
        if call.lost:
            self.lost.add(call.lost, call.lost_usd)
        for cause, tokens in call.verdict.losses.items():
            cost_usd = None if call.lost_usd is None else call.lost_usd * tokens / call.lost
            self.losses.setdefault(cause, Losses()).add(tokens, cost_usd)
        if (remedy := call.verdict.remedy) is not None and remedy.calls:
            placed = msgspec.structs.replace(remedy, text=_placed(remedy, call.verdict))
            conversation.remedies[remedy.kind] = placed
        if call.broke:
            self.breaks += 1
            self.worst.append(call)
            self.worst.sort(key=_by_loss, reverse=True)
            del self.worst[_WORST:]

    def _find_side_calls(self, conversation: WatchedConversation) -> None:
        """Marks the calls that the latest call of a conversation shows to be side calls. A call
        with more tools than any longer conversation of its session is not one: it is the program's
        main conversation, and the longer ones are its subagents'."""
        session, most = conversation.session, self._most_tools.get(conversation.session, -1)
        if conversation.sums.calls == 1:
            self._mark_single(conversation, most)
            return
        self._mark(conversation, side_call=False)
        if conversation.tools > most:
            self._most_tools[session] = conversation.tools
            for other in self._single.pop(session, ()):
                self._mark_single(other, conversation.tools)

    def _mark_single(self, conversation: WatchedConversation, most_tools: int) -> None:
        """Marks a conversation as a side call, or keeps it until a longer one has as many tools."""
        if conversation.sums.calls > 1 or not _is_alone(conversation):
            return
        if conversation.tools <= most_tools:
            self._mark(conversation, side_call=True)
        else:
            self._single.setdefault(conversation.session, []).append(conversation)

    def _mark(self, conversation: WatchedConversation, *, side_call: bool) -> None:
        """Sets whether it is a side call, and moves its calls to that sum."""
        if conversation.first.side_call == side_call:
            return
        first = conversation.first
        first.side_call = side_call
        if first.verdict is not None:
            first.verdict = as_side_call(first.verdict, side_call=side_call)
        self.side_calls.add_sums(conversation.sums, 1 if side_call else -1)
        self.judged.add_sums(conversation.sums, -1 if side_call else 1)


def _is_alone(conversation: WatchedConversation) -> bool:
    """Whether no other conversation begins like it, or has the same tools."""
    verdict = conversation.first.verdict
    if conversation.shared or verdict is None:
        return False
    return verdict.result == "first" and verdict.cause not in PROMPT_CHANGED


def _placed(remedy: Remedy, verdict: Verdict) -> str:
    """Its text, with the place of the text to move."""
    change = verdict.change
    if remedy.kind != "move_to_end" or change is None or change.kind not in VOLATILE:
        return remedy.text
    place = change.path.removesuffix(".text")
    return remedy.text.replace(" into the newest", f" in {place} into the newest", 1)


def _trimmed(amount: Decimal) -> Decimal:
    """Removes trailing zeros, which are left when sums are moved."""
    whole = amount.to_integral_value()
    return whole if amount == whole else amount.normalize()


def _by_loss(call: JudgedCall) -> tuple[Decimal, int]:
    return call.lost_usd or Decimal(0), call.lost
