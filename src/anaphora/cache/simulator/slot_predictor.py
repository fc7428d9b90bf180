"""Predict KV-slot reuse on self-hosted servers: a slot keeps the last prompt and its reply.

How far the next prompt agrees with them depends on the model's chat template, which is not visible
to a client: a tool call may be parsed and written again, thinking is dropped at the next user turn,
and the generation prompt need not be part of the history. The next prompt diverges from the slot

    after the reply       except its last token, which was sampled but never computed
    after the prompt      if the reply is rendered in another way
    after the question    the prompt that the last user message was sent with, if the thinking
                          since then is dropped
    before the tail       content that was for one call only; its length is an estimate

or a few tokens from one of these. Which one depends on the kind of turn and is known after one bill
of that kind (`TemplateStats`). Before that, text replies are assumed to be rendered unchanged, and
everything else not.
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

Anchor: TypeAlias = Literal["reply", "prompt", "question", "tail"]

#: Templates put fewer tokens than this around a reply. A larger distance is not the template's: the
#: server lost the prompt, or it was changed.
_TEMPLATE_TOKENS = 64


class TurnKind(msgspec.Struct, frozen=True):
    """What the next call adds after the last one's prompt."""

    replied: bool
    """The reply itself, not only something else."""
    calls: bool
    thought: bool
    """The model has thought since the last user message."""
    user: bool
    tail: bool
    """The last prompt ended with content for that call only."""


class SlotCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The previous call of a conversation."""

    rendered: Rendered
    input: int
    output: int
    question: int
    """Input tokens of the call that the last user message was sent with."""
    thought: bool
    """The model has thought since then."""
    tail: int
    """Bytes of the prompt that were for that call only."""

    @classmethod
    def after(
        cls, before: SlotCall | None, rendered: Rendered, usage: Usage, thought: bool
    ) -> SlotCall | None:
        """The call that follows `before`; None if its bill has no input tokens."""
        if not usage.input:
            return None
        question = usage.input
        if before is not None:
            turn = before.turn_kind(rendered)
            if not turn.user:
                question, thought = before.question, thought or turn.thought
        return cls(
            rendered=rendered,
            input=usage.input,
            output=usage.output or 0,
            question=question,
            thought=thought,
            tail=rendered.size - rendered.offset(rendered.cacheable),
        )

    def turn_kind(self, later: Rendered) -> TurnKind:
        replied = calls = user = False
        thought = self.thought
        for chunk in range(min(self.rendered.cacheable, len(later)), len(later)):
            run, index = later.locate(chunk)
            kind = run.log.kinds[index]
            if run.section != "messages" or run.volatile:
                continue
            if kind is Kind.TOOL_CALL:
                replied = calls = True
            elif kind is Kind.THINKING:
                replied = thought = True
            elif kind is not Kind.TOOL_RESULT:
                role = run.log.role_of(index)
                user = user or role == "user"
                replied = replied or role in ("assistant", "model")
        tail = self.rendered.cacheable < len(self.rendered)
        return TurnKind(replied, calls, thought, user, tail)

    def anchors(self, turn: TurnKind) -> dict[Anchor, int]:
        """Positions in the slot's tokens at which the next prompt may diverge."""
        if turn.tail:
            return {"tail": self.input}
        anchors: dict[Anchor, int] = {"prompt": self.input}
        if turn.replied and self.output:
            anchors["reply"] = self.input + self.output - 1
        if turn.thought:
            anchors["question"] = self.question
        return anchors

    def tokens_in(self, size: int) -> int:
        """The approximate tokens of so many bytes."""
        return round(size * self.input / max(1, self.rendered.size)) if size else 0


class ReuseSample(msgspec.Struct, frozen=True):
    """The position at which the last turn of a kind diverged."""

    anchor: Anchor
    offsets: Mapping[Anchor, int]
    """The distance in tokens after each anchor."""
    tail: int
    """The length of its tail, in bytes."""

    def position(self, call: SlotCall, turn: TurnKind) -> int:
        """The position at which a turn diverges if it behaves like this one."""
        anchor = call.anchors(turn).get(self.anchor, call.input)
        longer_tail = call.tokens_in(call.tail - self.tail)
        return anchor + self.offsets.get(self.anchor, 0) - longer_tail


class SavedTemplate(msgspec.Struct, frozen=True):
    """The state of `TemplateStats`, for another process."""

    samples: tuple[tuple[TurnKind, ReuseSample], ...]
    outliers: tuple[tuple[TurnKind, ReuseSample], ...]
    bills: Bills


class SavedSlotCall(msgspec.Struct, frozen=True):
    """A `SlotCall` without its prompt, and where the conversation last diverged."""

    input: int
    output: int
    question: int
    thought: bool
    tail: int
    diverged: tuple[int, int] | None


class TemplateStats:
    """Where the prompts of one model on one server diverge from its slots, by kind of turn."""

    def __init__(self) -> None:
        self._samples: dict[TurnKind, ReuseSample] = {}
        self._outliers: dict[TurnKind, ReuseSample] = {}
        """Turns unlike the last of their kind; the next one shows whether the template changed."""
        self.bills: Bills = ()

    def read(self, call: SlotCall, later: Rendered) -> int:
        """The tokens of the slot that the next call reads, if it continues from there."""
        turn = call.turn_kind(later)
        sample = self._samples.get(turn) or ReuseSample(_assumed(turn), {}, 0)
        whole = call.input + max(0, call.output - 1)
        if len(later) == len(call.rendered) and not turn.replied:
            whole = call.input - 1  # the same prompt again; its last token is always computed
        return max(0, min(sample.position(call, turn), whole))

    def learn(self, call: SlotCall, later: Rendered, read: int) -> None:
        """Learns from the bill of a call that should have continued from its slot."""
        turn = call.turn_kind(later)
        offsets = {anchor: read - tokens for anchor, tokens in call.anchors(turn).items()}
        known, outlier = self._samples.get(turn), self._outliers.pop(turn, None)
        anchor: Anchor
        if known is None:
            anchor = _nearest(offsets, {}, _assumed(turn))
        elif turn.tail or abs(known.position(call, turn) - read) <= 1:
            anchor = _nearest(offsets, known.offsets, known.anchor)
        elif outlier is not None and abs(outlier.position(call, turn) - read) <= 1:
            anchor = _nearest(offsets, outlier.offsets, outlier.anchor)
        else:
            anchor = _nearest(offsets, {}, known.anchor)
            self._outliers[turn] = ReuseSample(anchor, offsets, call.tail)
            return
        if -offsets[anchor] - call.tokens_in(call.tail) < _TEMPLATE_TOKENS:
            self._samples[turn] = ReuseSample(anchor, offsets, call.tail)

    def save(self) -> SavedTemplate | None:
        if not self.bills:
            return None
        samples, outliers = tuple(self._samples.items()), tuple(self._outliers.items())
        return SavedTemplate(samples, outliers, self.bills)

    def restore(self, saved: SavedTemplate | None) -> None:
        """Figures that this process has learned take precedence."""
        if saved is not None and not self.bills:
            self._samples = dict(saved.samples)
            self._outliers = dict(saved.outliers)
            self.bills = saved.bills


class SlotPredictor:
    """Predicts the calls of one conversation on a self-hosted server."""

    def __init__(self, stats: TemplateStats) -> None:
        self._stats = stats
        self.before: SlotCall | None = None
        self._diverged: tuple[int, int] | None = None
        """Where it last diverged from another conversation: estimated and billed tokens."""

    def read(self, later: Rendered, outcome: Outcome) -> int:
        """The tokens that the next call reads, by the server's count; `outcome` is the
        simulator's."""
        before = self.before
        if before is None:
            # A conversation without a bill of its own is calibrated by the server's last one.
            return outcome.read if later.bills else calibrated(self._stats.bills, outcome.read)
        if self.continues(later, outcome):
            return self._stats.read(before, later)
        if self._diverged is not None and self._diverged[0] == outcome.read:
            return self._diverged[1]  # the same beginning has the same tokens
        return outcome.read

    def continues(self, later: Rendered, outcome: Outcome) -> bool:
        """Whether a call finds its slot in the state after the last one."""
        if self.before is None:
            return False
        kept = self.before.rendered
        whole = Counts(kept, later.bills).tokens(kept.cacheable)
        return outcome.read >= min(whole, outcome.total - 1)

    def fork(self) -> SlotPredictor:
        return copy.copy(self)

    def save(self) -> SavedSlotCall | None:
        call = self.before
        if call is None:
            return None
        counts = call.input, call.output, call.question
        return SavedSlotCall(*counts, call.thought, call.tail, self._diverged)

    def restore(self, saved: SavedSlotCall, rendered: Rendered) -> None:
        self.before = SlotCall(
            rendered=rendered,
            input=saved.input,
            output=saved.output,
            question=saved.question,
            thought=saved.thought,
            tail=saved.tail,
        )
        self._diverged = saved.diverged

    def billed(
        self, rendered: Rendered, outcome: Outcome, usage: Usage, *, thought: bool = False
    ) -> None:
        """Learns from the bill of a call. `thought`: the reply contains thinking, which some wires
        do not send as a block."""
        before = self.before
        if before is not None and usage.read is not None:
            if self.continues(rendered, outcome):
                self._stats.learn(before, rendered, usage.read)
            elif abs(usage.read - self.read(rendered, outcome)) < _TEMPLATE_TOKENS + usage.read / 2:
                self._diverged = outcome.read, usage.read
        self.before = SlotCall.after(before, rendered, usage, thought)
        self._stats.bills = Counts(rendered, ()).billed(usage.input) or self._stats.bills


def _nearest(offsets: Mapping[Anchor, int], known: Mapping[Anchor, int], default: Anchor) -> Anchor:
    """The anchor whose offset changed least; the default on a tie."""
    return min(offsets, key=lambda one: (abs(offsets[one] - known.get(one, 0)), one != default))


def _assumed(turn: TurnKind) -> Anchor:
    """The assumption before the first bill of a kind."""
    if turn.tail:
        return "tail"
    if turn.thought and turn.user:
        return "question"
    return "reply" if turn.replied and not (turn.calls or turn.thought) else "prompt"
