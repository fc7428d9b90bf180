"""What came along from another wire and means nothing here: left out, and told by name.

Extras are named after the wire they belong to. A name with a dot (`openai.system`) says how a wire
had put something: nothing is lost with it, but for the fields of a Responses item. Of the others,
some are bookkeeping of their provider's, and empty ones say nothing; the rest gives a notice.
"""

from __future__ import annotations

import msgspec

from anaphora.prompt import Call
from anaphora.rendered import LogAppend
from anaphora.values import Extras, Message, Notice, Opaque, Part, Thinking, Tool, ToolResult

from .reading import DECODE_ERRORS

#: Ids, states and positions that providers give to what they have said.
_BOOKKEEPING: dict[str, frozenset[str]] = {
    "openai_responses": frozenset({"id", "status"}),
    "openai_responses.item": frozenset({"id", "status", "phase"}),
    "openai_chat": frozenset({"index"}),
}

_EMPTY = (b"null", b"[]")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def foreign_extras(extras: Extras | None, wire: str, path: str) -> list[Notice]:
    """One notice for every other wire that brought something."""
    if extras is None:
        return []
    told = []
    for name, text in extras.items():
        if name.partition(".")[0] == wire or ("." in name and name not in _BOOKKEEPING):
            continue
        if said := _said(name, text):
            where = f"{path}.{name}" if path else name
            whose = name.partition(".")[0]
            told.append(Notice("foreign_fields", f"{said} of {whose}: left out", where))
    return told


def foreign_sections(call: Call, wire: str) -> list[Notice]:
    """Of tools and system blocks. Asked at every turn, so what brought nothing costs nothing."""
    told: list[Notice] = []
    for index, tool in enumerate(call.tools):
        if type(tool) is Tool and tool.extras is not None:
            told += foreign_extras(tool.extras, wire, f"tools[{index}].extras")
    for index, block in enumerate(call.ir.system_field_blocks()):
        if block.extras is not None:
            told += foreign_extras(block.extras, wire, f"system[{index}].extras")
    return told


def has_extras(part: Part) -> bool:
    """Whether anything has come along with a part; with nearly every one nothing has."""
    if isinstance(part, ToolResult):
        return part.extras is not None or not isinstance(part.content, str)
    return getattr(part, "extras", None) is not None


def note_foreign_fields(to: LogAppend, message: Message, wire: str, place: str) -> None:
    """Notices for the parts of the message that is being added."""
    for at, part in enumerate(message.parts):
        if has_extras(part):
            for notice in _part(part, wire, f"{place}.parts[{at}]"):
                to.notice(notice)


def _part(part: Part, wire: str, path: str) -> list[Notice]:
    if isinstance(part, Thinking | Opaque):
        return []  # all of it is another provider's, and told as a whole
    told = foreign_extras(part.extras, wire, f"{path}.extras")
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        for index, inner in enumerate(part.content):
            told += _part(inner, wire, f"{path}.content[{index}]")
    return told


def _said(name: str, text: str) -> str:
    """The names of the fields that say something, those inside an object with its name before."""
    try:
        members = _members(text)
    except DECODE_ERRORS:
        return "fields"
    known = _BOOKKEEPING.get(name, frozenset())
    return ", ".join(
        field for field, raw in members.items() if field not in known and bytes(raw) not in _EMPTY
    )
