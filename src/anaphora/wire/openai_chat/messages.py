"""Messages to chunks: who speaks, and the glue between parts.

Every source message opens messages of its own. One whose content is a list stays open behind its
last part; the assistant's is a single chunk and closed. So a chunk's glue depends on nothing but
the role before it: that is what makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
from anaphora.values import Message, Notice, Part, ToolCall, ToolResult
from anaphora.wire.foreign import note_foreign_fields
from anaphora.wire.openai_system import changed_role, place_of, role_of

from .assistant import assistant_message
from .facts import Facts
from .parts import WIRE, Notices, extra_members, is_fields, message_fields, said_in, text_part
from .usual import say_usual

BEFORE_BRACE = -1


class Piece(NamedTuple):
    """A chunk to be, and the part of its message that it says."""

    path: tuple[int, ...]
    kind: Kind
    data: bytes
    markable: bool
    role: str
    opening: bytes | None
    """What begins the message on the wire; None inside one that is already begun."""


def glue(role: str | None) -> bytes:
    """What stands between a message of that role and the next."""
    return b"" if role is None else b"," if role == "assistant" else b"]},"


def close(role: str) -> bytes:
    """What ends the list of messages behind one of that role."""
    return b"]" if role == "assistant" else b"]}]"


def add_messages(
    to: LogAppend, messages: Sequence[Message], last_role: str | None, where: str, facts: Facts
) -> None:
    """The chunks of these messages. `last_role` is the wire role the log ends with; None: nothing
    stands in it yet, and its first chunk goes without glue."""
    splice = BEFORE_BRACE if facts.breakpoints else None
    for message in messages:
        usual = say_usual(message, facts)
        if usual is None:
            last_role = add_any(to, message, last_role, where, facts)
            continue
        role, kind, data, markable = usual
        to.item(role, kind, glue(last_role) + data, splice if markable else None)
        to.end_message(message.id)
        last_role = role


def add_any(
    to: LogAppend, message: Message, last_role: str | None, where: str, facts: Facts
) -> str | None:
    """The chunks of a message of any kind, and what could not be said of it. Gives the wire role
    that the log ends with then."""
    place = f"{where}[{to.message}]"
    notices: Notices = []
    try:
        pieces = lay_out(message, facts, notices)
    except InvalidRequest as problem:
        raise problem.within(place) from None
    for notice in notices:
        path = f"{place}.{notice.path}" if notice.path else place
        to.notice(msgspec.structs.replace(notice, path=path))
    for piece in pieces:
        if piece.opening is None:
            data = b"," + piece.data
        else:
            data = glue(last_role) + piece.opening + piece.data
            to.open(piece.role)
            last_role = piece.role
        splice = BEFORE_BRACE if piece.markable and facts.breakpoints else None
        to.chunk(piece.kind, data, splice)
    note_foreign_fields(to, message, WIRE, place)
    to.end_message(message.id)
    return last_role


def lay_out(message: Message, facts: Facts, notices: Notices) -> list[Piece]:
    """What a message becomes, in the order it goes over the wire."""
    if message.role == "assistant":
        data = assistant_message(
            message,
            notices,
            back=facts.reasoning_field,
            needed=facts.reasoning_needed,
            host=facts.host,
        )
        calls = any(isinstance(part, ToolCall) for part in message.parts)
        kind = Kind.TOOL_CALL if calls else Kind.TEXT
        pieces = [] if data is None else [Piece((), kind, data, False, "assistant", b"")]
    elif message.role == "system":
        place = place_of(message.parts)
        notices += changed_role(place, facts.system_role, "role")
        pieces = _list_of_parts(message, role_of(place, facts.system_role), notices)
    elif message.role in ("user", "tool"):
        pieces = _results(message, notices) + _list_of_parts(message, "user", notices)
    else:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool", path="role"
        )
    if not pieces and not notices:
        notices.append(Notice("empty_message", "a message that says nothing is left out"))
    return pieces


def _results(message: Message, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, ahead of whatever else the user says."""
    pieces: list[Piece] = []
    other = False
    for at, part in enumerate(message.parts):
        if not isinstance(part, ToolResult):
            other = other or not is_fields(part)
            continue
        if other:
            notices.append(
                Notice("parts_reordered", "tool results come first here", f"parts[{at}]")
            )
        try:
            pieces += _result(part, at, notices)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
    return pieces


def _result(part: ToolResult, at: int, notices: Notices) -> list[Piece]:
    if part.error:
        notices.append(
            Notice(
                "error_flag_left_out",
                "Chat has no word for a tool that failed; its text has to say so",
                f"parts[{at}].error",
            )
        )
    fields = extra_members(part.extras)
    opening = (
        b'{"role":"tool","tool_call_id":'
        + string(part.call_id)
        + (b"," + fields if fields else b"")
        + b',"content":['
    )
    if isinstance(part.content, str):
        said = [((at, 0), text_part(part.content), bool(part.content))]
    else:
        said = []
        for index, inner in enumerate(part.content):
            _, markable, block = _said("tool", inner, f"parts[{at}].content[{index}]", notices)
            if block is not None:
                said.append(((at, index), block, markable))
    if not said:
        # The call must be answered, even when nothing of the answer can be said.
        said = [((at, 0), text_part(""), False)]
    return [
        Piece(path, Kind.TOOL_RESULT, block, markable, "tool", opening if index == 0 else None)
        for index, (path, block, markable) in enumerate(said)
    ]


def _list_of_parts(message: Message, role: str, notices: Notices) -> list[Piece]:
    """A message whose content is a list, one chunk a part."""
    members = message_fields(message.parts)
    fields = b"," + members if members else b""
    opening: bytes | None = b'{"role":"%b"%b,"content":[' % (role.encode(), fields)
    pieces: list[Piece] = []
    for at, part in enumerate(message.parts):
        if isinstance(part, ToolResult) and role == "user":
            continue
        if is_fields(part):
            continue
        kind, markable, block = _said(role, part, f"parts[{at}]", notices)
        if block is not None:
            pieces.append(Piece((at,), kind, block, markable, role, opening))
            opening = None
    if members and not pieces:
        notices.append(Notice("fields_left_out", "fields of a message that says nothing"))
    return pieces


def _said(role: str, part: Part, path: str, notices: Notices) -> tuple[Kind, bool, bytes | None]:
    """A part's bytes, with notices and errors that name its path."""
    told: Notices = []
    try:
        kind, markable, say = said_in(role, part)
        block = say(part, told)
    except InvalidRequest as problem:
        raise problem.within(path) from None
    for notice in told:
        whole = f"{path}.{notice.path}" if notice.path else path
        notices.append(msgspec.structs.replace(notice, path=whole))
    return kind, markable, block
