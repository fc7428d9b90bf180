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
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
)

Follows: TypeAlias = Callable[[Part, Role], bool | None]
"""Whether a part of a message of that role is something that may follow reasoning; None where it
does not reach the wire."""

LEFT_OUT = Notice(
    "unfinished_thinking",
    "the answer was cut off inside its reasoning, which is refused without what follows it;"
    " left out",
)


class Followed:
    """Whether the assistant goes on behind its reasoning: in the same message, or in the messages
    after it before another role speaks. Reasoning is asked about in order, so each part is looked
    at once, however many messages in a row are nothing but reasoning."""

    __slots__ = ("_follows", "_found", "_messages", "_until")

    def __init__(self, messages: Sequence[Message], follows: Follows) -> None:
        self._messages = messages
        self._follows = follows
        self._until = -1, -1
        """The part that decided the last answer: the same one decides for all before it."""
        self._found = False

    def __call__(self, index: int, at: int) -> bool:
        """For the reasoning that is part `at` of message `index`."""
        if (index, at) >= self._until:
            self._until, self._found = self._look(index, at)
        return self._found

    def _look(self, index: int, at: int) -> tuple[tuple[int, int], bool]:
        for place in range(index, len(self._messages)):
            message = self._messages[place]
            for which in range(at + 1, len(message.parts)):
                part = message.parts[which]
                found = None if isinstance(part, Thinking) else self._follows(part, message.role)
                if found is not None:
                    return (place, which), found
            at = -1
        return (len(self._messages), 0), False


def settled(messages: Conversation, shared: int) -> int:
    """How many of the shared messages keep their bytes: reasoning that had been left out at their
    end is sent if the assistant goes on in the messages that are new."""
    if shared < len(messages):
        while shared and not _decides(messages[shared - 1]):
            shared -= 1
    return shared


def _decides(message: Message) -> bool:
    """Whether a message ends with something that settles the reasoning before it. Reasoning does
    not, nor does what may not reach the wire."""
    for part in reversed(message.parts):
        if isinstance(part, Thinking):
            return False
        if isinstance(part, Opaque) or (isinstance(part, Text) and not part.text.strip()):
            continue
        return True
    return False
