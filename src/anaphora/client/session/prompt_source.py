"""Where the prompts of a session come from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.client.arguments import state_text
from anaphora.client.options import Prompt, StateText
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    PromptIR,
    RenderedContext,
    Segment,
)
from anaphora.values import Message, SegmentRole

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


def prompt_of(value: Any, path: str = "prompt") -> Prompt | Callable[[], Prompt]:
    if inspect.iscoroutinefunction(value):
        raise InvalidRequest(
            "an async function cannot be called here; await it yourself before the turn and"
            " assign the result: chat.prompt = await ...",
            path=path,
        )
    if isinstance(value, PromptIR | RenderedContext) or callable(value):
        result: Prompt | Callable[[], Prompt] = value
        return result
    hint = "; a text is given as system=" if isinstance(value, str) else ""
    raise InvalidRequest(
        "must be a PromptIR, a RenderedContext or a function that returns one, not"
        f" {type(value).__name__}{hint}",
        path=path,
    )


def is_plain(prompt: PromptIR) -> bool:
    """Whether a prompt leaves the history as it is: no conversation, boundary or continuation."""
    if prompt.continuation is not None or prompt.cache.frozen_through is not None:
        return False
    return all(segment.role is not _HISTORY for segment in prompt.segments)


def returned_prompt(value: Any) -> Prompt:
    if isinstance(value, PromptIR | RenderedContext):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidRequest(
        "the function must return a PromptIR or a RenderedContext, and returned"
        f" {type(value).__name__}",
        path="prompt",
    )
