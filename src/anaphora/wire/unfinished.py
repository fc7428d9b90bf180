"""Reasoning that an answer ends with: it was cut off before it said or called anything.

Providers refuse such reasoning when it is sent back: Anthropic takes no message that ends with a
thinking block, Responses no reasoning item without the item that follows it, Chat hosts no message
without content or calls. So it is left out of requests, with a notice. The conversation keeps it.

Where the assistant goes on in its next message, the reasoning is followed by that. Until then it
has no bytes in the prompt, so the prompt only grows when they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from anaphora.values import (
    Conversation,
    Message,
    Notice,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

Follows: TypeAlias = Callable[[Part, Role], bool | None]
"""Whether a part of a message of that role is something that may follow reasoning; None where it
does not reach the wire."""

LEFT_OUT = Notice(
    "unfinished_thinking",
    "the answer was cut off inside its reasoning, which is refused without what follows it;"
    " left out",
)


def is_followed(messages: Sequence[Message], index: int, at: int, follows: Follows) -> bool:
    """Whether the assistant goes on behind the reasoning that is part `at` of a message: there, or
    in the messages after it before another role speaks."""
    for message in (messages[place] for place in range(index, len(messages))):
        for part in message.parts[at + 1 :]:
            found = None if isinstance(part, Thinking) else follows(part, message.role)
            if found is not None:
                return found
        at = -1
    return False


def settled(messages: Conversation, shared: int) -> int:
    """How many of the shared messages keep their bytes: reasoning that had been left out at their
    end is sent if the assistant goes on in the messages that are new."""
    if shared < len(messages):
        while shared and _may_be_unfinished(messages[shared - 1]):
            shared -= 1
    return shared


def _may_be_unfinished(message: Message) -> bool:
    """Whether a message may end in reasoning, whatever the wire says of its other parts."""
    for part in reversed(message.parts):
        if isinstance(part, Thinking):
            return True
        if isinstance(part, ToolCall | ToolResult) or (isinstance(part, Text) and part.text):
            return False
    return False
