"""PromptIR: one prompt for every provider; and `Call`, which sends it, the input of `wire.render`.

What wires render at every turn:

    system_field_blocks()   the system prompt for wires whose system field is a list of blocks
    body_runs()             the messages as segments in chat order
    run(role)               the messages of one role

The prompt as texts, and as lists of messages:

    system_field()          the system prompt as one text
    system_field_index(i)   the index of system block i in `system_field_blocks()`
    body_chat()             the messages of `body_runs()` as one list
    flatten()               [system] + body_chat()
    responses_input()       the input list of the Responses API
    continuation_delta()    only the messages after a stored response

`body_chat` and `continuation_delta` order the system remainder differently on purpose: it is
between dynamic context and conversation in the first, and at the start of the second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from anaphora.values import AnyTool, Conversation, Extras, Message, MessageLike, SegmentRole
from anaphora.values.conversation import Segment
from anaphora.values.fields import Value

from .blocks import Continuation, Params, PromptBlock, PromptCachePlan, ResponsesRequestOptions

_USUAL_CACHE = PromptCachePlan()


class PromptIR(Value, frozen=True, kw_only=True):
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

    def all_system_blocks(self) -> tuple[PromptBlock, ...]:
        """The blocks, blank ones as well, as a request that was read holds them."""
        return self.system_blocks

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

    # Views that no wire renders at every turn.

    def system_field(self) -> str:
        """The authoritative text, else the non-blank blocks joined by a blank line."""
        if self.system_text:
            return self.system_text
        return "\n\n".join(block.text for block in self.system_blocks if block.text.strip())

    def system_field_index(self, index: int) -> int | None:
        """The index of a system block among the non-blank ones; None if it is blank or missing."""
        blocks = self.system_blocks
        if not 0 <= index < len(blocks) or not blocks[index].text.strip():
            return None
        return sum(bool(block.text.strip()) for block in blocks[:index])

    def body_chat(self) -> list[Message]:
        """Stable prefix, dynamic context, system remainder, conversation, volatile tail."""
        return [message for segment in self.body_runs() for message in segment.messages]

    def flatten(self) -> list[Message]:
        """The trimmed system message, unless blank, ahead of the body."""
        system = self.system_field().strip()
        body = self.body_chat()
        return [Message.system(system), *body] if system else body

    def responses_input(self) -> list[Message]:
        """The body; the system prompt is sent as `instructions`."""
        return self.body_chat()

    def responses_request_options(
        self, base: ResponsesRequestOptions | None = None
    ) -> ResponsesRequestOptions:
        """The caller's options with this prompt's input, instructions and continuation."""
        options = msgspec.structs.replace(
            base or ResponsesRequestOptions(),
            input_messages=tuple(self.responses_input()),
            instructions=self.system_field().strip() or None,
        )
        if self.continuation is None:
            return options
        return msgspec.structs.replace(
            options, previous_response_id=self.continuation.previous_response_id
        )

    def continuation_delta(self) -> list[Message]:
        """System remainder first, dynamic context, conversation tail, volatile tail."""
        return [
            *self.run(SegmentRole.SYSTEM_REMAINDER),
            *self.run(SegmentRole.DYNAMIC_CONTEXT),
            *self._conversation_tail(),
            *self.run(SegmentRole.VOLATILE_TAIL),
        ]

    def _conversation_tail(self) -> tuple[Message, ...]:
        """The messages after the committed assistant message; all of them if that is missing or the
        last one, since a delta must not be empty."""
        conversation = self.run(SegmentRole.CONVERSATION)
        committed = self._committed(conversation)
        after = () if committed is None else conversation[committed + 1 :]
        return after or conversation[:]

    def has_continued(self) -> bool:
        """Whether the conversation contains the last message of the continued response; if not,
        only the provider has the messages before."""
        return self._committed(self.run(SegmentRole.CONVERSATION)) is not None

    def _committed(self, conversation: Conversation) -> int | None:
        boundary = self.continuation and self.continuation.last_committed_assistant_id
        if boundary:
            for index in range(len(conversation) - 1, -1, -1):
                if conversation[index].id == boundary:
                    return index
        return None

    def revised(
        self,
        message: Callable[[Message], Message],
        block: Callable[[int, PromptBlock], PromptBlock] | None = None,
    ) -> PromptIR:
        """The prompt with every message and system block replaced by these functions; the same
        object if nothing changes. For parsed prompts, not for every turn."""
        segments = tuple(_revised(segment, message) for segment in self.segments)
        blocks = self.system_blocks
        if block is not None:
            blocks = tuple(block(index, each) for index, each in enumerate(blocks))
        same = all(new is old for new, old in zip(segments, self.segments, strict=True))
        if same and all(new is old for new, old in zip(blocks, self.system_blocks, strict=True)):
            return self
        return msgspec.structs.replace(self, segments=segments, system_blocks=blocks)


def _revised(segment: Segment, revise: Callable[[Message], Message]) -> Segment:
    messages = [revise(message) for message in segment.messages]
    if all(new is old for new, old in zip(messages, segment.messages, strict=True)):
        return segment
    return msgspec.structs.replace(segment, messages=Conversation(messages))


class Call(Value, frozen=True, kw_only=True):
    """One request, independent of the provider."""

    ir: PromptIR
    model: str
    tools: tuple[AnyTool, ...] = ()
    params: Params = Params()
    extras: Extras | None = None
    """Other request fields: wire name -> JSON object text."""


#: The roles are declared in the order of `body_chat`.
_STABLE, _DYNAMIC, _REMAINDER, _HISTORY, _TAIL = _CHAT_ORDER = tuple(SegmentRole)
_DYNAMIC_LAST = (_STABLE, _REMAINDER, _HISTORY, _DYNAMIC, _TAIL)


@functools.lru_cache(maxsize=16)
def _one_block(text: str) -> tuple[PromptBlock, ...]:
    """The same object for the same text, because rendered blocks are found by identity."""
    return (PromptBlock("system", text),)
