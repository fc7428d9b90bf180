"""Messages of the usual kind, said in one go: a text, a text and calls, a result.

Nothing came along with them and nothing of them can be lost, so there is nothing to notice either.
Most conversations hold nothing else; every other message takes the way of `lay_out`, which says
these the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import Message, Part, Text, ToolCall, ToolResult

from .assistant import tool_call
from .facts import Facts

#: Looked up once: a member of an enum is found slowly.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT

_SAYS = b',"content":[{"type":"text","text":'
_OPENING = {
    role: b'{"role":"%b"' % role.encode() + _SAYS
    for role in ("user", "assistant", "system", "developer")
}


#: The one chunk of a message: its wire role, what it is, its bytes without the glue before them,
#: and whether it may be marked.
Usual: TypeAlias = tuple[str, Kind, bytes, bool]


def say_usual(message: Message, facts: Facts) -> Usual | None:
    """The message, where it is of the usual kind; None for every other. What cannot be said at all
    is for the other way to refuse, with its path."""
    parts = message.parts
    try:
        if message.role == "assistant":
            return _assistant(parts, facts)
        return _other(message.role, parts[0], facts) if len(parts) == 1 else None
    except InvalidRequest:
        return None


def _assistant(parts: Sequence[Part], facts: Facts) -> Usual | None:
    if not parts:
        return None
    first = parts[0]
    if type(first) is Text:
        if first.extras is not None:
            return None
        said = _OPENING["assistant"] + string(first.text)
        if len(parts) == 1:
            return "assistant", _TEXT, said + b"}]}", False
        said, calls = said + b'}],"tool_calls":[', parts[1:]
    else:
        said, calls = b'{"role":"assistant","tool_calls":[', parts
    if facts.reasoning_needed:
        return None
    asked = []
    for part in calls:
        if type(part) is not ToolCall or part.extras is not None:
            return None
        asked.append(tool_call(part))
    return "assistant", _CALL, said + b",".join(asked) + b"]}", False


def _other(role: str, part: Part, facts: Facts) -> Usual | None:
    if type(part) is Text:
        if part.extras is not None or role not in ("user", "system"):
            return None
        wire_role = facts.system_role if role == "system" else role
        opening = _OPENING.get(wire_role)
        if opening is None:
            return None
        return wire_role, _TEXT, opening + string(part.text) + b"}", bool(part.text)
    if type(part) is not ToolResult or role not in ("tool", "user"):
        return None
    content = part.content
    if part.error or part.extras is not None or not isinstance(content, str):
        return None
    said = b'{"role":"tool","tool_call_id":' + string(part.call_id) + _SAYS + string(content)
    return "tool", _RESULT, said + b"}", bool(content)
