"""Parts as the items of an answer: what write_reply and the stream writer share.

An answer that came over this wire is said again as it came. Another provider's gets what the types
ask for: ids made from the answer's, a status, empty annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from anaphora.canonical import string
from anaphora.values import Notice, Opaque, Part, Refusal, Text, Thinking, ToolCall, ToolResult

from .content import ITEM, OUTPUT, WIRE, Notices, is_content, members
from .items import (
    CLOSE_ITEM,
    function_call,
    goes_on,
    message_opening,
    reasoning_item,
)
from .items import reasoning as own_reasoning
from .results import function_call_output


def output_items(parts: Sequence[Part], reply_id: str, notices: Notices) -> list[bytes]:
    """The items that say these parts."""
    items: list[bytes] = []
    for group in grouped(parts):
        if in_message(group[0]):
            item = message_item(group, item_id("msg", reply_id, len(items)), notices)
        else:
            item = single_item(group[0], reply_id, len(items), notices)
        if item is not None:
            items.append(item)
    return items


def grouped(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts of one item each. Text goes on in the message before it unless it says that it
    begins one."""
    group: list[Part] = []
    for part in parts:
        if group and in_message(group[-1]) and goes_on(part):
            group.append(part)
            continue
        if group:
            yield group
        group = [part]
    if group:
        yield group


def in_message(part: Part) -> bool:
    """Whether a part stands in a message item."""
    if isinstance(part, Opaque):
        return is_content(part.kind)
    return not isinstance(part, ToolCall | ToolResult | Thinking)


def begins_item(part: Part) -> bool:
    extras = None if isinstance(part, Opaque) else part.extras
    return extras is not None and ITEM in extras


def message_item(group: Sequence[Part], default_id: str, notices: Notices) -> bytes | None:
    content = [said for part in group if (said := content_part(part, notices)) is not None]
    if not content:
        return None
    opening = message_opening("assistant", item_fields(group[0], default_id))
    return opening + b",".join(content) + CLOSE_ITEM


def item_fields(part: Part, default_id: str, status: bytes = b"completed") -> bytes:
    """The fields of the message item a part begins."""
    if begins_item(part):
        return members(None if isinstance(part, Opaque) else part.extras, ITEM)
    return b'"id":' + string(default_id) + b',"status":"' + status + b'"'


def content_part(part: Part, notices: Notices) -> bytes | None:
    if isinstance(part, Text) and WIRE not in (part.extras or ()):
        return b'{"type":"output_text","text":' + string(part.text) + b',"annotations":[]}'
    if isinstance(part, Text | Refusal):
        # The item's own fields are said around it.
        part = msgspec.structs.replace(part, extras=_own(part))
    return OUTPUT[type(part)][1](part, notices)


def single_item(part: Part, reply_id: str, index: int, notices: Notices) -> bytes | None:
    """A part that is an item by itself."""
    if isinstance(part, ToolCall):
        item = function_call(part)
        if members(part.extras, WIRE):
            return item
        made = item_id("fc", reply_id, index)
        return item[:-1] + b',"id":' + string(made) + b',"status":"completed"}'
    if isinstance(part, ToolResult):
        return function_call_output(part, notices)[0] + CLOSE_ITEM
    if isinstance(part, Thinking):
        return thinking_item(part, item_id("rs", reply_id, index), notices)
    return OUTPUT[type(part)][1](part, notices)


def thinking_item(part: Thinking, default_id: str, notices: Notices) -> bytes | None:
    """Reasoning; another provider's as a summary, without what proves it."""
    if part.provider == WIRE:
        return own_reasoning(part, notices)
    notices.append(
        Notice("foreign_thinking", "reasoning of another provider is said as a summary, unsigned")
    )
    return reasoning_item(Thinking(part.text), default_id) if part.text else None


def item_id(prefix: str, reply_id: str, index: int) -> str:
    return f"{prefix}_{reply_id.removeprefix('resp_')}_{index}"


def identified(part: Part, own_id: str) -> Part:
    """The part with that id for its item, where it has another one."""
    if isinstance(part, Opaque | ToolResult):
        return part
    key = ITEM if in_message(part) else WIRE
    extras = part.extras or {}
    if key not in extras:
        return part
    fields = msgspec.json.decode(extras[key], type=dict[str, msgspec.Raw])
    if "id" not in fields or fields["id"] == string(own_id):
        return part
    fields["id"] = msgspec.Raw(string(own_id))
    return msgspec.structs.replace(
        part, extras={**extras, key: msgspec.json.encode(fields).decode()}
    )


def _own(part: Text | Refusal) -> dict[str, str] | None:
    return {WIRE: part.extras[WIRE]} if part.extras and WIRE in part.extras else None
