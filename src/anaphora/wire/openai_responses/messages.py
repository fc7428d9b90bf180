"""Messages to chunks: the items of each, glued to what stands before them.

A chunk's glue depends on nothing but the state before it, and messages are never merged: that is
what makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.rendered import LogAppend
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
from anaphora.wire.foreign import note_foreign_fields
from anaphora.wire.openai_system import changed_role, place_of, role_of
from anaphora.wire.reasoning import UNFINISHED_REASONING, ReasoningFollowed

from .content import ITEM, WIRE, is_content, members
from .incoming import APP_ITEMS
from .items import CLOSED, glue, is_easy, is_said, message_opening, say
from .traits import Traits
from .usual import say_usual

BEFORE_BRACE = -1

_ROLES: dict[str, Role] = {
    "user": "user",
    "tool": "user",
    "assistant": "assistant",
    "system": "system",
}


def add_messages(
    to: LogAppend, messages: Sequence[Message], state: str | None, where: str, traits: Traits
) -> None:
    """The chunks of these messages. `state` is the role of the item the log ends inside, `CLOSED`,
    or None when nothing stands in it yet."""
    splice = BEFORE_BRACE if traits.explicit else None
    followed = ReasoningFollowed(messages, _follows)
    for index, message in enumerate(messages):
        usual = say_usual(message, traits)
        if usual is None:
            state = add_any(to, message, state, where, traits, followed, index)
            continue
        for after, kind, data, markable in usual:
            to.item(after, kind, glue(state) + data, splice if markable else None)
            state = after
        to.end_message(message.id)


def add_any(
    to: LogAppend,
    message: Message,
    state: str | None,
    where: str,
    traits: Traits,
    followed: ReasoningFollowed | None = None,
    index: int = 0,
) -> str | None:
    """The chunks of a message of any kind, with notices for what was left out. Gives the state
    behind it. `followed` knows the messages behind this one, which is at `index` of them."""
    followed = followed or ReasoningFollowed((message,), _follows)
    said: list[Notice] = []
    place = f"{where}[{to.message}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool",
            path=f"{place}.role",
        )
    name: str = role
    if role == "system":
        kept = place_of(message.parts)
        name = role_of(kept, traits.system_role)
        for notice in changed_role(kept, traits.system_role, f"{place}.role"):
            to.notice(notice)
    inside = False
    for at, part in enumerate(message.parts):
        begins = ITEM in (getattr(part, "extras", None) or ())
        try:
            spoken = say(part, role, is_easy(message, at, inside), said)
            if spoken is not None and spoken.content and (begins or not inside):
                fields = members(getattr(part, "extras", None), ITEM)
        except InvalidRequest as problem:
            raise problem.within(f"{place}.parts[{at}]") from None
        if spoken is not None and isinstance(part, Thinking) and not followed(index, at):
            said.append(UNFINISHED_REASONING)
            spoken = None
        if said:
            _note(to, said, f"{place}.parts[{at}]")
            said = []
        if spoken is None:
            continue
        if not spoken.content:
            data = glue(state) + spoken.data
            state, inside = "user" if spoken.open else CLOSED, False
            to.open(state)
        elif begins or not inside:
            data = glue(state) + message_opening(name, fields) + spoken.data
            state, inside = role, True
            to.open(state)
        else:
            data = b"," + spoken.data
        markable = spoken.markable and traits.explicit
        to.chunk(spoken.kind, data, BEFORE_BRACE if markable else None)
    if not message.parts:
        to.notice(Notice("empty_message", "a message without parts is left out", place))
    note_foreign_fields(to, message, WIRE, place)
    to.end_message(message.id)
    return state


def _follows(part: Part, role: Role) -> bool | None:
    """An item that the model gave, whatever the role of its message."""
    plain = isinstance(part, Text | ToolCall | ToolResult)  # always said
    try:
        if not plain and not is_said(part, _ROLES.get(role, "user")):
            return None
    except InvalidRequest:
        pass  # refused where it stands, with its path
    if isinstance(part, Opaque) and not is_content(part.kind):
        return part.kind not in APP_ITEMS or part.kind == "item_reference"
    return isinstance(part, ToolCall) or (role == "assistant" and not isinstance(part, ToolResult))


def _note(to: LogAppend, said: list[Notice], place: str) -> None:
    for notice in said:
        path = f"{place}.{notice.path}" if notice.path else place
        to.notice(msgspec.structs.replace(notice, path=path))
