"""Messages to chunks: who speaks, and the glue between parts.

Every source message opens a content of its own, except that results which follow results join
them: Gemini wants all answers to one turn's calls in one content. A chunk's glue leads it and
depends only on what stands before: that is what makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
from anaphora.values import Message, Notice, Part, ToolCall, ToolResult
from anaphora.wire.foreign import note_foreign_fields
from anaphora.wire.reasoning import UNFINISHED_REASONING

from .naming import WIRE
from .parts import Notices, content_fields, is_fields, said_as
from .results import FindCall, tool_result

#: What ends a content before the next one, and the last one with the list.
GLUE = b"]},"
CLOSE = b"]}]"

#: Looked up once: a member of an enum is found slowly.
_THINKING = Kind.THINKING

_WIRE_ROLES = {"user": b"user", "tool": b"user", "system": b"user", "assistant": b"model"}
#: A content of results is the user's, too; here it is told apart, since more may join it.
_LOG_ROLES = {"assistant": "model", "tool": "tool"}


def add_messages(
    to: LogAppend,
    messages: Sequence[Message],
    last_role: str | None,
    where: str,
    history: Sequence[Message],
) -> None:
    """The chunks of these messages, which end `history`. `last_role` is the role the log ends
    with; None: nothing stands in it yet, and its first chunk goes without glue."""
    for message in messages:
        at = to.message
        place = f"{where}[{at}]"
        notices: Notices = []
        try:
            opening = open_content(message)
            said = said_parts(message, notices, _finder(history, at))
        except InvalidRequest as problem:
            raise problem.within(place) from None
        if message.role == "system":
            notices.append(
                Notice("system_as_user", "Gemini has no system message here; sent as user text")
            )
        if message.role == "assistant" and said and all(kind is _THINKING for kind, _ in said):
            notices.append(UNFINISHED_REASONING)
            said = []
        elif not said:
            notices.append(Notice("empty_message", "a message that says nothing is left out"))
        for notice in notices:
            path = f"{place}.{notice.path}" if notice.path else place
            to.notice(msgspec.structs.replace(notice, path=path))
        joins = message.role == last_role == "tool" and not content_fields(message.parts)
        for index, (kind, data) in enumerate(said):
            if index or joins:
                data = b"," + data
            else:
                data = (b"" if last_role is None else GLUE) + opening + data
                last_role = _LOG_ROLES.get(message.role, "user")
                to.open(last_role)
            to.chunk(kind, data, None)
        note_foreign_fields(to, message, WIRE, place)
        to.end_message(message.id)


def open_content(message: Message) -> bytes:
    """What begins a content on the wire, up to its first part."""
    role = _WIRE_ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool", path="role"
        )
    fields = content_fields(message.parts)
    return b'{"role":"%b"%b,"parts":[' % (role, b"," + fields if fields else b"")


def no_calls(_: str) -> ToolCall | None:
    """Where nothing stands before a message."""
    return None


def said_parts(
    message: Message, notices: Notices, find: FindCall = no_calls
) -> list[tuple[Kind, bytes]]:
    """What a message says, part by part."""
    said = []
    for at, part in enumerate(message.parts):
        if is_fields(part):
            continue
        told: Notices = []
        try:
            kind, data = _part(part, told, find)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
        for notice in told:
            path = f"parts[{at}].{notice.path}" if notice.path else f"parts[{at}]"
            notices.append(msgspec.structs.replace(notice, path=path))
        if data is not None:
            said.append((kind, data))
    return said


def _part(part: Part, notices: Notices, find: FindCall) -> tuple[Kind, bytes | None]:
    if isinstance(part, ToolResult):
        return Kind.TOOL_RESULT, tool_result(part, notices, find)
    kind, say = said_as(part)
    return kind, say(part, notices)


def _finder(history: Sequence[Message], at: int) -> FindCall:
    """Finds a call before message `at`, the nearest first: nearly always it is the one before."""

    def find(call_id: str) -> ToolCall | None:
        for index in range(at, -1, -1):
            for part in history[index].parts:
                if isinstance(part, ToolCall) and part.id == call_id:
                    return part
        return None

    return find
