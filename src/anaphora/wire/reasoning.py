"""Reasoning at the end of a reply that was cut off before it contained anything else.

Providers reject such reasoning in requests: Anthropic takes no message that ends with a thinking
block, Responses no reasoning item without the item that follows it, Chat hosts no message without
content or calls. So it is left out, with a notice. The conversation keeps it.

Where the assistant continues in its next message, the reasoning is followed by that. Until then it
has no bytes in the prompt, so the prompt only grows when they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from anaphora.values import Message, Notice, Part, Role, Thinking

FollowCheck: TypeAlias = Callable[[Part, Role], bool | None]
"""Whether a part of a message of that role may follow reasoning; None where the part does not reach
the wire."""

UNFINISHED_REASONING = Notice(
    "unfinished_thinking",
    "the reply was cut off inside its reasoning, which is rejected without what follows it;"
    " left out",
)


class ReasoningFollowed:
    """Whether the assistant continues after its reasoning: in the same message, or in the messages
    after it before another role. Calls come in order, so each part is examined once."""

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
                if isinstance(candidate, Thinking):
                    continue
                followed = self._check(candidate, message.role)
                if followed is not None:
                    return (index, position), followed
            part = -1
        return (len(self._messages), 0), False
