"""What a turn asks for: new messages, and how this one call differs from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.values import (
    Audio,
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

from .structured import Structured

Content: TypeAlias = str | Part | Message | Iterable["str | Part | Message"]
"""What somebody says: a text, a part, a message, or several of them."""

_PARTS = (Text, Image, Document, Audio, ToolCall, ToolResult, Thinking, Refusal, Opaque)


class Asked(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One turn."""

    messages: tuple[Message, ...]
    changes: dict[str, Any] = {}
    """Parameters of this call alone."""
    output: Structured[Any] | None = None
    """The form that the answer must have."""
    timeout: float | None = None
    prewarm: bool = False


def messages_of(content: Content | None) -> tuple[Message, ...]:
    """Texts and parts in a row are one message of the user's; tool results are messages of their
    own."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Message.user(content),)
    if isinstance(content, Message):
        return (content,)
    if isinstance(content, _PARTS):
        content = (content,)
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes | bytearray):
        # A mapping's keys are texts, too, and are not what somebody wants to say.
        raise InvalidRequest(f"a text, a part or a message, not {_named(content)}", path="content")
    said: list[Message] = []
    parts: list[Part] = []
    for index, item in enumerate(content):
        if isinstance(item, Message | ToolResult):
            _close(said, parts)
            said.append(item if isinstance(item, Message) else Message(role="tool", parts=(item,)))
        elif isinstance(item, str):
            parts.append(Text(item))
        elif isinstance(item, _PARTS):
            parts.append(item)
        else:
            raise InvalidRequest(
                f"a text, a part or a message, not {_named(item)}", path=f"content[{index}]"
            )
    _close(said, parts)
    return tuple(said)


def _close(said: list[Message], parts: list[Part]) -> None:
    if parts:
        said.append(Message(role="user", parts=tuple(parts)))
        parts.clear()


def _named(value: object) -> str:
    return type(value).__name__
