"""Parts to items, and the glue between them.

A message's content stays open: the chunks of its parts follow each other, and whatever comes next
closes it first. So does the output of a tool. Calls, reasoning and everything we only carry along
are closed items, a chunk each. A chunk's glue depends on nothing but the state before it, and
messages are never merged: that is what makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Addition, Kind
from anaphora.values import (
    Message,
    Notice,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.wire.fields import UNREADABLE, Fields, bad_request
from anaphora.wire.foreign import tell_foreign

from .content import INPUT, ITEM, OUTPUT, WIRE, Notices, closing, is_content, markable, members
from .content import opaque as carried
from .traits import Traits

#: The state of a log that ends with a closed item. Otherwise it is the role of the open one.
CLOSED = "item"
CLOSE_ITEM = b"]}"

_ROLES: dict[str, Role] = {
    "user": "user",
    "tool": "user",
    "assistant": "assistant",
    "system": "system",
}


class Said(msgspec.Struct, frozen=True):
    """One part as the wire says it."""

    kind: Kind
    data: bytes
    content: bool = False
    """Belongs into a message; everything else is an item of its own."""
    open: bool = False
    """An item whose content is still open at the end of `data`."""
    markable: bool = False


def say(part: Any, role: Role, easy: bool, notices: Notices) -> Said | None:
    """A part of a message of that role. `easy`: the assistant's text may be a message by itself."""
    if isinstance(part, ToolCall):
        return Said(Kind.TOOL_CALL, function_call(part))
    if isinstance(part, ToolResult):
        data, last = function_call_output(part, notices), last_said(part)
        ends = last is not None and markable(as_parts(part)[last])
        return Said(Kind.TOOL_RESULT, data, open=True, markable=ends)
    if isinstance(part, Thinking):
        thought = reasoning(part, notices)
        return None if thought is None else Said(Kind.THINKING, thought)
    if isinstance(part, Opaque) and not is_content(part.kind):
        item = carried(part, notices)
        return None if item is None else Said(Kind.OTHER, item)
    if type(part) not in INPUT:
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    if role != "assistant":
        kind, render = INPUT[type(part)]
        data_or_none = render(part, notices)
        if data_or_none is None:
            return None
        return Said(kind, data_or_none, content=True, markable=markable(part))
    if easy and isinstance(part, Text | Refusal):
        if isinstance(part, Refusal):
            notices.append(
                Notice("refusal_as_text", "a refusal without an item of OpenAI's is sent as text")
            )
        return Said(Kind.TEXT, easy_message(part))
    kind, render = OUTPUT[type(part)]
    data_or_none = render(part, notices)
    return None if data_or_none is None else Said(kind, data_or_none, content=True)


def is_said(part: Any, role: Role) -> bool:
    """Whether a part is said at all."""
    return say(part, role, False, []) is not None


def easy_message(part: Text | Refusal) -> bytes:
    """What an assistant said that no item of OpenAI's is known for: the types ask for an id and
    annotations in the full form, and for plain text in this one."""
    fields = members(part.extras, ITEM)
    more = b"," + fields if fields else b""
    return (
        b'{"type":"message","role":"assistant"' + more + b',"content":' + string(part.text) + b"}"
    )


def is_easy(message: Message, at: int, inside: bool) -> bool:
    """Whether a part is text of the assistant's that stands alone and has no id to keep."""
    part = message.parts[at]
    if message.role != "assistant" or not isinstance(part, Text | Refusal):
        return False
    extras = part.extras or {}
    if WIRE in extras:
        return False
    if ITEM not in extras:
        return not inside
    if isinstance(part, Refusal):
        return False
    alone = at + 1 == len(message.parts) or not goes_on(message.parts[at + 1])
    return alone and not Fields(extras[ITEM], "extras", bad_request).known_text("id")


def goes_on(part: Part) -> bool:
    """Whether a part belongs into the message item that is open before it."""
    if isinstance(part, Opaque):
        return is_content(part.kind)
    if isinstance(part, ToolCall | ToolResult | Thinking):
        return False
    return ITEM not in (part.extras or ())


def function_call(part: ToolCall) -> bytes:
    try:
        arguments = string(part.arguments)
    except InvalidRequest as problem:
        raise problem.within("arguments") from None
    return (
        b'{"type":"function_call","call_id":'
        + string(part.id)
        + b',"name":'
        + string(part.name)
        + b',"arguments":'
        + arguments
        + closing(part.extras)
    )


def function_call_output(part: ToolResult, notices: Notices) -> bytes:
    """All but the closing brackets."""
    if part.error:
        notices.append(
            Notice("error_unsupported", "OpenAI has no error flag on tool outputs; left out")
        )
    said = [data for data in _output(as_parts(part), notices) if data is not None]
    return _output_opening(part) + b",".join(said)


def as_parts(part: ToolResult) -> tuple[ResultPart, ...]:
    return (Text(part.content),) if isinstance(part.content, str) else part.content


def last_said(part: ToolResult) -> int | None:
    """The part that a tool's output ends with, which is where the chunk's own breakpoint goes."""
    said = _output(as_parts(part), [])
    return next((at for at in reversed(range(len(said))) if said[at] is not None), None)


def nested_splice(part: ToolResult, index: int) -> int | None:
    """Where in the output of a tool a breakpoint for its part `index` goes."""
    inner = as_parts(part)
    if not 0 <= index < len(inner) or not markable(inner[index]):
        return None
    *_, last = said = _output(inner[: index + 1], [])
    if last is None:
        return None
    before = b",".join(data for data in said if data is not None)
    return len(_output_opening(part)) + len(before) - 1


def reasoning(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider != WIRE:
        whose = f"signed by {part.provider}" if part.provider else "of unknown origin"
        notices.append(
            Notice("foreign_thinking", f"reasoning {whose} means nothing to OpenAI; left out")
        )
        return None
    return reasoning_item(part)


def reasoning_item(part: Thinking, default_id: str | None = None) -> bytes:
    """The reasoning as it came; without the summary that came with it, its text is one."""
    kept = members(part.extras, WIRE)
    try:
        known = msgspec.json.decode(b"{" + kept + b"}", type=_Reasoning)
    except UNREADABLE as problem:
        raise InvalidRequest(str(problem), path="extras") from None
    said = b""
    if known.id is None and default_id is not None:
        said += b',"id":' + string(default_id)
    if kept:
        said += b"," + kept
    if known.summary is None:
        texts = b'{"type":"summary_text","text":' + string(part.text) + b"}" if part.text else b""
        said += b',"summary":[' + texts + b"]"
    if part.data is not None:
        said += b',"encrypted_content":' + string(part.data)
    return b'{"type":"reasoning"' + said + b"}"


class _Reasoning(msgspec.Struct, frozen=True):
    id: str | None = None
    summary: list[msgspec.Raw] | None = None


def message_opening(role: str, fields: bytes = b"") -> bytes:
    """A message up to its first part."""
    more = b"," + fields if fields else b""
    return b'{"type":"message","role":"' + role.encode() + b'"' + more + b',"content":['


def glue(state: str | None) -> bytes:
    """What stands between the end of a log and the next item."""
    if state is None:
        return b""
    return b"," if state == CLOSED else CLOSE_ITEM + b","


def add_messages(
    to: Addition, messages: Sequence[Message], state: str | None, where: str, traits: Traits
) -> None:
    """The chunks of these messages. `state` is the role of the item the log ends inside, `CLOSED`,
    or None when nothing stands in it yet."""
    said: list[Notice] = []
    for message in messages:
        place = f"{where}[{to.first_message + len(to.ids)}]"
        role = _ROLES.get(message.role)
        if role is None:
            raise InvalidRequest(
                f"{message.role!r} is not a role; use system, user, assistant or tool",
                path=f"{place}.role",
            )
        inside = False
        for at, part in enumerate(message.parts):
            begins = ITEM in (getattr(part, "extras", None) or ())
            try:
                spoken = say(part, role, is_easy(message, at, inside), said)
                if spoken is not None and spoken.content and (begins or not inside):
                    fields = members(getattr(part, "extras", None), ITEM)
            except InvalidRequest as problem:
                raise problem.within(f"{place}.parts[{at}]") from None
            if said:
                _note(to, said, f"{place}.parts[{at}]")
                said = []
            if spoken is None:
                continue
            if not spoken.content:
                data = glue(state) + spoken.data
                state, inside = "user" if spoken.open else CLOSED, False
                to.open(state)
            elif begins or not inside:
                name = traits.system_role if role == "system" else role
                data = glue(state) + message_opening(name, fields) + spoken.data
                state, inside = role, True
                to.open(state)
            else:
                data = b"," + spoken.data
            to.chunk(spoken.kind, data, -1 if spoken.markable and traits.explicit else None)
        if not message.parts:
            to.notice(Notice("empty_message", "a message without parts is left out", place))
        tell_foreign(to, message, WIRE, place)
        to.end_message(message.id)


def _output_opening(part: ToolResult) -> bytes:
    more = members(part.extras, WIRE)
    return (
        b'{"type":"function_call_output","call_id":'
        + string(part.call_id)
        + (b"," + more if more else b"")
        + b',"output":['
    )


def _output(parts: Sequence[ResultPart], notices: Notices) -> list[bytes | None]:
    said: list[bytes | None] = []
    for index, part in enumerate(parts):
        if type(part) not in INPUT:
            raise InvalidRequest(
                f"{type(part).__name__} may not stand inside a tool result",
                path=f"content[{index}]",
            )
        try:
            said.append(INPUT[type(part)][1](part, notices))
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
    return said


def _note(to: Addition, said: list[Notice], place: str) -> None:
    for notice in said:
        path = f"{place}.{notice.path}" if notice.path else place
        to.notice(msgspec.structs.replace(notice, path=path))
