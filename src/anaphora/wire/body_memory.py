"""Recognises request bodies that begin like an earlier one, to decode only the new messages.

    bodies = RequestBodies()
    codec.split(bodies.read(scope, wire, data), path=path)

A program without state sends its whole conversation at every turn. The previous body is found by
its bytes, and the messages that both have are left out when the rest is decoded: those elements are
known to be valid, so the list is valid if the rest of it is. `split` then reuses the chunks of the
known messages without hashing them again.

A `BodyMemory` finds and keeps bodies for any reader; a reader stores its own facts with them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import accumulate, takewhile
from typing import Generic, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidRequest

from .reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    decode_members,
    object_members,
    request_error,
)
from .spans import document_span, member_spans
from .tables import request_table

#: A kept body is found by the bytes before the last multiples of these numbers in it, since its end
#: may change. In a new body they are looked for at more multiples, as it may have grown.
_GRIDS, _WINDOW = (1024, 8192, 65536), 1024
_KEPT_PLACES, _PLACES = 3, 16
#: Bytes of the bodies that are kept, of all scopes.
_MOST_BYTES = 6 * 1024 * 1024
_BLANK = b" \t\n\r"
_SEPARATOR = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
#: After an element: a comma and another element, or the end of the list.
_NEXT = re.compile(rb"[ \t\n\r]*(?:,(?=[ \t\n\r]*[^\] \t\n\r])|(?=\]))")

Facts = TypeVar("Facts")
_Key: TypeAlias = tuple[Hashable, str, int, int]


class ListElements(msgspec.Struct, eq=False, kw_only=True):
    """The elements of one list of a body."""

    name: str
    """The field that holds the list."""
    raws: list[msgspec.Raw]
    """Each unchanged, and copied, so that it does not keep the body in memory."""
    digests: list[bytes] = []
    """Digests of the first elements, as many as were needed."""
    plain: int = 0
    """How many of the first elements are known to hold only text and tool calls."""

    facts: object = None
    """Facts about the rest of a body with such a list, kept for a later reader."""

    def begin(self, count: int) -> ListElements:
        """The first elements, to which others may be added."""
        return ListElements(
            name=self.name,
            raws=self.raws[:count],
            digests=self.digests[:count],
            plain=min(self.plain, count),
            facts=self.facts,
        )

    def joined(self, first: int) -> bytes:
        """A list of the elements from there on."""
        return b"[" + b",".join(self.raws[first:]) + b"]"


class DecodedBody(msgspec.Struct, frozen=True, eq=False):
    """A body whose members were read before, and the elements of one of its lists."""

    members: Members
    elements: ListElements | None = None


#: The input of `split`.
SplitInput: TypeAlias = bytes | Members | DecodedBody


class KeptBody(msgspec.Struct, Generic[Facts], frozen=True, eq=False, kw_only=True):
    """The beginning of a body, up to the end of its last message."""

    head: bytes
    """Up to the first message."""
    first_members: Members
    """The members before the messages."""
    between: bytes
    """The bytes between two messages."""
    elements: ListElements
    facts: Facts
    """The reader's facts about the messages."""
    size: int
    keys: tuple[_Key, ...]

    @property
    def bracket(self) -> int:
        """The offset at which the list of messages begins."""
        return len(self.head.rstrip(_BLANK)) - 1


class KnownBeginning(msgspec.Struct, Generic[Facts], frozen=True, eq=False, kw_only=True):
    """The messages that a body has in common with a kept one, at its beginning."""

    kept: KeptBody[Facts]
    count: int
    """How many messages, at least one."""
    end: int
    """The offset in the body at which they end."""
    data: bytes
    """The body."""
    following: int
    """The offset after them in the list: of a message, or of the end of the list."""

    @property
    def rest(self) -> bytes:
        """The body without the known messages."""
        return self.kept.head + self.data[self.following :]

    def members(self) -> Members | None:
        """The members of the body, without the known messages; None if they are ambiguous."""
        kept = self.kept
        name = kept.elements.name
        key = b'{"%b":' % name.encode()
        # The members before the list are known, and need not be read again.
        listed = key + kept.head[kept.bracket :] + self.data[self.following :]
        try:
            members = decode_members(listed)
            start = len(key)
            end = start + _size(members[name])
            if not listed.startswith(members[name], start):
                return None
            after = listed[end:].lstrip(_BLANK)
            if after[:1] == b"," and name in decode_members(b"{" + after[1:]):
                return None  # given twice
        except DECODE_ERRORS:
            return None
        return {**kept.first_members, **members}

    def complete(self, members: Members) -> ListElements:
        """All messages of the body. In `members`, which were read without the known ones, their
        list is replaced by the complete one."""
        kept = self.kept
        name = kept.elements.name
        elements = kept.elements.begin(self.count)
        elements.raws += [raw.copy() for raw in decode_elements(members[name])]
        start = kept.bracket
        stop = start + _size(members[name]) + self.following - len(kept.head)
        members[name] = msgspec.Raw(memoryview(self.data)[start:stop])
        return elements


class BodyMemory(Generic[Facts]):
    """The latest bodies. Bounded. Bodies of different scopes are never compared."""

    def __init__(self, most_bytes: int = _MOST_BYTES, grids: tuple[int, ...] = _GRIDS) -> None:
        self._most_bytes = most_bytes
        self._grids = grids
        self._bytes = 0
        self._found: dict[_Key, KeptBody[Facts]] = {}
        self._kept: OrderedDict[KeptBody[Facts], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of the kept bodies."""
        return self._bytes

    def clear(self) -> None:
        self._found.clear()
        self._kept.clear()
        self._bytes = 0

    def find(self, scope: Hashable, wire: str, data: bytes) -> KnownBeginning[Facts] | None:
        """The messages that a body has in common with a kept one; None if there are none."""
        for key in self._places(scope, wire, data, len(data), _PLACES):
            kept = self._found.get(key)
            if kept is not None:
                return _compare(kept, data)
        return None

    def keep(
        self,
        scope: Hashable,
        wire: str,
        data: bytes,
        members: Members,
        elements: ListElements,
        begin: int,
        beginning: KnownBeginning[Facts] | None,
        facts: Callable[[], Facts],
    ) -> None:
        """Keeps a body with these members and messages, of which the first is at the offset
        `begin`; `beginning` is the result of `find`."""
        size = len(data) + begin  # the members around the messages may be kept twice
        if len(elements.raws) < 2 or size > self._most_bytes // 2:
            return
        before, known = (None, 0) if beginning is None else (beginning.kept, beginning.count)
        if before is not None and known == len(elements.raws) == len(before.elements.raws):
            self._use(before)  # the same messages again
            return
        new = elements.raws[known:]
        if beginning is not None:
            between, end = beginning.kept.between, beginning.end
        else:
            end = begin
            found = _SEPARATOR.match(data, end + _size(new[0]))
            between = b"" if found is None else found[0]
        joined = between.join([b"", *new] if known else new)
        if not data.startswith(joined, end):
            return  # the white space between messages differs
        end += len(joined)
        keys = tuple(self._places(scope, wire, data, end, _KEPT_PLACES))
        if not keys:
            return
        if before is not None:
            head, first_members = before.head, before.first_members
        else:
            head = data[:begin]
            first_members = _before(elements.name, members)
        kept = KeptBody(
            head=head,
            first_members=first_members,
            between=between,
            elements=elements,
            facts=facts(),
            size=size,
            keys=keys,
        )
        if before is not None and known == len(before.elements.raws):
            self._forget(before)  # all of it is in this one
        self._found.update(dict.fromkeys(keys, kept))
        self._bytes += size
        self._kept[kept] = None
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def _places(
        self, scope: Hashable, wire: str, data: bytes, end: int, steps: int
    ) -> Iterator[_Key]:
        """The keys by which a body may be found, before an offset in it."""
        for grid in self._grids:
            last = end - end % grid
            for place in range(last, max(0, last - steps * grid), -grid):
                yield scope, wire, place, hash(data[max(0, place - _WINDOW) : place])

    def _use(self, kept: KeptBody[Facts]) -> None:
        if kept in self._kept:
            self._kept.move_to_end(kept)

    def _forget(self, kept: KeptBody[Facts]) -> None:
        if kept not in self._kept:
            return
        del self._kept[kept]
        self._bytes -= kept.size
        for key in kept.keys:
            if self._found.get(key) is kept:
                del self._found[key]


class RequestBodies:
    """Reads bodies for `split`, with the same result as `split` alone."""

    def __init__(self, most_bytes: int = _MOST_BYTES, grids: tuple[int, ...] = _GRIDS) -> None:
        """`most_bytes` limits the bodies that are kept."""
        self._memory: BodyMemory[None] = BodyMemory(most_bytes, grids)

    @property
    def size(self) -> int:
        """The bytes of the kept bodies."""
        return self._memory.size

    def read(self, scope: Hashable, wire: str, data: bytes) -> DecodedBody:
        """The members of a body, and its messages unless they are ambiguous. Raises
        `InvalidRequest`."""
        beginning = self._memory.find(scope, wire, data)
        body = None if beginning is None else _read_rest(beginning)
        if beginning is not None and body is not None:
            begin = len(beginning.kept.head)
        else:
            beginning, members = None, object_members(data, "$", request_error)
            elements, begin = list_of_messages(wire, data, members)
            body = DecodedBody(members, elements)
        if (elements := body.elements) is not None:
            keep = self._memory.keep
            keep(scope, wire, data, body.members, elements, begin, beginning, lambda: None)
        return body


def list_of_messages(wire: str, data: bytes, members: Members) -> tuple[ListElements | None, int]:
    """The messages of a body, and the offset of the first one; None if they are not in a list, or a
    member is given twice."""
    name = request_table(wire).messages
    raw = members.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return None, 0
    try:
        begin = member_spans(data, document_span(data), "$", members)[name].start + 1
        raws = [raw.copy() for raw in decode_elements(raw)]
    except (InvalidRequest, *DECODE_ERRORS):
        return None, 0
    while data[begin] in _BLANK:
        begin += 1
    return ListElements(name=name, raws=raws), begin


def _read_rest(beginning: KnownBeginning[None]) -> DecodedBody | None:
    """The body, without reading the known messages again; None if the rest is ambiguous."""
    members = beginning.members()
    if members is None:
        return None
    try:
        elements = beginning.complete(members)
    except DECODE_ERRORS:
        return None
    return DecodedBody(members, elements)


def _before(name: str, members: Members) -> Members:
    """The members before one of them, which do not keep the body in memory."""
    return {
        each: raw.copy() for each, raw in takewhile(lambda one: one[0] != name, members.items())
    }


def _compare(kept: KeptBody[Facts], data: bytes) -> KnownBeginning[Facts] | None:
    head, raws = kept.head, kept.elements.raws
    count = len(raws)
    beginning = head + kept.between.join(raws)
    end = len(beginning)
    if not data.startswith(beginning):
        sizes = (_size(raw) + len(kept.between) for raw in raws)
        ends = [each - len(kept.between) for each in accumulate(sizes, initial=len(head))][1:]
        view = memoryview(beginning)
        count = bisect_right(ends, 0, key=lambda end: int(not data.startswith(view[:end])))
        if not count:
            return None
        end = ends[count - 1]
    following = _NEXT.match(data, end)
    if following is None:
        return None
    return KnownBeginning(kept=kept, count=count, end=end, data=data, following=following.end())


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
