"""RenderedContext: a prompt in the four slots that agent frameworks produce.

    system_stable      identity                                 never changes
    system_knowledge   memories, skills, artifacts              changes now and then
    turns              history                                  only grows
    state_turn         task state and signals                   rebuilt at every call

The state turn stays out of `turns`, so that the history remains byte-stable.

Compaction drops the oldest units of a history that exceeds its token budget. A unit is what
providers only accept whole: a tool call, its results and the reply that follows. Dropping units at
the front moves all later bytes, so what was cached is written again: a notice names the number of
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import msgspec
from blake3 import blake3

from anaphora.errors import InvalidRequest, Parse
from anaphora.values import (
    Conversation,
    Message,
    Notice,
    SegmentRole,
    Thinking,
    ToolCall,
    ToolResult,
    from_json,
    to_json,
)
from anaphora.values.conversation import Segment
from anaphora.values.fields import check_fields
from anaphora.wording import counted

from .blocks import PromptBlock, PromptCachePlan
from .ir import PromptIR


class ContextFingerprint(msgspec.Struct, frozen=True, eq=False):
    """The reusable part of a context for a later render: both system slots and the turns.

    It compares slots and turns; `anaphora.cache.WireFingerprint` compares the bytes that are sent.
    """

    system_stable: str
    system_knowledge: str
    turns: Conversation

    def extends(self, other: ContextFingerprint) -> bool:
        """Whether all of `other` can be reused: equal system slots, and its turns are a prefix."""
        return self._same_system(other) and self.turns.extends(other.turns)

    def common_turn_prefix(self, other: ContextFingerprint) -> int:
        """The number of equal leading turns; 0 if a system slot differs."""
        return self.turns.common_prefix(other.turns) if self._same_system(other) else 0

    @property
    def digest(self) -> str:
        """BLAKE3 over slots and turns without ids."""
        hashed = blake3(msgspec.json.encode([self.system_stable, self.system_knowledge]))
        for message in self.turns:
            hashed.update(to_json((message.role, message.parts)))
        return hashed.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextFingerprint):
            return NotImplemented
        return len(self.turns) == len(other.turns) and self.extends(other)

    __hash__ = None  # type: ignore[assignment]

    def _same_system(self, other: ContextFingerprint) -> bool:
        return (
            self.system_stable == other.system_stable
            and self.system_knowledge == other.system_knowledge
        )


#: The name used in the specification of `RenderedContext`.
PrefixFingerprint = ContextFingerprint


class RenderedContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One render of an agent's context, slot by slot."""

    system_stable: str = ""
    system_knowledge: str = ""
    turns: Conversation = msgspec.field(default_factory=Conversation)
    state_turn: Message | None = None
    frozen_prefix_len: int | None = None
    """How many leading turns stay byte-stable until the next compaction. None: no distinct frozen
    region, so the rolling pair of breakpoints is used. Out-of-range values are clamped."""
    state_in_turns: bool = False
    """The older format: there is no state turn, and `turns[0]` contains the state."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def system_text(self) -> str:
        """Both system slots for wires with one system field; empty ones left out."""
        return "\n\n".join(slot for slot in (self.system_stable, self.system_knowledge) if slot)

    @classmethod
    def from_json(cls, data: bytes | str) -> RenderedContext:
        """Reads both formats. Older producers leave `state_turn` out (newer ones write `null`), and
        then `turns[0]` contains the state."""
        fields = from_json(data, dict[str, msgspec.Raw])
        text = fields.pop("system_text", None)
        older = "state_turn" not in fields and "state_in_turns" not in fields
        context = from_json(msgspec.json.encode(fields), cls)
        if text is not None and from_json(bytes(text), str) != context.system_text:
            raise Parse(
                "differs from system_stable and system_knowledge joined by a blank line",
                path="system_text",
            )
        return msgspec.structs.replace(context, state_in_turns=True) if older else context

    def prefix_fingerprint(self) -> ContextFingerprint:
        """The part that a later render may reuse."""
        return ContextFingerprint(self.system_stable, self.system_knowledge, self.turns)

    def frozen_len(self) -> int | None:
        """`frozen_prefix_len` within range; None when nothing is frozen."""
        if self.frozen_prefix_len is None:
            return None
        return max(0, min(self.frozen_prefix_len, len(self.turns))) or None

    def notices(self) -> tuple[Notice, ...]:
        """Notices on formats that prevent caching."""
        if not self.state_in_turns or not self.turns:
            return ()
        return (
            Notice(
                code="state_in_turns",
                message="the first turn carries the state and changes at every call, so no message"
                " can be cached; pass it as state_turn instead",
                path="turns[0]",
            ),
        )

    def to_ir(self) -> PromptIR:
        """Stable and knowledge become system blocks with a breakpoint each, turns the conversation,
        the state turn the volatile tail, the frozen boundary a mark in the cache plan.

        The two blocks have different TTLs (an hour, five minutes), because blocks with the same one
        share a breakpoint.
        """
        blocks = (
            PromptBlock.cached_long("system_stable", self.system_stable, "identity"),
            PromptBlock.cached_short("system_knowledge", self.system_knowledge, "knowledge"),
        )
        segments = [Segment(SegmentRole.CONVERSATION, self.turns)]
        if self.state_turn is not None:
            segments.append(Segment.of(SegmentRole.VOLATILE_TAIL, self.state_turn))
        frozen = self.frozen_len()
        return PromptIR(
            system_text=self.system_text,
            system_blocks=tuple(block for block in blocks if block.text),
            segments=tuple(segments),
            cache=PromptCachePlan(
                frozen_through=self.turns[frozen - 1].id if frozen else None,
                messages=not self.state_in_turns,
            ),
        )


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
    all_summarized: bool = False,
) -> Compaction:
    """Keep the newest units that fit into `budget` tokens, after `summary` if there is one.

    With `user_first` the first kept turn is a user message, as some providers require: a tool loop
    is then kept or dropped together with the message that started it.

    Within budget nothing changes. The newest unit always stays, even if it alone exceeds the budget
    (with a notice). `all_summarized`: the summary covers all turns, so only turns without an answer
    have to stay, and a tool loop without one may be cut between two steps. If bytes before the
    frozen boundary changed, every remaining turn is frozen until the next compaction.
    """
    if budget <= 0:
        raise InvalidRequest(f"must be a positive number of tokens, not {budget}", path="budget")
    turns = context.turns
    sums = [0, *accumulate(map(tokens, turns))]
    if sums[len(turns)] <= budget:
        return Compaction(context, 0, ())

    available = budget - (tokens(summary) if summary else 0)
    starts = [unit.start for unit in atomic_units(turns)]
    if all_summarized:
        starts = droppable(turns)
    elif user_first:
        starts = [start for start in starts if turns[start].role == "user"] or [0]
    keep_from = starts[-1]
    for start in reversed(starts[:-1]):
        if sums[len(turns)] - sums[start] > available:
            break
        keep_from = start
    if keep_from == 0:
        return Compaction(context, 0, (_over_budget(sums[len(turns)], budget),))

    kept = turns[keep_from:]
    compacted = Conversation((summary, *kept) if summary else kept)
    unchanged = compacted.common_prefix(turns)
    if unchanged == len(turns):
        # The summary equals the dropped turns: not a byte changes.
        return Compaction(context, 0, (_over_budget(sums[len(turns)], budget),))
    notices = [_uncached(keep_from, unchanged, sums[len(turns)] - sums[unchanged])]
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


def _uncached(dropped: int, unchanged: int, tokens: int) -> Notice:
    return Notice(
        code="compaction_uncaches",
        message=f"{counted(dropped, 'turn')} dropped; the bytes after them move, so {tokens} tokens"
        " leave the cache",
        path=f"turns[{unchanged}]",
        tokens=tokens,
    )


def droppable(turns: Conversation) -> list[int]:
    """Where a history may begin after a summary of all of it: at its end if it is answered, else at
    the latest before what is to be answered."""
    units = atomic_units(turns)
    starts = [unit.start for unit in units]
    if not turns or _has_reply(turns[-1]):
        return [*starts, len(turns)]
    last = next((at for at in range(len(turns) - 1, -1, -1) if turns[at].role == "assistant"), 0)
    pending = last + 1 if _has_reply(turns[last]) else last
    steps = _loop_steps(turns, next(unit for unit in units if last in unit))
    return sorted(start for start in {*starts, *steps} if start <= pending)


def _has_reply(message: Message) -> bool:
    """Whether it is a reply of the model that calls no tool."""
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    return message.role == "assistant" and not calls


def _loop_steps(turns: Conversation, unit: range) -> list[int]:
    """Where a tool loop may be cut: before a call, once all earlier calls have results. If the
    model reasons in the loop, only before a call with its reasoning: providers require it."""
    reasons = any(isinstance(part, Thinking) for at in unit for part in turns[at].parts)
    steps, open_calls = [], set[str]()
    for at in unit:
        message = turns[at]
        begins = not reasons or isinstance(next(iter(message.parts), None), Thinking)
        if message.role == "assistant" and not open_calls and begins:
            steps.append(at)
        open_calls |= {part.id for part in message.parts if isinstance(part, ToolCall)}
        open_calls -= {part.call_id for part in message.parts if isinstance(part, ToolResult)}
    return steps


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
