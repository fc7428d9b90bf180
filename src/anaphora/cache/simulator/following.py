"""What a server of one's own finds again: its slot keeps the last prompt and the answer to it.

How far the next prompt agrees with those is up to the model's chat template, which nobody sees from
here. It may write an answer down as it was said, or not: a call of a tool is parsed and written
anew, thinking is dropped once the user speaks again, and the words that make the model answer need
not be the words that its answer is kept under. So the next prompt parts from the slot

    behind the answer     but for its last token, which was said and never computed
    behind the prompt     where the answer is written in another way
    behind the question   the prompt of the call that the user's last words were sent with, where
                          the thinking since then is dropped
    before the tail       what was said for one call only, and how long that is is an estimate

or a few tokens beside one of these. Which of them it is depends on the kind of turn, and after one
bill of a kind it is known: `Habits` remembers where the last one parted. Before that the careful
guess is made: an answer in words comes back as it was said, everything else does not.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from anaphora.rendered import Kind, Rendered
from anaphora.tokens import Bills, Counts, calibrated
from anaphora.values import Usage

from .outcome import Outcome

Anchor: TypeAlias = Literal["answer", "prompt", "question", "tail"]

#: Templates put fewer tokens than these around an answer. What is farther off is not a template's
#: doing: the server has lost the prompt, or somebody has changed it.
_AROUND = 64


class Turn(msgspec.Struct, frozen=True):
    """A kind of turn: what the next call says behind the last one's prompt."""

    answered: bool
    """The answer itself, or only something else."""
    calls: bool
    """The answer calls tools."""
    thought: bool
    """The model has thought since the user last spoke."""
    user: bool
    """The user speaks."""
    tail: bool
    """The last call's prompt ended with something that was for that call only."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The call before, as far as its slot is concerned."""

    rendered: Rendered
    input: int
    """Its length by the bill."""
    output: int
    question: int
    """The input of the call that the user's last words were sent with."""
    thought: bool
    """The model has thought since then."""
    tail: int
    """How many of its bytes were for that call only."""


class Seen(msgspec.Struct, frozen=True):
    """The last turn of a kind."""

    anchor: Anchor
    """Where it parted,"""
    beside: Mapping[Anchor, int]
    """so many tokens behind each of the anchors."""
    tail: int
    """How long its tail was, in bytes."""


class Habits:
    """Where the prompts of one model on one server part from its slots, by the kind of turn."""

    def __init__(self) -> None:
        self._seen: dict[Turn, Seen] = {}
        self._odd: dict[Turn, Seen] = {}
        """Turns that were not as usual: the next one tells whether that is the habit now."""
        self.bills: Bills = ()
        """The last bill."""

    def read(self, ended: Ended, later: Rendered) -> int:
        """How much of the slot the next call reads, when it goes on from there."""
        turn = turned(ended, later)
        seen = self._seen.get(turn) or Seen(_careful(turn), {}, 0)
        read = _where(seen, ended, turn)
        whole = ended.input + max(0, ended.output - 1)
        if len(later) == len(ended.rendered) and not turn.answered:
            whole = ended.input - 1  # the same prompt again, and its last token is always computed
        return max(0, min(read, whole))

    def learn(self, ended: Ended, later: Rendered, read: int) -> None:
        """From the bill of a call that should have gone on from its slot."""
        turn = turned(ended, later)
        tail = ended.tail
        beside = {at: read - tokens for at, tokens in _anchors(ended, turn).items()}
        usual, odd = self._seen.get(turn), self._odd.pop(turn, None)
        if usual is None:
            new = Seen(_nearest(beside, {}, _careful(turn)), beside, tail)
        elif turn.tail or abs(_where(usual, ended, turn) - read) <= 1:
            new = Seen(_nearest(beside, usual.beside, usual.anchor), beside, tail)
        elif odd is not None and abs(_where(odd, ended, turn) - read) <= 1:
            new = Seen(_nearest(beside, odd.beside, odd.anchor), beside, tail)
        else:
            new = Seen(_nearest(beside, {}, usual.anchor), beside, tail)
            self._odd[turn] = new
            return
        if -beside[new.anchor] - _scaled(tail, ended) < _AROUND:
            self._seen[turn] = new


def _nearest(beside: Mapping[Anchor, int], was: Mapping[Anchor, int], usual: Anchor) -> Anchor:
    """The anchor that has moved least; of two, the one it has been so far."""
    return min(beside, key=lambda at: (abs(beside[at] - was.get(at, 0)), at != usual))


def _where(seen: Seen, ended: Ended, turn: Turn) -> int:
    """Where a turn parts from its slot when it is as that one was."""
    anchor = _anchors(ended, turn).get(seen.anchor, ended.input)
    longer = _scaled(ended.tail - seen.tail, ended)
    return anchor + seen.beside.get(seen.anchor, 0) - longer


def _scaled(size: int, ended: Ended) -> int:
    """About how many tokens so many bytes are."""
    return round(size * ended.input / max(1, ended.rendered.size)) if size else 0


class Following:
    """One conversation on such a server, call by call."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self.before: Ended | None = None
        """The call before."""
        self._parted: tuple[int, int] | None = None
        """Where it last parted from somebody else's prompt, by our estimate and by the bill."""

    def read(self, later: Rendered, outcome: Outcome) -> int:
        """What the next call reads, in the server's tokens. `outcome` is what a simulator says."""
        before = self.before
        if before is None:
            # A conversation that has no bill of its own yet goes by the server's last one.
            return outcome.read if later.bills else calibrated(self._habits.bills, outcome.read)
        if self.goes_on(later, outcome):
            return self._habits.read(before, later)
        if self._parted is not None and self._parted[0] == outcome.read:
            return self._parted[1]  # the same beginning has the same tokens
        return outcome.read

    def goes_on(self, later: Rendered, outcome: Outcome) -> bool:
        """Whether a call finds its slot as the last one left it, by the rules: all of that one's
        prompt but what was for that call only."""
        if self.before is None:
            return False
        kept = self.before.rendered
        whole = Counts(kept, later.bills).tokens(kept.cacheable)
        return outcome.read >= min(whole, outcome.total - 1)

    def fork(self) -> Following:
        return copy.copy(self)

    def billed(
        self, rendered: Rendered, outcome: Outcome, usage: Usage, *, thought: bool = False
    ) -> None:
        """The call was answered; `thought` tells that the answer has thinking in it, which not
        every wire says in a block of its own."""
        before = self.before
        if before is not None and usage.read is not None:
            if self.goes_on(rendered, outcome):
                self._habits.learn(before, rendered, usage.read)
            elif abs(usage.read - self.read(rendered, outcome)) < _AROUND + usage.read / 2:
                self._parted = outcome.read, usage.read
        self.before = ended(before, rendered, usage, thought)
        self._habits.bills = Counts(rendered, ()).billed(usage.input) or self._habits.bills


def ended(before: Ended | None, rendered: Rendered, usage: Usage, thought: bool) -> Ended | None:
    """A call that was answered, `before` being the one before it; None when its bill does not say
    how long it was."""
    if not usage.input:
        return None
    question = usage.input
    if before is not None:
        turn = turned(before, rendered)
        if not turn.user:
            question, thought = before.question, thought or turn.thought
    return Ended(
        rendered=rendered,
        input=usage.input,
        output=usage.output or 0,
        question=question,
        thought=thought,
        tail=rendered.size - rendered.offset(rendered.cacheable),
    )


def turned(ended: Ended, later: Rendered) -> Turn:
    """The kind of a turn, by what is new in it."""
    answered = calls = user = False
    thought = ended.thought
    first = min(ended.rendered.cacheable, len(later))
    for at in range(first, len(later)):
        run, place = later.locate(at)
        kind = run.log.kinds[place]
        if run.section != "messages" or run.volatile:
            continue
        if kind is Kind.TOOL_CALL:
            answered = calls = True
        elif kind is Kind.THINKING:
            answered = thought = True
        elif kind is not Kind.TOOL_RESULT:
            role = run.log.roles[run.log.wire_message_of(place)]
            user = user or role == "user"
            answered = answered or role in ("assistant", "model")
    tail = ended.rendered.cacheable < len(ended.rendered)
    return Turn(answered, calls, thought, user, tail)


def _careful(turn: Turn) -> Anchor:
    if turn.tail:
        return "tail"
    if turn.thought and turn.user:
        return "question"
    return "answer" if turn.answered and not (turn.calls or turn.thought) else "prompt"


def _anchors(ended: Ended, turn: Turn) -> dict[Anchor, int]:
    if turn.tail:
        return {"tail": ended.input}
    anchors: dict[Anchor, int] = {"prompt": ended.input}
    if turn.answered and ended.output:
        anchors["answer"] = ended.input + ended.output - 1
    if turn.thought:
        anchors["question"] = ended.question
    return anchors
