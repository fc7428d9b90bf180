"""Messages to chunks: roles, merging, and the glue between blocks.

Anthropic's messages alternate, so neighbours of one role become one message. A block's glue leads
it, and depends only on the role before it: that is what makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.canonical import check_object, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
from anaphora.values import (
    Message,
    Notice,
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.wire.foreign import has_extras, note_foreign_fields
from anaphora.wire.reasoning import UNFINISHED_REASONING, ReasoningFollowed

from .blocks import (
    BEFORE_BRACE,
    TEXT,
    UNSIGNED,
    WIRE,
    block_for,
    is_fields,
    is_said,
    is_unsigned,
)

_OPEN = {
    role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")
}
_NEXT = {role: b"]}," + opening for role, opening in _OPEN.items()}
ROLES = frozenset(_OPEN)
CLOSE = b"]}]"


class OwnRole(str):
    """The role of a message that has fields beside its role and content. It is a message of its
    own: neighbours of the same role are not merged with it."""

    __slots__ = ("fields",)

    def __new__(cls, role: str, fields: bytes) -> OwnRole:
        made = super().__new__(cls, role)
        made.fields = fields
        return made

    fields: bytes


def opening(role: str) -> bytes:
    """A message up to its first block."""
    if isinstance(role, OwnRole):
        return b'{"role":"%b",%b,"content":[' % (role.encode(), role.fields)
    return _OPEN[role]


def glue(role: str, last: str | None) -> bytes:
    """What stands before a message's first block, behind a message of role `last`."""
    if last is None:
        return b""
    if joins(role, last):
        return b","
    return b"]}," + opening(role) if isinstance(role, OwnRole) else _NEXT[role]


def joins(role: str, last: str | None) -> bool:
    """Whether a message goes on in the one before it."""
    return role == last and type(role) is str and type(last) is str


#: Looked up once: a member of an enum is found slowly.
_TEXT_KIND = Kind.TEXT

_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}


class Around(msgspec.Struct, frozen=True):
    """What stands around messages that are being rendered."""

    where: str
    """What errors and notices call the place."""
    before: str | None
    after: str | None
    """The wire role before the run, and the role after it."""
    profile: Profile


def add_messages(
    to: LogAppend, messages: Sequence[Message], last_role: str | None, around: Around
) -> None:
    """The chunks of these messages. `last_role` is the wire role the log ends with; None: nothing
    stands in it yet, and its first chunk goes without glue."""
    said: list[Notice] = []
    chunk = to.chunk
    followed = ReasoningFollowed(messages, _follows)
    splice: int | None
    for index, message in enumerate(messages):
        role = _ROLES.get(message.role) or _system_role(to, messages, index, last_role, around)
        if message.parts and type(message.parts[-1]) is Opaque and is_fields(message.parts[-1]):
            role = _own_role(to, message, role, around)
        if type(role) is str and type(last_role) is str:  # nearly always: without calls
            opens = role != last_role
            lead = _NEXT[role] if opens else b","
        else:
            opens, lead = not joins(role, last_role), glue(role, last_role)
        brought = False
        try:
            for at, part in enumerate(message.parts):
                if (
                    type(part) is Text
                    and part.extras is None
                    and (text := part.text)
                    and not text.isspace()
                ):
                    # Most parts are of this kind, whoever speaks: it takes the shortest way.
                    kind, splice = _TEXT_KIND, BEFORE_BRACE
                    block = lead + TEXT + string(text) + b"}"
                else:
                    kind, splice, render = block_for(part, role == "assistant")
                    brought = brought or has_extras(part)
                    found = render(part, said)
                    if found is not None and role == "assistant":
                        left_out = _left_out(followed, messages, index, at, around.profile)
                        if left_out is not None:
                            said.append(left_out)
                            found = None
                    if said:
                        _note(to, said, f"{_place(to, around)}.parts[{at}]")
                        said = []
                    if found is None:
                        continue
                    block = lead + found
                if opens:
                    to.open(role)
                    last_role, opens = role, False
                chunk(kind, block, splice)
                lead = b","
        except InvalidRequest as problem:
            raise problem.within(f"{_place(to, around)}.parts[{at}]") from None
        if brought:
            note_foreign_fields(to, message, WIRE, _place(to, around))
        if opens and isinstance(role, OwnRole):
            to.notice(_fields_left_out("a message that says nothing", _place(to, around)))
        if not message.parts:
            place = _place(to, around)
            to.notice(Notice("empty_message", "a message without parts is left out", place))
        to.end_message(message.id)


def answered(messages: Sequence[Message], index: int, after: str | None) -> bool:
    """Whether the assistant speaks next, past any system messages, or nobody has spoken yet."""
    while index < len(messages):
        message = messages[index]
        if message.role != "system" and says(message):
            return message.role == "assistant"
        index += 1
    return after in (None, "assistant")


def says(message: Message) -> bool:
    """Whether anything of a message reaches the wire. Reasoning alone does not."""
    spoken = message.role == "assistant"
    if spoken and _only_reasoning(message):
        return False
    return any(is_said(part, spoken) for part in message.parts)


def _only_reasoning(message: Message) -> bool:
    """Whether a message is reasoning, and white space behind it at most."""
    return any(isinstance(part, Thinking) for part in message.parts) and all(
        isinstance(part, Thinking) or _is_blank(part) for part in message.parts
    )


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and not part.text.strip()


def _left_out(
    followed: ReasoningFollowed, messages: Sequence[Message], index: int, at: int, profile: Profile
) -> Notice | None:
    """Why reasoning, or white space behind it, is not sent back; None where the part is sent."""
    part = messages[index].parts[at]
    if isinstance(part, Thinking):
        if not followed(index, at):
            return UNFINISHED_REASONING
        return UNSIGNED if is_unsigned(part, profile) else None
    if _is_blank(part) and _only_reasoning(messages[index]) and not followed(index, at):
        return UNFINISHED_REASONING
    return None


def _follows(part: Part, role: Role) -> bool | None:
    spoken = role == "assistant"
    if spoken and _is_blank(part):
        return None
    if isinstance(part, ToolCall | ToolResult) or (isinstance(part, Text) and part.text.strip()):
        return spoken  # not rendered only to be asked
    try:
        return spoken if is_said(part, spoken) else None
    except InvalidRequest:
        return spoken  # refused where it stands, with its path


def _own_role(to: LogAppend, message: Message, role: str, around: Around) -> str:
    """The role of a message with fields of its own. A system message that is sent as user text
    goes without them."""
    part = message.parts[-1]
    assert isinstance(part, Opaque)
    place = _place(to, around)
    fields = check_object(part.json, path=f"{place}.parts[{len(message.parts) - 1}].json")
    members = fields.strip()[1:-1].strip().encode()
    if message.role == "system" and role != "system":
        to.notice(_fields_left_out("a system message that is sent as user text", place))
        return role
    return OwnRole(role, members) if members else role


def _fields_left_out(whose: str, place: str) -> Notice:
    return Notice("fields_left_out", f"the fields of {whose} are left out", place)


def _place(to: LogAppend, around: Around) -> str:
    return f"{around.where}[{to.message}]"


def _note(to: LogAppend, said: list[Notice], place: str) -> None:
    for notice in said:
        path = f"{place}.{notice.path}" if notice.path else place
        to.notice(msgspec.structs.replace(notice, path=path))


def _system_role(
    to: LogAppend, messages: Sequence[Message], index: int, last_role: str | None, around: Around
) -> str:
    """A system message inside the history stays one where the model takes it there: behind a user
    turn, and before an assistant turn or at the end."""
    if (role := messages[index].role) != "system":
        raise InvalidRequest(
            f"{role!r} is not a role; use system, user, assistant or tool",
            path=f"{_place(to, around)}.role",
        )
    to.contextual = True
    if (
        around.profile.mid_conversation_system.value
        and (last_role or around.before) in ("user", "system")
        and answered(messages, index + 1, around.after)
    ):
        return "system"
    to.notice(
        Notice(
            "system_as_user",
            "a system message cannot stand here on this model, so it is sent as user text",
            _place(to, around),
        )
    )
    return "user"
