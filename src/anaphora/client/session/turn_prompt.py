"""The prompt of one turn: from the app's prompt and the session's history.

A prompt may contain a conversation, which is compared with the session's history:

    no conversation, or the same object as last time    the history stays
    one that continues the history                      the history grows by the new messages
    one that only lacks what was appended since the     the history stays
    last turn
    any other                                           it replaces the history: the app edited,
                                                        shortened or compacted it

Messages appended since the last turn (`append`, tool results) are added to a conversation that
replaces the history, unless it ends with them already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.client.options import Prompt
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    Compaction,
    Continuation,
    PartMark,
    PromptCachePlan,
    PromptIR,
    RenderedContext,
)
from anaphora.values import Conversation, Message, Notice, SegmentRole, ToolCall, ToolResult
from anaphora.wording import counted

_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL


class CompactedHistory(msgspec.Struct, frozen=True, eq=False):
    before: Conversation
    after: Conversation
    dropped: int


class PromptMemory(msgspec.Struct, frozen=True, eq=False):
    sources: tuple[Conversation, ...] = ()
    """The conversation segments of the last prompt that had any; compared by identity."""
    turns: Conversation = msgspec.field(default_factory=Conversation)
    shift: int = 0
    """The offset from an index in `turns` to the index in the history."""
    floor: int = 0
    """The first index of the history that corresponds to a message of `turns`."""
    compactions: tuple[CompactedHistory, ...] = ()
    """For apps that pass their whole history at every turn, including the dropped part."""
    boundary: tuple[str, int | str | None] | None = None
    """The frozen boundary set by a compaction, and the prompt's own at that time. It applies until
    the prompt's own changes."""
    continuation: Continuation | None = None
    """The prompt's own continuation, once used."""

    def without_history(self) -> PromptMemory:
        """The memory after the history was replaced: no position is known any more."""
        return PromptMemory(sources=self.sources, continuation=self.continuation)


class TurnPrompt(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    ir: PromptIR
    """Without the conversation; ids in it are those of the history."""
    history: Conversation
    memory: PromptMemory
    """Kept once the turn is answered."""
    context: RenderedContext | None = None
    """The app's context, if the prompt is one."""
    frozen: int | str | None = None
    """The app's frozen boundary."""
    notices: tuple[Notice, ...] = ()

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

    def without_tail(self, history: Conversation) -> TurnPrompt:
        """The lasting part of the prompt, around another history."""
        segments = tuple(segment for segment in self.ir.segments if segment.role is not _TAIL)
        ir = msgspec.structs.replace(self.ir, segments=segments)
        return msgspec.structs.replace(self, ir=ir, history=history)

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
        before, after = self.history, done.context.turns
        length = done.context.frozen_len()
        assert length is not None, "a compaction that drops something sets a boundary"
        boundary = after[length - 1].id
        memory = msgspec.structs.replace(self.memory, boundary=(boundary, self.frozen))
        if memory.sources:
            memory = msgspec.structs.replace(
                memory,
                shift=memory.shift + len(after) - len(before),
                floor=len(after) - (len(before) - done.dropped),
                compactions=(*memory.compactions, CompactedHistory(before, after, done.dropped)),
            )
        cache = msgspec.structs.replace(self.ir.cache, frozen_through=boundary)
        ir = msgspec.structs.replace(self.ir, cache=cache, continuation=None)
        return msgspec.structs.replace(self, ir=ir, history=after, memory=memory)


def turn_prompt(
    prompt: Prompt, history: Conversation, answered: Conversation, memory: PromptMemory
) -> TurnPrompt:
    """The prompt of this turn. `answered` is the history after the last turn."""
    context = prompt if isinstance(prompt, RenderedContext) else None
    ir = prompt.to_ir() if isinstance(prompt, RenderedContext) else prompt
    others = tuple(segment for segment in ir.segments if segment.role is not _HISTORY)
    runs = (segment.messages for segment in ir.segments if segment.role is _HISTORY)
    sources = tuple(run for run in runs if len(run))
    notices = () if context is None else context.notices()
    if sources and not _same(sources, memory.sources):
        before = history
        history, memory = _adopt(ir.run(_HISTORY), sources, history, answered, memory)
        if not notices and not history.extends(before):
            notices = (_replaced(before, history),)
    ids = _HistoryIds(history, memory if sources and len(memory.turns) else None)
    frozen = ir.cache.frozen_through if context is None else context.frozen_prefix_len
    continuation = ir.continuation
    if continuation is not None and continuation == memory.continuation:
        continuation = None  # used by an earlier turn
    elif continuation is not None:
        memory = msgspec.structs.replace(memory, continuation=continuation)
        if (committed := continuation.last_committed_assistant_id) is not None:
            continuation = Continuation(continuation.previous_response_id, ids.of(committed))
    ir = msgspec.structs.replace(
        ir,
        segments=others,
        cache=_cache(ir.cache, _boundary(frozen, ids, memory), ids),
        continuation=continuation,
    )
    return TurnPrompt(
        ir=ir, history=history, context=context, frozen=frozen, memory=memory, notices=notices
    )


def _same(one: tuple[Conversation, ...], other: tuple[Conversation, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _adopt(
    turns: Conversation,
    sources: tuple[Conversation, ...],
    history: Conversation,
    answered: Conversation,
    memory: PromptMemory,
) -> tuple[Conversation, PromptMemory]:
    """The history updated by the app's conversation, and its memory."""
    wanted, shift, floor = turns, 0, 0
    for each in memory.compactions:
        if wanted.extends(each.before):
            wanted = each.after.append(*wanted[len(each.before) :])
            shift += len(each.after) - len(each.before)
            floor = len(each.after) - (len(each.before) - each.dropped)
    merged = _merged(wanted, history, answered)
    kept = memory
    if wanted is turns and not merged.extends(history):
        kept = memory.without_history()
    return merged, msgspec.structs.replace(
        kept, sources=sources, turns=turns, shift=shift, floor=floor
    )


def _replaced(before: Conversation, after: Conversation) -> Notice:
    same = after.common_prefix(before)
    return Notice(
        "history_replaced",
        "the prompt's conversation replaces the session's: of"
        f" {counted(len(before), 'message')} the first {same} are kept, and"
        f" {len(after) - same} others follow",
        f"conversation[{same}]",
    )


def _merged(turns: Conversation, history: Conversation, answered: Conversation) -> Conversation:
    same = turns.common_prefix(history)
    if same == len(history):
        return history.append(*turns[same:]) if same < len(turns) else history
    reached = len(answered) if history.extends(answered) else len(history)
    if same == len(turns) and same >= reached:
        return history
    pending = history[reached:]
    if not pending or _ends_with(turns, pending):
        return turns
    _check_calls(turns, pending)
    return turns.append(*pending)


def _ends_with(turns: Conversation, pending: tuple[Message, ...]) -> bool:
    last = turns[max(0, len(turns) - len(pending)) :]
    return len(last) == len(pending) and all(
        mine.same_content(theirs) for mine, theirs in zip(last, pending, strict=True)
    )


def _check_calls(turns: Conversation, pending: tuple[Message, ...]) -> None:
    """Tool results need the calls that they answer."""
    results = [part for message in pending for part in message.parts]
    wanted = {part.call_id for part in results if isinstance(part, ToolResult)}
    if not wanted:
        return
    calls = {part.id for message in turns for part in message.parts if isinstance(part, ToolCall)}
    missing = sorted(wanted - calls)
    if missing:
        raise InvalidRequest(
            f"its conversation lacks the tool call {missing[0]!r}, whose result is to be sent;"
            " return the history with the call in it (save= is given every message), or no"
            " conversation at all",
            path="prompt",
        )


class _HistoryIds:
    """Maps ids of messages in the app's conversation to ids in the history."""

    def __init__(self, history: Conversation, brought: PromptMemory | None) -> None:
        self._history = history
        self._brought = brought
        self.turns = history if brought is None else brought.turns
        self._indexes: dict[str, int] = {}
        """By id, for the messages after the first `_unread`; the last one if an id occurs twice."""
        self._unread = len(self.turns)

    def at(self, index: int) -> str | None:
        """The history's id of the message at this index; None if it no longer has the message."""
        brought = self._brought
        position = index if brought is None else index + brought.shift
        if brought is not None and not brought.floor <= position < len(self._history):
            return None
        return self._history[position].id

    def of(self, name: str) -> str:
        """The history's id of a message; the same id if the message is unknown."""
        brought = self._brought
        if brought is None or (brought.turns.shares(self._history) and not brought.shift):
            return name
        while name not in self._indexes and self._unread:
            # From the end, as far as needed: boundaries and marks are mostly near the end.
            self._unread -= 1
            self._indexes.setdefault(brought.turns[self._unread].id, self._unread)
        index = self._indexes.get(name)
        return name if index is None else self.at(index) or name


def _boundary(frozen: int | str | None, ids: _HistoryIds, memory: PromptMemory) -> str | None:
    before = memory.boundary
    if before is not None and frozen == before[1]:
        return before[0]
    if frozen is None:
        return None
    if isinstance(frozen, str):
        return ids.of(frozen)
    length = max(0, min(frozen, len(ids.turns)))
    name = ids.at(length - 1) if length else None
    return before[0] if name is None and before is not None else name


def _cache(cache: PromptCachePlan, boundary: str | None, ids: _HistoryIds) -> PromptCachePlan:
    if not cache.marks and boundary == cache.frozen_through:
        return cache
    marks = tuple(
        msgspec.structs.replace(mark, message_id=ids.of(mark.message_id))
        if isinstance(mark, PartMark)
        else mark
        for mark in cache.marks
    )
    return msgspec.structs.replace(cache, marks=marks, frozen_through=boundary)


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
