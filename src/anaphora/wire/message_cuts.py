"""Where the messages of a body are, and after which of them it can be cut in two.

A cut stands after a message that is not the assistant's, since parsing may join what the assistant
says in successive items; and where nothing that is parsed later depends on what is before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from anaphora.prompt import Call, PromptBlock
from anaphora.values import Message, ToolCall, ToolResult

from .reading import decode_elements, decode_members, request_error

#: What a message and a part take in memory besides their text, about.
_MESSAGE_BYTES, _PART_BYTES = 150, 200

_BLANK = b" \t\n\r"
_MOST_BLANK = 256
_OPENING = re.compile(rb"[ \t\n\r]*+\{")
_KEY = re.compile(rb'[ \t\n\r]*+"(?:[^"\\]|\\.)*+"[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_AFTER = re.compile(rb"[ \t\n\r]*+([,}])")
#: What makes the characters of a text take four bytes: escapes, and the first byte of a character.
_WIDE = re.compile(rb"\\u[dD][89abAB]|[\xf0-\xf4]")


class CutPlace(NamedTuple):
    """A place for a cut, in the bytes and the call of a body."""

    end: int
    """The offset after the message before it."""
    messages: int
    """How many messages of the call are before it."""
    size: int
    """The memory that these take, about."""


class MessageList(msgspec.Struct, frozen=True, eq=False):
    """The messages of a body."""

    begin: int
    """The offset of the list."""
    elements: list[msgspec.Raw]
    ends: Iterator[int]
    """The offsets after the elements, the last one first."""


def message_list(body: bytes, name: str) -> MessageList | None:
    """The list in that member of a body; None if it is none, or a member is given twice."""
    members = decode_members(body)
    opening = _OPENING.match(body)
    begin = -1
    at, closed = 0 if opening is None else opening.end(), not members
    for key, raw in members.items():
        found = _KEY.match(body, at)
        if closed or found is None or not body.startswith(raw, found.end()):
            return None
        after = _AFTER.match(body, found.end() + memoryview(raw).nbytes)
        if after is None:
            return None
        if key == name:
            begin = found.end()
        at, closed = after.end(), after[1] == b"}"
    if not closed or begin < 0 or body[begin : begin + 1] != b"[":
        return None
    elements = decode_elements(members[name])
    ends = _ends(body, begin + memoryview(members[name]).nbytes - 1, elements)
    return MessageList(begin, elements, ends)


def _ends(body: bytes, end: int, elements: list[msgspec.Raw]) -> Iterator[int]:
    """The offsets after these elements, the last one first; `end` is that of the list's bracket.
    Fewer if there is much white space between elements."""
    for raw in reversed(elements):
        end = _last_of(body, end)
        if end < 0:
            return
        yield end
        comma = _last_of(body, end - memoryview(raw).nbytes)
        if comma < 0:
            return
        end = comma - 1


def _last_of(body: bytes, end: int) -> int:
    """The offset after the last byte before `end` that is not blank; -1 if it is far."""
    start = max(0, end - _MOST_BLANK)
    found = len(body[start:end].rstrip(_BLANK))
    return start + found if found else -1


def cut_places(
    base: str, listed: MessageList, messages: Sequence[Message], most: int
) -> tuple[list[CutPlace], int]:
    """The last places for cuts among messages, which were parsed from those of a list, and the
    memory that the messages take, about. `base` is the wire."""
    texts = [0, *accumulate(map(_text_size, listed.elements))]
    parts = [0, *accumulate(map(_parts_size, messages))]
    elements, count = listed.elements, len(messages)
    items, places = base == "openai_responses", list[CutPlace]()
    settled = _settled(messages) if base == "gemini" else None
    if items and len(elements) == 1 and messages[0].role == "system":
        count = 0  # before other items it is the system prompt
    for index, end in zip(range(len(elements) - 1, -1, -1), listed.ends, strict=False):
        if not count or len(places) == most:
            break
        is_answer = messages[count - 1].role == "assistant"
        if not is_answer and (settled is None or settled[count - 1]):
            places.append(CutPlace(end, count, texts[index + 1] + parts[count]))
        if not (items and is_answer and index and _is_answer(elements[index - 1])):
            count -= 1
    return places[::-1], texts[-1] + parts[-1]


def _is_answer(item: msgspec.Raw) -> bool:
    """Whether an item of Responses is the assistant's: successive ones are one message."""
    from .openai_responses.reply import ItemReader

    return ItemReader("$", request_error).read(item)[0] == "assistant"


def _settled(messages: Sequence[Message]) -> list[bool]:
    """Whether each call of Gemini that has no id has its result after each message: which call a
    later result is for depends on those that wait."""
    settled, waiting = list[bool](), set[str]()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolCall and _has_made_id(part):
                waiting.add(part.id)
            elif type(part) is ToolResult and _has_made_id(part):
                waiting.discard(part.call_id)
        settled.append(not waiting)
    return settled


def _has_made_id(part: ToolCall | ToolResult) -> bool:
    return part.extras is not None and '"id":null' in part.extras.get("gemini.form", "")


def depends_on(base: str, call: Call) -> tuple[object, ...]:
    """What the parsed messages of a call depend on besides their own bytes: with instructions, or
    after a stored response, a system message is no system prompt; marks have a default TTL."""
    if base != "openai_responses":
        return (False,)
    ir = call.ir
    blocks = ir.all_system_blocks()
    given = bool(blocks) and blocks[0].label == "instructions"
    return given, ir.continuation is None, ir.cache.automatic


def blocks_in_messages(base: str, call: Call) -> tuple[PromptBlock, ...]:
    """The system prompt of a call, if it was a message."""
    blocks = call.ir.all_system_blocks()
    if base == "openai_chat" or (base == "openai_responses" and not depends_on(base, call)[0]):
        return blocks
    return ()


def _text_size(raw: msgspec.Raw) -> int:
    """The most that the texts of an element take: a text has one, two or four bytes for each of its
    characters."""
    data = bytes(raw)
    if data.isascii() and b"\\u" not in data:
        return len(data)
    return len(data) * (4 if _WIDE.search(data) else 2)


def _parts_size(message: Message) -> int:
    """What a message takes besides its texts."""
    count = len(message.parts)
    for part in message.parts:
        if type(part) is ToolResult and type(part.content) is tuple:
            count += len(part.content)
    return _MESSAGE_BYTES + count * _PART_BYTES
