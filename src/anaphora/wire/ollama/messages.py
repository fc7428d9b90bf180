"""Messages to chunks: every message on the wire is one, closed, with a comma before it.

Content is a text and not a list, so nothing can be appended inside a message; and what stands
before a message never changes how it is said, but for the calls that its tool results answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
from anaphora.values import Conversation, Message, Notice, Text, ToolCall, ToolResult
from anaphora.wire.foreign import note_foreign_fields

from .assistant import assistant_message
from .carried import WIRE, Notices, extra_members, how_put, is_fields, message_fields
from .parts import apart, together

#: The calls that may be answered, by id.
Calls = Mapping[str, ToolCall]


class Piece(NamedTuple):
    """A message on the wire."""

    role: str
    kind: Kind
    data: bytes


def add_messages(
    to: LogAppend,
    messages: Sequence[Message],
    last_role: str | None,
    where: str,
    conversation: Conversation,
) -> None:
    """The chunks of these messages of the conversation. `last_role` is the wire role the log ends
    with; None: nothing stands in it yet, and its first chunk goes without glue."""
    calls = calls_before(conversation, to.first_message)
    for message in messages:
        place = f"{where}[{to.message}]"
        notices: Notices = []
        try:
            pieces = lay_out(message, calls, notices)
        except InvalidRequest as problem:
            raise problem.within(place) from None
        for notice in notices:
            path = f"{place}.{notice.path}" if notice.path else place
            to.notice(msgspec.structs.replace(notice, path=path))
        for piece in pieces:
            data = piece.data if last_role is None else b"," + piece.data
            to.item(piece.role, piece.kind, data, None)
            last_role = piece.role
        note_foreign_fields(to, message, WIRE, place)
        to.end_message(message.id)
        if message.role == "assistant":
            calls = calls_of(message)


def calls_before(conversation: Conversation, position: int) -> Calls:
    """The calls of the last assistant message before that position."""
    for at in range(position - 1, -1, -1):
        if conversation[at].role == "assistant":
            return calls_of(conversation[at])
    return {}


def calls_of(message: Message) -> Calls:
    return {part.id: part for part in message.parts if isinstance(part, ToolCall)}


def lay_out(message: Message, calls: Calls, notices: Notices) -> list[Piece]:
    """What a message becomes, in the order it goes over the wire."""
    if message.role == "assistant":
        data = assistant_message(message, notices)
        kind = Kind.TOOL_CALL if calls_of(message) else Kind.TEXT
        pieces = [] if data is None else [Piece("assistant", kind, data)]
    elif message.role == "system":
        pieces = _spoken(message, "system", notices)
    elif message.role in ("user", "tool"):
        pieces = _results(message, calls, notices) + _spoken(message, "user", notices)
    else:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool", path="role"
        )
    if not pieces and not notices:
        notices.append(Notice("empty_message", "a message that says nothing is left out"))
    return pieces


def _spoken(message: Message, role: str, notices: Notices) -> list[Piece]:
    """Texts and pictures, a message for each text."""
    fields = message_fields(message.parts)
    opening = b'{"role":"%b",' % role.encode()
    pieces: list[Piece] = []
    if role == "system" and any(isinstance(part, ToolResult) for part in message.parts):
        notices.append(Notice("part_left_out", "a system message holds no tool results; left out"))
    for spoken in apart(message.parts, notices):
        # Fields that came along stand in the first: it is the only one that was read.
        more = fields + b"," if fields and not pieces else b""
        kind = Kind.IMAGE if spoken.images else Kind.TEXT
        pieces.append(Piece(role, kind, opening + more + spoken.members() + b"}"))
    if fields and not pieces:
        notices.append(Notice("fields_left_out", "fields of a message that says nothing"))
    return pieces


def _results(message: Message, calls: Calls, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, ahead of whatever else the user says."""
    pieces: list[Piece] = []
    other = False
    for at, part in enumerate(message.parts):
        if not isinstance(part, ToolResult):
            other = other or not is_fields(part)
            continue
        told: Notices = []
        if other:
            told.append(Notice("parts_reordered", "tool results come first here"))
        try:
            data = _result(part, calls.get(part.call_id), told)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
        pieces.append(Piece("tool", Kind.TOOL_RESULT, data))
        for notice in told:
            path = f"parts[{at}].{notice.path}" if notice.path else f"parts[{at}]"
            notices.append(msgspec.structs.replace(notice, path=path))
    return pieces


def _result(part: ToolResult, call: ToolCall | None, notices: Notices) -> bytes:
    """A tool's answer. Models look for the name of the tool as well as for the call's id, so the
    name is found where only the id is known; an id that was made up here is not sent."""
    if part.error:
        why = "Ollama has no word for a tool that failed; its text has to say so"
        notices.append(Notice("error_flag_left_out", why, "error"))
    unsaid = how_put(part.extras).unsaid
    found = [b'"role":"tool"']
    name = part.name
    if name is None and call is not None and "tool_name" not in unsaid:
        name = call.name
    if name:
        found.append(b'"tool_name":' + string(name))
    made_up = call is not None and "id" in how_put(call.extras).unsaid
    if part.call_id and not made_up and "tool_call_id" not in unsaid:
        found.append(b'"tool_call_id":' + string(part.call_id))
    if fields := extra_members(part.extras):
        found.append(fields)
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    found.append(together(content, notices).members())
    return b"{" + b",".join(found) + b"}"
