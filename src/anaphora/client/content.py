"""The content of a turn as messages, and the tools that are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, get_args

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.tools import ToolRegistry
from anaphora.values import (
    AnyTool,
    Message,
    MessageLike,
    Part,
    Text,
    ToolResult,
)
from anaphora.wire.message_dicts import read_message, read_part

_PARTS = get_args(Part)
_CONTENT = "a text, a part, a message or a dict"
_BINARY: tuple[type, ...] = (bytes, bytearray, memoryview)

Content: TypeAlias = str | Part | MessageLike | Iterable["str | Part | MessageLike"]
"""The content of a turn: a text, a part, a message, or several of them. Messages and parts may be
dictionaries in the format of the OpenAI and Anthropic SDKs."""


def wrong_type(wanted: str, value: object, path: str) -> InvalidRequest:
    return InvalidRequest(f"must be {wanted}, not {type(value).__name__}", path=path)


def messages_of(content: Content | None) -> tuple[Message, ...]:
    """Consecutive texts and parts become one user message; tool results become messages of their
    own."""
    if content is None:
        return ()
    if isinstance(content, str):
        if not content or content.isspace():
            raise _empty(content)
        return (Message.user(content),)
    if isinstance(content, Message):
        return _with_content((content,))
    if isinstance(content, Mapping):
        if "role" in content:
            return _with_content((read_message(content, "message"),))
        content = (content,)
    elif isinstance(content, _PARTS):
        content = (content,)
    if isinstance(content, _BINARY) or not isinstance(content, Iterable):
        raise wrong_type(_CONTENT, content, "content")
    messages: list[Message] = []
    parts: list[Part] = []

    def close() -> None:
        if parts:
            messages.append(Message(role="user", parts=tuple(parts)))
            parts.clear()

    for index, item in enumerate(content):
        if isinstance(item, Message):
            close()
            messages.append(item)
        elif isinstance(item, ToolResult):
            close()
            messages.append(Message(role="tool", parts=(item,)))
        elif isinstance(item, str):
            parts.append(Text(item))
        elif isinstance(item, _PARTS):
            parts.append(item)
        elif isinstance(item, Mapping) and "type" in item and "role" not in item:
            parts.append(read_part(item, f"content[{index}]"))
        elif isinstance(item, Mapping) or hasattr(item, "model_dump"):
            close()
            messages.append(read_message(item, f"messages[{index}]"))
        else:
            raise wrong_type(_CONTENT, item, f"content[{index}]")
    close()
    return _with_content(tuple(messages))


def _with_content(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        for part in message.parts:
            if not isinstance(part, Text) or (part.text and not part.text.isspace()):
                return messages
    raise _empty([])


def _empty(content: object) -> InvalidRequest:
    what = "is blank" if content else "is empty"
    return InvalidRequest(f"{what}; providers refuse a message without content", path="content")


class FixedTools(msgspec.Struct, frozen=True, eq=False):
    current: tuple[AnyTool, ...] = ()


class ToolSet(msgspec.Struct, frozen=True, eq=False):
    """The tools of a call, and the registry that runs them, if there is one."""

    source: FixedTools | ToolRegistry = FixedTools()
    """Its `current` tools are sent."""
    registry: ToolRegistry | None = None
