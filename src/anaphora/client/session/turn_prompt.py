"""The prompt of one turn: from the app's prompt and the session's history.

The conversation in a prompt opens the history: from the first turn on the session owns it, and a
prompt has no conversation, the opening again, or the session's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.client.options import Prompt
from anaphora.errors import InvalidRequest
from anaphora.prompt import Compaction, Continuation, PromptIR, RenderedContext
from anaphora.values import Conversation, SegmentRole

_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL


class PromptMemory(msgspec.Struct, frozen=True, eq=False):
    opening: Conversation | None = None
    """The conversation of the first prompt that had one."""
    boundary: tuple[str, int | str | None] | None = None
    """The frozen boundary set by a compaction, and the prompt's own at that time. It applies until
    the prompt's own changes."""
    continuation: Continuation | None = None
    """The prompt's own continuation, once used."""


class TurnPrompt(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    ir: PromptIR
    """Without the conversation."""
    history: Conversation
    memory: PromptMemory
    """Kept once the turn is answered."""
    context: RenderedContext | None = None
    """The app's context, if the prompt is one."""
    frozen: int | str | None = None
    """The app's frozen boundary."""

    @property
    def continues(self) -> bool:
        """Whether the conversation began as the continuation of a response that the app named."""
        return self.memory.continuation is not None

    @property
    def is_whole(self) -> bool:
        """Whether the history is complete. A conversation that began as the continuation of a
        response may lack messages that only the provider stores."""
        continued = self.ir.continuation or self.memory.continuation
        if continued is None:
            return True
        name = continued.last_committed_assistant_id
        return name is not None and any(message.id == name for message in self.history)

    def to_context(self) -> RenderedContext:
        """For `compact`: the history with its boundary, and the system prompt."""
        frozen, name = None, self.ir.cache.frozen_through
        if name is not None:
            indexes = range(len(self.history), 0, -1)
            frozen = next((end for end in indexes if self.history[end - 1].id == name), None)
        context = self.context or RenderedContext(system_stable=self.ir.system_field())
        return msgspec.structs.replace(context, turns=self.history, frozen_prefix_len=frozen)

    def compacted(self, done: Compaction) -> TurnPrompt:
        """The turn with the history that is left. A stored response holds the dropped part, so it
        is not continued."""
        after = done.context.turns
        length = done.context.frozen_len()
        assert length is not None, "a compaction that drops something sets a boundary"
        boundary = after[length - 1].id
        memory = msgspec.structs.replace(self.memory, boundary=(boundary, self.frozen))
        cache = msgspec.structs.replace(self.ir.cache, frozen_through=boundary)
        ir = msgspec.structs.replace(self.ir, cache=cache, continuation=None)
        return msgspec.structs.replace(self, ir=ir, history=after, memory=memory)


def conversation_of(prompt: Prompt) -> Conversation:
    """The messages in a prompt."""
    return prompt.turns if isinstance(prompt, RenderedContext) else prompt.run(_HISTORY)


def turn_prompt(prompt: Prompt, history: Conversation, memory: PromptMemory) -> TurnPrompt:
    """The prompt of this turn."""
    context = prompt if isinstance(prompt, RenderedContext) else None
    ir = prompt.to_ir() if isinstance(prompt, RenderedContext) else prompt
    frozen = ir.cache.frozen_through if context is None else context.frozen_prefix_len
    boundary = _boundary(frozen, history, memory)
    continuation = ir.continuation
    if continuation is not None and continuation == memory.continuation:
        continuation = None  # used by an earlier turn
    elif continuation is not None:
        memory = msgspec.structs.replace(memory, continuation=continuation)
    ir = msgspec.structs.replace(
        ir,
        segments=tuple(segment for segment in ir.segments if segment.role is not _HISTORY),
        cache=msgspec.structs.replace(ir.cache, frozen_through=boundary),
        continuation=continuation,
    )
    return TurnPrompt(ir=ir, history=history, context=context, frozen=frozen, memory=memory)


def _boundary(frozen: int | str | None, history: Conversation, memory: PromptMemory) -> str | None:
    before = memory.boundary
    if before is not None and frozen == before[1]:
        return before[0]
    if not isinstance(frozen, int):
        return frozen
    length = max(0, min(frozen, len(history)))
    if length:
        return history[length - 1].id
    return None if before is None else before[0]


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
