"""PromptIR: one prompt for every provider; and `Call`, which sends it, the input of `wire.render`.

The views that wires render at every turn; others are in views.py:

    system_field_blocks()   the system prompt for wires whose system field is a list of blocks
    body_runs()             the messages as segments in chat order
    run(role)               the messages of one role
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Literal, get_args

from anaphora.values import (
    AnyTool,
    Conversation,
    Extras,
    MessageLike,
    SegmentRole,
    Value,
)
from anaphora.values.conversation import Segment
from anaphora.values.fields import check_fields

from .blocks import Continuation, Params, PromptBlock, PromptCachePlan
from .views import PromptViews

_TOOLS = frozenset(get_args(AnyTool))


_SEGMENTS = frozenset({Segment})
_USUAL_CACHE = PromptCachePlan()


class PromptIR(PromptViews, frozen=True, kw_only=True):
    """The prompt of one round. The next round is a new value that shares the unchanged parts."""

    system_text: str = ""
    """Byte-authoritative when not empty."""
    system_blocks: tuple[PromptBlock, ...] = ()
    segments: tuple[Segment, ...] = ()
    cache: PromptCachePlan = PromptCachePlan()
    continuation: Continuation | None = None
    state_position: Literal["tail", "head"] = "tail"
    """The position of the volatile tail; at the head it invalidates automatic prefix caches."""
    dynamic_position: Literal["before", "tail"] = "before"
    """Dynamic context before the conversation, or after it if that costs less."""

    def __post_init__(self) -> None:
        # As in `Segment`.
        segments = self.segments
        state: str = self.state_position
        dynamic: str = self.dynamic_position
        if (
            type(segments) is not tuple
            or not _SEGMENTS.issuperset(map(type, segments))
            or type(self.system_text) is not str
            or self.system_blocks != ()
            or type(self.cache) is not PromptCachePlan
            or self.continuation is not None
            or not (type(state) is type(dynamic) is str)
            or (state, dynamic) != ("tail", "before")
        ):
            check_fields(self)

    @classmethod
    def chat(
        cls,
        conversation: Conversation | Iterable[MessageLike],
        *,
        system: str | Iterable[PromptBlock] = (),
        tail: Iterable[MessageLike] = (),
        cache: PromptCachePlan | None = None,
    ) -> PromptIR:
        """A system prompt, a history, and messages that are rebuilt every round."""
        history = (
            conversation if isinstance(conversation, Conversation) else Conversation(conversation)
        )
        segments = [Segment(SegmentRole.CONVERSATION, history)]
        if tail != () and (volatile := Conversation(tail)):
            segments.append(Segment(SegmentRole.VOLATILE_TAIL, volatile))
        return cls(
            system_text=system if isinstance(system, str) else "",
            system_blocks=() if isinstance(system, str) else tuple(system),
            segments=tuple(segments),
            cache=_USUAL_CACHE if cache is None else cache,
        )

    def run(self, role: SegmentRole) -> Conversation:
        """All messages of a role; segments of one role are joined in order."""
        runs = [segment.messages for segment in self.segments if segment.role is role]
        if len(runs) == 1:
            return runs[0]
        return Conversation(message for run in runs for message in run)

    def system_field_blocks(self) -> tuple[PromptBlock, ...]:
        """The non-blank blocks; without any, the text as a single block."""
        blocks = self.system_blocks
        if blocks and not all(block.text.strip() for block in blocks):
            blocks = tuple(block for block in blocks if block.text.strip())
        if not blocks and self.system_text.strip():
            return _one_block(self.system_text)
        return blocks

    def system_fields_agree(self) -> bool:
        """Whether text and blocks are the same, if both are given."""
        text, offset = self.system_text, 0
        if not text or not self.system_blocks:
            return True
        for block in self.system_field_blocks():
            if not text.startswith(block.text, offset):
                return False
            offset += len(block.text) + len("\n\n")
        return offset == len(text) + len("\n\n")

    def body_runs(self) -> tuple[Segment, ...]:
        """The messages in chat order, one segment per role, without empty ones."""
        if len(self.segments) == 1 and len(self.segments[0].messages):
            return self.segments
        order = _CHAT_ORDER if self.dynamic_position == "before" else _DYNAMIC_LAST
        if self.state_position == "head":
            order = (SegmentRole.VOLATILE_TAIL, *order[:-1])
        segments = [each for each in self.segments if len(each.messages)]
        roles = [each.role for each in segments]
        if roles == [_HISTORY, _TAIL] and order is _CHAT_ORDER:
            return tuple(segments)
        runs = []
        for role in order:
            if role in roles:
                one = roles.count(role) == 1
                runs.append(segments[roles.index(role)] if one else Segment(role, self.run(role)))
        return tuple(runs)


class Call(Value, frozen=True, kw_only=True):
    """One request, independent of the provider."""

    ir: PromptIR
    model: str
    tools: tuple[AnyTool, ...] = ()
    params: Params = Params()
    extras: Extras | None = None
    """Other request fields: wire name -> JSON object text."""

    def __post_init__(self) -> None:
        # As in `Segment`.
        tools = self.tools
        if (
            type(self.ir) is not PromptIR
            or type(self.params) is not Params
            or type(self.model) is not str
            or type(tools) is not tuple
            or not _TOOLS.issuperset(map(type, tools))
            or self.extras is not None
        ):
            check_fields(self)


#: The roles are declared in the order of `body_chat`.
_STABLE, _DYNAMIC, _REMAINDER, _HISTORY, _TAIL = _CHAT_ORDER = tuple(SegmentRole)
_DYNAMIC_LAST = (_STABLE, _REMAINDER, _HISTORY, _DYNAMIC, _TAIL)


@functools.lru_cache(maxsize=16)
def _one_block(text: str) -> tuple[PromptBlock, ...]:
    """The same object for the same text, because rendered blocks are found by identity."""
    return (PromptBlock("system", text),)
