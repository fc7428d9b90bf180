"""Parts to items, and the glue between them.

A message's content stays open: the chunks of its parts follow each other, and whatever comes next
closes it first. So does the output of a tool. Calls, reasoning and everything we only carry along
are closed items, a chunk each.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import (
    Message,
    Notice,
    Opaque,
    Part,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

from .content import INPUT, ITEM, OUTPUT, WIRE, Notices, closing, is_content, markable, members
from .content import opaque as carried
from .results import function_call_output

#: The state of a log that ends with a closed item. Otherwise it is the role of the open one.
CLOSED = "item"
CLOSE_ITEM = b"]}"


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
        data, ends = function_call_output(part, notices)
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
    return alone and not Fields(extras[ITEM], "extras", request_error).known_text("id")


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
    except DECODE_ERRORS as problem:
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
