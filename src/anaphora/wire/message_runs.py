"""Messages as runs, for wires that render each segment by itself; reasoning that nothing
follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from anaphora.prompt import Segment
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import Message, Notice, Part, Role, Thinking

from .rendering import AddMessages, extend_log, previous_run


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
        messages = segment.messages
        last = previous_run(previous, "messages", segment.role)
        shared = messages.common_prefix(last.source, ids=True) if last is not None else 0
        log, count = extend_log(messages, last, shared, add(segment))
        if log.notices:
            notices += [notice for index, notice in log.notices if index < len(messages)]
        if not count:
            continue
        lead = opening
        if runs:
            lead = glue(runs[-1].last_role)
            first_message = runs[-1].position(runs[-1].count - 1)[0] + 1
        runs.append(
            ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=messages,
                first_message=first_message,
                place=place,
                blocks=blocks,
            )
        )
    if runs:
        runs[-1] = msgspec.structs.replace(runs[-1], close=close(runs[-1].last_role))
    return runs, notices


# ── Reasoning that nothing follows ────────────────────────────────────────────────────────────────
#
# A reply may be cut off inside its reasoning. Providers reject such reasoning in requests:
# Anthropic takes no message that ends with a thinking block, Responses no reasoning item without
# the item that follows it, Chat hosts no message without content or calls. So it is left out, with
# a notice; the conversation keeps it. If the assistant continues in its next message, that follows
# the reasoning, which is sent from then on: the prompt only grows by it.

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
