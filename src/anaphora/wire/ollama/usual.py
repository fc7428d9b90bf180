"""Messages with nothing unusual in them, which is nearly all of them: read in one pass."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from anaphora.values import Part, Role, Text, Thinking, ToolCall, ToolResult
from anaphora.wire.fields import UNREADABLE, Fields

from .carried import WIRE

_Some: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw

    def __post_init__(self) -> None:
        if bytes(self.arguments)[:1] != b"{":
            raise ValueError("unusual")  # to be read field by field


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _Some
    function: _Function


class _Message(msgspec.Struct, tag_field="role", frozen=True, forbid_unknown_fields=True):
    """A message with all its usual fields and no others."""


class _System(_Message, tag="system", frozen=True):
    content: str


class _User(_Message, tag="user", frozen=True):
    content: str


class _Assistant(_Message, tag="assistant", frozen=True):
    content: str
    thinking: _Some | None = None
    tool_calls: list[_Call] | None = None


class _Tool(_Message, tag="tool", frozen=True):
    tool_name: _Some
    tool_call_id: _Some
    content: str


Usual: TypeAlias = _System | _User | _Assistant | _Tool

_one = msgspec.json.Decoder(Usual).decode

#: Who speaks, and what.
Read: TypeAlias = tuple[Role, tuple[Part, ...]]


def take_usual(fields: Fields) -> list[Read] | None:
    """All messages of a request, when they are usual ones; else they are left where they are."""
    usual = fields.known("messages", list[Usual])
    return None if usual is None else [_read(message) for message in usual]


def try_usual(raw: msgspec.Raw) -> Read | None:
    """One message, when it is a usual one."""
    try:
        return _read(_one(raw))
    except UNREADABLE:
        return None


def _read(message: Usual) -> Read:
    if type(message) is _User:
        return "user", (Text(message.content),)
    if type(message) is _Tool:
        result = ToolResult(message.tool_call_id, message.content, name=message.tool_name)
        return "tool", (result,)
    if type(message) is _Assistant:
        return "assistant", _spoken(message)
    return "system", (Text(message.content),)


def _spoken(message: _Assistant) -> tuple[Part, ...]:
    parts: list[Part] = []
    if message.thinking is not None:
        parts.append(Thinking(message.thinking, provider=WIRE))
    if message.content or not (parts or message.tool_calls):
        parts.append(Text(message.content))
    for call in message.tool_calls or ():
        function = call.function
        parts.append(ToolCall(call.id, function.name, str(function.arguments, "utf-8")))
    return tuple(parts)
