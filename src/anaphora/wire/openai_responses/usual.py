"""Messages of the usual kind, said in one go: texts, calls, results.

Nothing came along with them and nothing of them can be lost, so there is nothing to notice either.
Most conversations hold nothing else; every other message takes the way of `say`, which says these
the same.
"""

from __future__ import annotations

from typing import TypeAlias

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import Message, Text, ToolCall, ToolResult

from .items import CLOSED, easy_message, function_call, message_opening
from .results import output_opening
from .traits import Traits

#: Looked up once: a member of an enum is found slowly.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT

_INPUT_TEXT = b'{"type":"input_text","text":'
_OPENING = {
    role: message_opening(role) + _INPUT_TEXT
    for role in ("user", "assistant", "system", "developer")
}

#: The state of the log inside a message of each role.
_STATES = {"user": "user", "tool": "user", "assistant": "assistant", "system": "system"}

#: An item in one chunk: the state after it, what it is, its bytes without the glue before them, and
#: whether it may be marked.
Usual: TypeAlias = tuple[str, Kind, bytes, bool]


def say_usual(message: Message, traits: Traits) -> list[Usual] | None:
    """The items of a message, where all of them are of the usual kind; else None. What cannot be
    said at all is for the other way to refuse, with its path."""
    try:
        return _items(message, traits)
    except InvalidRequest:
        return None


def _items(message: Message, traits: Traits) -> list[Usual] | None:
    state = _STATES.get(message.role)
    if state is None:
        return None
    opening = _OPENING.get(traits.system_role if state == "system" else state)
    if opening is None:
        return None
    items: list[Usual] = []
    inside = False
    for part in message.parts:
        if type(part) is Text:
            if part.extras is not None or inside:
                return None
            if state == "assistant":
                items.append((CLOSED, _TEXT, easy_message(part), False))
                continue
            said, inside = opening + string(part.text) + b"}", True
            items.append((state, _TEXT, said, bool(part.text)))
        elif type(part) is ToolCall and part.extras is None:
            items.append((CLOSED, _CALL, function_call(part), False))
            inside = False
        elif type(part) is ToolResult:
            content = part.content
            if part.error or part.extras is not None or not isinstance(content, str):
                return None
            said = output_opening(part) + _INPUT_TEXT + string(content) + b"}"
            items.append(("user", _RESULT, said, bool(content)))
            inside = False
        else:
            return None
    return items or None
