"""Notices for extras of other wires, which are left out.

Extras are named after their wire. A name with a dot (`openai.system`) records a form of the wire
without any content, except for the fields of a Responses item. Ids, states and empty values give no
notice.
"""

from __future__ import annotations

from anaphora.prompt import Call
from anaphora.rendered import LogAppend
from anaphora.values import Extras, Message, Notice, Opaque, Part, Thinking, Tool, ToolResult

from .reading import DECODE_ERRORS, decode_members

#: Ids, states and positions that providers add to their output.
_BOOKKEEPING: dict[str, frozenset[str]] = {
    "openai_responses": frozenset({"id", "status"}),
    "openai_responses.item": frozenset({"id", "status", "phase"}),
    "openai_chat": frozenset({"index"}),
}

_EMPTY = (b"null", b"[]")


def foreign_extras(extras: Extras | None, wire: str, path: str) -> list[Notice]:
    """One notice for each other wire whose extras have content."""
    notices = []
    for name, text in (extras or {}).items():
        owner = name.partition(".")[0]
        if owner == wire or ("." in name and name not in _BOOKKEEPING):
            continue
        if fields := _field_names(name, text):
            place = f"{path}.{name}" if path else name
            notices.append(Notice("foreign_fields", f"{fields} of {owner}: left out", place))
    return notices


def foreign_sections(call: Call, wire: str) -> list[Notice]:
    """The notices for tools and system blocks."""
    notices: list[Notice] = []
    for index, tool in enumerate(call.tools):
        if type(tool) is Tool and tool.extras is not None:
            notices += foreign_extras(tool.extras, wire, f"tools[{index}].extras")
    for index, block in enumerate(call.ir.system_field_blocks()):
        if block.extras is not None:
            notices += foreign_extras(block.extras, wire, f"system[{index}].extras")
    return notices


def has_extras(part: Part) -> bool:
    """Whether a part, or a part inside it, may have extras; nearly none has."""
    if isinstance(part, ToolResult):
        return part.extras is not None or not isinstance(part.content, str)
    return getattr(part, "extras", None) is not None


def note_foreign_fields(append: LogAppend, message: Message, wire: str, place: str) -> None:
    """Adds the notices for the parts of the message that is being added."""
    for index, part in enumerate(message.parts):
        if has_extras(part):
            for notice in _part_notices(part, wire, f"{place}.parts[{index}]"):
                append.notice(notice)


def _part_notices(part: Part, wire: str, path: str) -> list[Notice]:
    if isinstance(part, Thinking | Opaque):
        return []  # left out as a whole, with a notice of its own
    notices = foreign_extras(part.extras, wire, f"{path}.extras")
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        for index, inner in enumerate(part.content):
            notices += _part_notices(inner, wire, f"{path}.content[{index}]")
    return notices


def _field_names(name: str, text: str) -> str:
    """The names of the fields with content."""
    try:
        members = decode_members(text)
    except DECODE_ERRORS:
        return "fields"
    known = _BOOKKEEPING.get(name, frozenset())
    return ", ".join(
        field for field, raw in members.items() if field not in known and bytes(raw) not in _EMPTY
    )
