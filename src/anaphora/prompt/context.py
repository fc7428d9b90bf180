"""RenderedContext: a prompt in the four slots that agent frameworks produce.

    system_stable      identity                                 never changes
    system_knowledge   memories, skills, artifacts              changes now and then
    turns              history                                  only grows
    state_turn         task state and signals                   rebuilt at every call

The state turn stays out of `turns`, so that the history remains byte-stable.
"""

from __future__ import annotations

import msgspec
from blake3 import blake3

from anaphora.errors import Parse
from anaphora.values import Conversation, Message, Notice, SegmentRole, from_json, to_json

from .blocks import PromptBlock, PromptCachePlan, expect
from .ir import PromptIR, Segment


class ContextFingerprint(msgspec.Struct, frozen=True, eq=False):
    """What a later render of the same context may reuse: both system slots and the turns.

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
        """BLAKE3 over slots and turns without ids. Turns are not hashed twice."""
        slots = blake3(msgspec.json.encode([self.system_stable, self.system_knowledge]))
        slots.update(_turns_digest(self.turns))
        return slots.hexdigest()

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


#: Its name in the document that describes `RenderedContext`.
PrefixFingerprint = ContextFingerprint


def _turns_digest(turns: Conversation) -> bytes:
    """A running hash is kept with the conversation; an older view is hashed anew."""
    hashed, running = turns.memo.get("turns_digest", (0, None))
    if running is None or hashed > len(turns):
        hashed, running = 0, blake3()
    else:
        running = running.copy()
    for message in turns[hashed:]:
        running.update(to_json((message.role, message.parts)))
    turns.memo["turns_digest"] = (len(turns), running)
    digest: bytes = running.digest()
    return digest


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
        expect(self.turns, Conversation, "turns")
        if self.state_turn is not None:
            expect(self.state_turn, Message, "state_turn")

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
        """What a later render may reuse of this one."""
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
