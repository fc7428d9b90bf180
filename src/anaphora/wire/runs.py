"""Messages as runs of chunks, one for each segment; and reasoning that nothing follows.

A run continues the log of the same segment in the turn before, so that a turn costs what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from anaphora.prompt import Segment
from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import (
    Conversation,
    Message,
    Notice,
    Part,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

from .rendering import previous_run

#: Appends messages to a log, given the wire role before them.
AddMessages: TypeAlias = Callable[[LogAppend, Sequence[Message], str | None], None]


class RoleOf(str):
    """The role of a message that is not merged with its neighbours, and bytes of that message."""

    __slots__ = ("fields", "end")
    fields: bytes
    """Unknown fields, as members of an object."""
    end: bytes
    """The bytes that are left to write of it."""

    def __new__(cls, role: str, fields: bytes = b"", end: bytes = b"") -> RoleOf:
        made = super().__new__(cls, role)
        made.fields, made.end = fields, end
        return made


def message_runs(
    segments: Iterable[Segment],
    previous: Rendered | None,
    add: Callable[[Segment], AddMessages],
    *,
    opening: bytes,
    glue: Callable[[str], bytes],
    close: Callable[[str], bytes],
    first_message: int = 0,
    place: str = "",
    blocks: str = "content",
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run per segment, and the notices of its messages. `glue` and `close` take the wire role
    of the message before them; `first_message` is how many the body has before these."""
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for segment in segments:
        last = previous_run(previous, "messages", segment.role)
        log, count, more = extend_log(segment.messages, last, add(segment))
        notices += more
        if not count:
            continue
        if runs:
            opening = glue(runs[-1].last_role)
            first_message = runs[-1].position(runs[-1].count - 1)[0] + 1
        run = ChunkRun(
            "messages",
            log,
            count,
            role=segment.role,
            lead=opening,
            source=segment.messages,
            first_message=first_message,
            place=place,
            blocks=blocks,
        )
        runs.append(run)
    if runs:
        runs[-1] = msgspec.structs.replace(runs[-1], close=close(runs[-1].last_role))
    return runs, notices


def extend_log(
    messages: Conversation,
    last: ChunkRun | None,
    add: AddMessages,
    unchanged: Callable[[int], int] | None = None,
) -> tuple[ChunkLog, int, list[Notice]]:
    """A log that holds these messages, how many of its chunks they take, and their notices.

    Chunks of messages that begin the last turn, too, are kept, and only the rest is rendered.
    `unchanged` has how many of so many may keep their bytes if these depend on other messages.
    """
    count, shared = len(messages), 0
    if last is not None:
        shared = messages.common_prefix(last.source, ids=True)
        if last.log.contextual and unchanged is not None:
            shared = unchanged(shared)
        shared = settled_count(messages, shared, len(last.source))
    if last is None or not shared:
        append = LogAppend()
        add(append, messages[:], None)
        log = ChunkLog(append)
        end = len(log)
    else:
        log = last.log
        end = log.message_ends[shared - 1]
        if shared < count:
            role = log.role_of(end - 1) if end else None
            append = LogAppend(end, shared)
            add(append, messages[shared:], role)
            log = log.append(append)
            end = log.message_ends[count - 1]
    return log, end, [notice for index, notice in log.notices if index < count]


# ── Reasoning that nothing follows ────────────────────────────────────────────────────────────────
#
# A reply may be cut off inside its reasoning. Providers reject such reasoning in requests:
# Anthropic takes no message that ends with a thinking block, Responses no reasoning item without
# the item that follows it, Chat hosts no message without content or calls. So it is left out, with
# a notice; the conversation keeps it. If the assistant continues in its next message, that follows
# the reasoning, which is sent from then on: the prompt only grows by it.

_TEXTS, _DECIDING = (Text, Refusal), (ToolCall, ToolResult, Thinking)

FollowCheck: TypeAlias = Callable[[Part, Role], bool | None]
"""Whether a part of a message of that role may follow reasoning; None if the part does not reach
the wire."""

UNFINISHED_REASONING = Notice(
    "unfinished_thinking",
    "the reply was cut off inside its reasoning, which is rejected at the end of a reply; left out",
)


class ReasoningFollowed:
    """Whether the assistant continues after its reasoning: in the same message, or in the next
    messages before another role. Called in order, it examines each part once."""

    __slots__ = ("_check", "_decided_by", "_followed", "_messages")

    def __init__(self, messages: Sequence[Message], check: FollowCheck) -> None:
        self._messages = messages
        self._check = check
        self._decided_by = -1, -1
        """The part that decided the last call; it decides for all parts before it."""
        self._followed = False

    def __call__(self, message: int, part: int) -> bool:
        """For the reasoning at this position."""
        if (message, part) >= self._decided_by:
            self._decided_by, self._followed = self._find(message, part)
        return self._followed

    def _find(self, start: int, part: int) -> tuple[tuple[int, int], bool]:
        for index in range(start, len(self._messages)):
            message = self._messages[index]
            for position in range(part + 1, len(message.parts)):
                candidate = message.parts[position]
                if isinstance(candidate, Thinking) and message.role == "assistant":
                    continue
                followed = self._check(candidate, message.role)
                if followed is not None:
                    return (index, position), followed
            part = -1
        return (len(self._messages), 0), False


def settled_count(messages: Conversation, shared: int, before: int) -> int:
    """How many of the shared messages keep their bytes: reasoning at their end is sent if the
    assistant continues in the messages after them, which may be new or removed. `before` is how
    many messages the last turn had."""
    if shared < max(len(messages), before):
        while shared and not _settles_reasoning(messages[shared - 1]):
            shared -= 1
    return shared


def _settles_reasoning(message: Message) -> bool:
    """Whether a message ends with something that decides about the reasoning before it. Reasoning
    does not, nor do parts that may be left out."""
    for part in reversed(message.parts):
        if isinstance(part, _TEXTS):
            if part.text and not part.text.isspace():
                return True
        elif isinstance(part, _DECIDING):
            return not isinstance(part, Thinking)
    return False
