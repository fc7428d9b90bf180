"""Views of a prompt that no wire renders at every turn: as texts, and as lists of messages.

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

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import msgspec

from anaphora.values import Conversation, Message, SegmentRole
from anaphora.values.conversation import Segment
from anaphora.values.fields import Value

from .blocks import Continuation, PromptBlock, ResponsesRequestOptions


class PromptViews(Value, frozen=True, kw_only=True):
    """The base of `PromptIR`."""

    if TYPE_CHECKING:  # what `PromptIR` adds
        system_text: str = ""
        system_blocks: tuple[PromptBlock, ...] = ()
        segments: tuple[Segment, ...] = ()
        continuation: Continuation | None = None

        def run(self, role: SegmentRole) -> Conversation: ...
        def body_runs(self) -> tuple[Segment, ...]: ...

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
    ) -> Self:
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
