"""Messages, and conversations as append-only views of a shared list.

A view is the list and a length. Appending to the newest view is O(1) and shares everything;
appending to an older one copies it first (a fork). Of two views of one list, the shorter is a
prefix of the longer, without comparing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, overload

from msgspec.structs import force_setattr

from anaphora.errors import InvalidRequest
from anaphora.wording import counted

from .fields import Value, check_fields
from .parts import Part, ResultPart, Text, ToolCall, ToolResult
from .stability import SegmentRole

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

_ROLES = frozenset(get_args(Role))
_PARTS = frozenset(get_args(Part))


class Message(Value, frozen=True, kw_only=True, gc=False):
    """One message. The id is the application's; a conversation numbers messages without one."""

    id: str = ""
    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        parts = self.parts
        role: str = self.role
        if type(parts) is tuple and type(role) is type(self.id) is str and role in _ROLES:
            for part in parts:
                if type(part) not in _PARTS:
                    break
            else:
                return
        check_fields(self)

    @classmethod
    def system(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="system", parts=_parts(parts))

    @classmethod
    def user(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="user", parts=_parts(parts))

    @classmethod
    def assistant(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="assistant", parts=_parts(parts))

    @classmethod
    def tool(
        cls,
        call_id: str,
        content: str | tuple[ResultPart, ...] = "",
        *,
        error: bool = False,
        name: str | None = None,
        id: str = "",
    ) -> Message:
        result = ToolResult(call_id=call_id, content=content, error=error, name=name)
        return cls(id=id, role="tool", parts=(result,))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def same_content(self, other: Message) -> bool:
        """Whether both are equal apart from the id, which is not sent to providers."""
        return self.role == other.role and self.parts == other.parts


MessageLike: TypeAlias = Message | Mapping[str, Any]
"""A message, or one as a dictionary: `{"role": "user", "content": "…"}`."""


def _not_a_message(value: object, path: str) -> Message:
    raise InvalidRequest(f"must be a Message, not {type(value).__name__}", path=path)


#: Reads dictionaries. Set by `anaphora/__init__.py`: only the wires know the formats.
reader: Callable[[object, str], Message] = _not_a_message


def _parts(parts: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple([Text(part) if isinstance(part, str) else part for part in parts])


class Conversation(Sequence[Message]):
    """An immutable sequence of messages that is cheap to extend.

    Messages without an id are numbered by position (`m0`, `m1`, …), so that marks and boundaries
    can name them. Used numbers are skipped: after a compaction positions start over, and an id must
    still name one message.
    """

    __slots__ = ("_items", "_length", "_lock", "_numbers")

    def __init__(self, messages: Iterable[MessageLike] = ()) -> None:
        self._items: list[Message] = []
        self._numbers = [0, 0]
        """One more than the highest number among the ids, and how many messages were checked for
        it; shared by all views of the list."""
        self._lock = threading.Lock()
        if messages != ():
            self._extend(messages)
        self._length = len(self._items)

    @classmethod
    def of_ids(cls, messages: list[Message]) -> Conversation:
        """A conversation of messages that all have ids. It takes over the list."""
        conversation = cls()
        conversation._items, conversation._length = messages, len(messages)
        return conversation

    def append(self, *messages: MessageLike) -> Conversation:
        """A view that continues with these messages; this view is unchanged."""
        with self._lock:
            if self._length == len(self._items):
                self._extend(messages)
                return self._view(len(self._items))
        return Conversation((*self[:], *messages))

    def prefix(self, length: int) -> Conversation:
        """The first `length` messages, without copying."""
        return self._view(max(0, min(length, self._length)))

    def common_prefix(self, other: Conversation, *, ids: bool = False) -> int:
        """The number of equal leading messages: by sharing, by identity, then by content.

        Ids are not sent to providers, so they are compared only if `ids` is true.
        """
        shortest = min(self._length, other._length)
        if self._items is other._items:
            return shortest
        for index in range(shortest):
            mine, theirs = self._items[index], other._items[index]
            if mine is not theirs and not (
                mine.same_content(theirs) and (mine.id == theirs.id or not ids)
            ):
                return index
        return shortest

    def shares(self, other: Conversation) -> bool:
        """Whether both are views of one list."""
        return self._items is other._items

    def extends(self, other: Conversation) -> bool:
        return self.common_prefix(other) == len(other)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return tuple(self._items[start:stop])
            return tuple(self._items[position] for position in range(start, stop, step))
        if not -self._length <= index < self._length:
            raise IndexError(f"message {index} of {self._length}")
        return self._items[index if index >= 0 else self._length + index]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return iter(self._items[: self._length])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        return self._length == other._length and (
            self._items is other._items or self[:] == other[:]
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type, tuple[tuple[Message, ...]]]:
        return Conversation, (self[:],)

    def __repr__(self) -> str:
        return f"<Conversation of {counted(self._length, 'message')}>"

    def _extend(self, messages: Iterable[MessageLike]) -> None:
        items, numbers = self._items, self._numbers
        start = len(items)
        free, seen = numbers
        try:
            for position, message in enumerate(messages, start):
                if not isinstance(message, Message):
                    message = reader(message, f"messages[{position}]")
                if not message.id:
                    if seen < position:
                        free, seen = _free_number(items, free, seen), position
                    free = position if position > free else free
                    message = message.__copy__()  # type: ignore[attr-defined]
                    force_setattr(message, "id", f"m{free}")
                    free += 1
                    seen += 1
                items.append(message)
        except BaseException:
            del items[start:]
            raise
        numbers[:] = free, seen

    def _view(self, length: int) -> Conversation:
        view = Conversation.__new__(Conversation)
        view._items, view._lock = self._items, self._lock
        view._numbers = self._numbers
        view._length = length
        return view


def _free_number(items: list[Message], free: int, seen: int) -> int:
    """One more than the highest number among the ids, if the first `seen` are known."""
    for index in range(seen, len(items)):
        name = items[index].id
        if name[0] == "m" and len(name) < 12 and name[1:].isdecimal():
            free = max(free, int(name[1:]) + 1)
    return free


def unanswered(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The tool calls at the end of a conversation that have no result."""
    answered: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "tool":
            answered |= {part.call_id for part in message.parts if isinstance(part, ToolResult)}
        elif message.role == "assistant":
            calls = [part for part in message.parts if isinstance(part, ToolCall)]
            return tuple([call for call in calls if call.id not in answered]) if calls else ()
        else:
            return ()
    return ()


class Segment(Value, frozen=True):
    """A run of messages that share one structural role."""

    role: SegmentRole
    messages: Conversation

    @classmethod
    def of(cls, role: SegmentRole, *messages: MessageLike) -> Segment:
        return cls(role, Conversation(messages))
