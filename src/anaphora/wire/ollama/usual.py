"""Messages with nothing unusual in them, which is nearly all of them: read in one pass."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from anaphora.values import Part, Role, Text, Thinking, ToolCall, ToolResult
from anaphora.wire.reading import DECODE_ERRORS

from .carried import WIRE, put_as
from .unanswered import Unanswered

#: Missing, which says the same.
NULL = Raw(b"null")


class Unusual(Exception):
    """To be read field by field."""


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: Raw = NULL
    index: int | None = None


class UsualCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    function: _Function
    id: str | None = None
    type: Literal["function"] = "function"


class _Message(msgspec.Struct, tag_field="role", frozen=True, forbid_unknown_fields=True, gc=False):
    """A message with no other fields than its usual ones."""


class System(_Message, tag="system", frozen=True, gc=False):
    content: str | None = None


class User(_Message, tag="user", frozen=True, gc=False):
    content: str | None = None


class Assistant(_Message, tag="assistant", frozen=True, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[UsualCall] | None = None


class Tool(_Message, tag="tool", frozen=True, gc=False):
    content: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


UsualMessage: TypeAlias = System | User | Assistant | Tool

_one = msgspec.json.Decoder(UsualMessage).decode

#: Who speaks, and what.
Read: TypeAlias = tuple[Role, tuple[Part, ...]]


def try_usual(raw: Raw, index: int, unanswered: Unanswered) -> Read | None:
    """The message at `index`, when it is a usual one."""
    try:
        return _read(_one(raw), index, unanswered)
    except (*DECODE_ERRORS, Unusual):
        return None


def _read(message: UsualMessage, index: int, unanswered: Unanswered) -> Read:
    if type(message) is User:
        return "user", (Text(message.content or ""),)
    if type(message) is Assistant:
        return "assistant", _spoken(message, index)
    if type(message) is Tool:
        return "tool", (_result(message, unanswered),)
    return "system", (Text(message.content or ""),)


def _spoken(message: Assistant, index: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    if message.thinking:
        parts.append(Thinking(message.thinking, provider=WIRE))
    if message.content or not (parts or message.tool_calls):
        parts.append(Text(message.content or ""))
    calls = enumerate(message.tool_calls or ())
    return (*parts, *(_call(call, f"call_{index}_{at}") for at, call in calls))


def _call(call: UsualCall, made_up: str) -> ToolCall:
    name, index = call.function.name, call.function.index
    extras = put_as((), index) if call.id else put_as(("id",), index)
    return ToolCall(call.id or made_up, name, arguments_of(call), extras)


def arguments_of(call: UsualCall) -> str:
    written = str(call.function.arguments, "utf-8")
    if written[0] == "{":
        return written
    if written == "null":
        return "{}"
    raise Unusual


def _result(message: Tool, unanswered: Unanswered) -> ToolResult:
    name, call_id = message.tool_name or None, message.tool_call_id
    unsaid = [field for field in ("tool_call_id", "tool_name") if not getattr(message, field)]
    if call_id:
        unanswered.answer(call_id)
    else:
        call_id = unanswered.first(name)
    return ToolResult(call_id, message.content or "", False, name, put_as(tuple(unsaid), None))
