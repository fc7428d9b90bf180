"""Facts from the bills of one account at one provider, over all models: which predictions of reads
are right, the errors of predicted bills, and how much clients leave out of a recording."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from statistics import median_low
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.cache.read_history import (
    CHAIN,
    CONVERSATIONS,
    KEPT,
    STATED,
    BillErrors,
    BillRange,
    ReadClass,
    ReadHistory,
    Shortfall,
    read_class,
)
from anaphora.cache.sent_call import ProgramEvent
from anaphora.cache.simulator import Chance, Outcome
from anaphora.catalog import CacheRules

from .format import TraceUsage

CallKind: TypeAlias = Literal["first", "turn", "loop", "added", "again", "thinking_changed"]
"""The first call of a conversation, one after a user's message, one after tool results, one after
both, one that sends the same messages once more, or one with another thinking setting."""

#: The prediction of the simulator, by the rules.
SIMULATED = "simulated"
#: The entry of the previous call, in the steps that bills have shown.
LEFT = "left"
#: The read of the first call of the latest conversation.
BEGINNING = "beginning"


class CallSituation(NamedTuple):
    """A call before its bill is known."""

    kind: CallKind | ProgramEvent
    model: str
    agent: Hashable
    """The beginning of its prompt, if that is recorded."""
    idle: bool
    """The entry of the previous call has expired, as far as known."""
    lapsed: bool
    """It has expired by the catalog, which may be a stand-in."""
    marked: bool
    """The entry of the previous call is at markers."""
    hidden: bool | None
    """The previous reply has hidden reasoning; None: not known."""


class ConversationReads:
    """Entries and reads of the earlier calls of one conversation, by their bills."""

    def __init__(self) -> None:
        self._usage: TraceUsage | None = None
        """The last bill."""
        self._left = self._left_before = self._kept = 0
        """Entries of the last call and of the one before it; the last also by the catalog."""
        self._turn: tuple[int, int] | None = None
        """Entry and read of the last call outside of a tool loop."""
        self._classes: dict[CallKind | ProgramEvent, ReadClass] = {}
        """The class of the last read, by the kind of call."""

    def candidates(
        self,
        call: CallSituation,
        rules: CacheRules,
        simulated: int,
        beginning: int,
        reply_end: int | None,
    ) -> dict[str, int]:
        """The tokens that each way predicts. `reply_end` is how far from the end of a reply reads
        end, if bills have shown that."""
        found = {SIMULATED: simulated, BEGINNING: beginning, "nothing": 0}
        usage = self._usage
        if usage is None:
            return found
        if call.marked and call.kind == "loop":
            # Nothing is cached after the last marker.
            found[SIMULATED] = min(simulated, self._left)
        found[LEFT], found[KEPT] = self._left, self._kept
        found[CHAIN] = 0 if call.lapsed else self._kept
        found["as before"] = usage.cache_read
        found["older"] = self._left_before
        output, reasoning = usage.output or 0, usage.reasoning or 0
        for name, reply in (("reply", output), ("visible reply", output - reasoning)):
            if call.marked and reply_end is None:
                found[name] = self._left + reply
            else:
                found[name] = rules.whole_granules(usage.total + reply + (reply_end or 0))
        if self._turn is not None:
            found["turn"], found["as last turn"] = self._turn
        return found

    def situations(self, call: CallSituation) -> tuple[Hashable, ...]:
        """Classes of similar calls, the closest first."""
        kind, model, agent, idle, lapsed, _, hidden = call
        if self._usage is None:
            return (agent, model, kind), (model, kind), (kind,)
        last, pause = self._classes.get(kind), (idle, lapsed)
        return (
            (agent, model, kind, pause, last, hidden),
            (model, kind, pause, last),
            (model, kind, pause),
            (kind, pause, last),
            (kind, pause),
        )

    def add(self, call: CallSituation, usage: TraceUsage, left: int, kept: int) -> None:
        """Adds the bill of the next call. `left` are the tokens that it left in the cache by the
        bill, `kept` by the catalog."""
        if self._usage is not None:
            self._classes[call.kind] = read_class(usage.cache_read, self._kept)
        self._usage, self._left_before = usage, self._left
        self._left, self._kept = left, kept
        if call.kind != "loop":
            self._turn = left, usage.cache_read


#: Chances that concern only this call.
_OF_ONE_CALL = ("late_writes", "thinking_dropped")
#: The latest conversations whose unrecorded beginnings are compared.
_LATEST = 5


class PredictedRead(msgspec.Struct, frozen=True, kw_only=True):
    """The expected read of a call, and the candidates that it was chosen from."""

    call: CallSituation
    outcome: Outcome
    chances: tuple[Chance, ...]
    bill_range: BillRange | None
    cost: float
    """The cost of its input, in input tokens."""
    candidates: Mapping[str, int]
    situations: Sequence[Hashable]


class EntryBills:
    def __init__(self) -> None:
        self._history = ReadHistory()
        self._errors, self._conversations = BillErrors(), BillErrors(CONVERSATIONS)
        self._beginnings: dict[tuple[bool, str | None], int] = {}
        """Reads of the first call of the latest conversation, by whether it was idle and by model;
        None: any model."""
        self._of_one_call: Counter[tuple[str, str, bool]] = Counter()
        """By model and reason: how often such a chance came about, and how often not."""
        self._last: float | None = None
        self._unrecorded: deque[float] = deque(maxlen=_LATEST)

    @property
    def unrecorded(self) -> float | None:
        """The bytes of a beginning that is not recorded; None before the first bill."""
        return median_low(self._unrecorded) if self._unrecorded else None

    def called(self, at: float) -> float:
        """Notes a call, and returns the seconds since the one before."""
        last, self._last = self._last, at
        return math.inf if last is None else at - last

    def learn_unrecorded(self, size: float) -> None:
        self._unrecorded.append(size)

    def predict(
        self,
        reads: ConversationReads,
        call: CallSituation,
        rules: CacheRules,
        simulated: tuple[Outcome, tuple[Chance, ...]],
        *,
        recorded: bool,
        reply_end: int | None,
    ) -> PredictedRead:
        """`simulated` is the outcome by the rules, and its chances; `recorded`: the beginning of
        the prompt is recorded."""
        outcome, chances = simulated
        of_any = self._beginnings.get((call.idle, None), 0)
        beginning = self._beginnings.get((call.idle, call.model), of_any)
        candidates = reads.candidates(call, rules, outcome.read, beginning, reply_end)
        situations = reads.situations(call)
        default = _default(call, rules, candidates, recorded=recorded)
        read = candidates[self._history.choose(situations, candidates, default)]
        if read != outcome.read:
            outcome = outcome.reading(read)
        chances = self._chances(call, situations, outcome, chances, rules)
        cost = rules.input_cost(outcome.usage())
        return PredictedRead(
            call=call,
            outcome=outcome,
            chances=chances,
            bill_range=self._errors.range_of(_of_bill(call), cost),
            cost=cost,
            candidates=candidates,
            situations=situations,
        )

    def conversation_range(self, model: str) -> BillRange | None:
        """The range of the bill of a conversation with the model, over the predicted one."""
        return self._conversations.range_of(((model,), ()), 1.0)

    def learn_conversation(self, model: str, predicted: float, bills: list[float]) -> None:
        """The bills of a conversation that has ended; one call says nothing about several."""
        if len(bills) > 1:
            self._conversations.learn(((model,), ()), predicted, sum(bills))

    def learn(self, predicted: PredictedRead, usage: TraceUsage, rules: CacheRules) -> None:
        """The bill of a call that was predicted."""
        call, read = predicted.call, usage.cache_read
        self._errors.learn(_of_bill(call), predicted.cost, rules.input_cost(usage.usage()))
        self._history.learn(
            predicted.situations, predicted.candidates, predicted.outcome.read, read
        )
        for chance in predicted.chances:
            if chance.reason in _OF_ONE_CALL:
                other, expected = chance.outcome.read, predicted.outcome.read
                happened = abs(read - other) < abs(read - expected)
                self._of_one_call[call.model, chance.reason, happened] += 1
        if call.kind == "first":
            for model in (call.model, None):
                self._beginnings[call.idle, model] = read

    def _learned(self, chance: Chance, model: str) -> Chance:
        """With the share that bills of the model have shown, if it concerns only this call."""
        if chance.reason not in _OF_ONE_CALL:
            return chance
        happened, other = (self._of_one_call[model, chance.reason, so] for so in (True, False))
        share = (chance.share * STATED + happened) / (happened + other + STATED)
        return msgspec.structs.replace(chance, share=share)

    def _chances(
        self,
        call: CallSituation,
        situations: Sequence[Hashable],
        outcome: Outcome,
        stated: tuple[Chance, ...],
        rules: CacheRules,
    ) -> tuple[Chance, ...]:
        """The other outcomes and how often they come about: by the rules, and by the bills."""
        stated = tuple(self._learned(chance, call.model) for chance in stated)
        of_this_call = any(chance.reason in _OF_ONE_CALL for chance in stated)
        if not outcome.read or of_this_call or not self._history.knows(situations):
            return stated
        # Neighbouring situations have most of their bills in common.
        short = self._history.shortfall(situations[::2], _stated(stated, outcome.read))
        part = rules.whole_granules(int(outcome.read * short.part))
        chances = (
            Chance(short.missed, "missed", outcome.reading(0)),
            Chance(short.cut_short, "cut_short", outcome.reading(part)),
        )
        return tuple(chance for chance in chances if chance.share)


def _default(
    call: CallSituation, rules: CacheRules, candidates: Mapping[str, int], *, recorded: bool
) -> str:
    """The prediction before any bill: by the rules, if they have a source. The entry of the
    previous call has a known length. Whether its reply is also read must be shown by bills, if
    hidden reasoning is not recorded. An unrecorded beginning may be kept alive by others."""
    if call.kind == "first" or call.idle:
        return SIMULATED if recorded or candidates[SIMULATED] else BEGINNING
    unknown = not call.marked and call.hidden is None
    beyond = unknown and candidates[SIMULATED] > candidates[LEFT]
    return LEFT if beyond or not rules.automatic_breakpoint.verified else SIMULATED


def _of_bill(call: CallSituation) -> tuple[Hashable, ...]:
    """Classes of calls with similar errors of predicted bills, the closest first."""
    return (call.model, call.kind), (call.model,), (call.kind,), ()


def _stated(chances: tuple[Chance, ...], expected: int) -> Shortfall:
    """The chances of the rules, as shares."""
    missed = sum(chance.share for chance in chances if not chance.outcome.read)
    partial = [chance for chance in chances if chance.outcome.read]
    cut = sum(chance.share for chance in partial)
    read = sum(chance.share * min(chance.outcome.read, expected) for chance in partial)
    return Shortfall(missed, cut, read / cut / expected if cut else 0.0)
