"""Where the prompts of a session come from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.client.arguments import state_text
from anaphora.client.options import Prompt, StateText
from anaphora.prompt import (
    PromptIR,
    RenderedContext,
    Segment,
)
from anaphora.values import Message, SegmentRole

from .turn_prompt import returned_prompt

# Bound once: looking up an enum member is slow, and every turn needs it.
_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL
_PROMPTS = (PromptIR, RenderedContext)


class PromptSource(msgspec.Struct, frozen=True, eq=False):
    """Where a session's prompts come from: a `PromptIR`, a `RenderedContext`, or a function that
    returns one and is called once a turn. The keywords `system=`, `state=` and `cache=` are a short
    form of a `PromptIR`. Shared by forks."""

    prompt: Prompt | Callable[[], Prompt]
    state: StateText = None
    """Text at the end of every call; only with a prompt from keywords."""
    from_keywords: bool = False

    def current(self) -> Prompt:
        """The prompt of the next turn. Calls the app's function, if there is one."""
        prompt = self.prompt
        if not isinstance(prompt, _PROMPTS):
            prompt = returned_prompt(prompt())
        state = self.state
        text = state_text(state()) if callable(state) else state
        if not text:
            return prompt
        tail = Segment.of(_TAIL, Message.user(text))
        return msgspec.structs.replace(prompt, segments=(tail,))


def is_plain(prompt: PromptIR) -> bool:
    """Whether a prompt leaves the history as it is: no conversation, boundary or continuation."""
    if prompt.continuation is not None or prompt.cache.frozen_through is not None:
        return False
    return all(segment.role is not _HISTORY for segment in prompt.segments)
