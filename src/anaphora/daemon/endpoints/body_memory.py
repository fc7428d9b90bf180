"""Reads the bodies of calls, most of which begin like the one before.

    bodies = BodyMemory()
    body = bodies.read(app_id, wire, data)
    bodies.keep(app_id, wire, body)

An app without state sends its conversation whole at every turn. The body before is recognised by
its bytes, and the messages that both have are left out when the rest is decoded and checked: a list
without some of its elements is valid, and free of duplicate keys, where the whole list is, once
those elements were found to be. Where the rest is refused, all of the body is read, so that errors
are the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import TypeAlias

import msgspec

from anaphora.errors import AnaphoraError
from anaphora.wire.elements import ListElements
from anaphora.wire.reading import decode_elements
from anaphora.wire.spans import document_span, member_spans

from .body import JsonBody, count_of, parse_object
from .references import Reference, references

#: The field of each wire that holds the conversation.
_LISTS = {
    "anthropic": "messages",
    "openai_chat": "messages",
    "openai_responses": "input",
    "gemini": "contents",
    "ollama": "messages",
}
#: A kept body is found by the bytes before the last multiples of these numbers in it, since its end
#: may change. In a new body they are looked for at more multiples, as it may have grown.
_GRIDS, _WINDOW = (4096, 65536), 1024
_KEPT_PLACES, _PLACES = 3, 16
#: Bytes of the bodies that are kept, of all apps.
_MOST_BYTES = 6 * 1024 * 1024
_BLANK = b" \t\n\r"
_SEPARATOR = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
#: What may follow an element: a comma and another one, or the end of the list.
_NEXT = re.compile(rb"[ \t\n\r]*(?:,(?=[ \t\n\r]*[^\] \t\n\r])|(?=\]))")

_Key: TypeAlias = tuple[str, str, int, int]


class KeptBody(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The beginning of a body, up to the end of its last message."""

    head: bytes
    """Up to the first message."""
    between: bytes
    """What stands between two messages."""
    elements: ListElements
    references: tuple[tuple[int, Reference], ...]
    """What the messages refer to, with the index of the message."""
    counts: list[int]
    """The messages and blocks up to the end of each message."""
    size: int
    keys: tuple[_Key, ...]


class CallBody(JsonBody, frozen=True, eq=False, kw_only=True):
    """The body of a call. The decoded value lacks the first messages where they are `known`."""

    elements: ListElements | None = None
    """The messages; None where they are not in a list."""
    known: int = 0
    """How many messages were in the body before, at its beginning."""
    before: KeptBody | None = None
    begin: int = 0
    """The offset of the first message."""
    known_end: int = 0
    """The offset at which the known messages end."""

    @property
    def known_references(self) -> list[tuple[int, Reference]]:
        if self.before is None:
            return []
        return [each for each in self.before.references if each[0] < self.known]

    def references(self) -> Iterator[Reference]:
        """The stored objects that it names."""
        yield from references(self.value)
        for _, reference in self.known_references:
            yield reference


class BodyMemory:
    """The latest bodies of all apps. Bounded. Bodies of different apps are never compared."""

    def __init__(self, most_bytes: int = _MOST_BYTES, grids: tuple[int, ...] = _GRIDS) -> None:
        self._most_bytes = most_bytes
        self._grids = grids
        self._bytes = 0
        self._found: dict[_Key, KeptBody] = {}
        self._kept: OrderedDict[KeptBody, None] = OrderedDict()

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

    def read(self, app: str, wire: str, data: bytes) -> CallBody:
        """A JSON object without duplicate keys. Raises `RequestRejected`."""
        kept = self._find(app, wire, data)
        body = None if kept is None else _read_rest(kept, data)
        return read_whole(wire, data) if body is None else body

    def keep(self, app: str, wire: str, body: CallBody, *, refers: bool) -> None:
        """Remembers a body; `refers` tells whether it names stored objects."""
        before, elements, known = body.before, body.elements, body.known
        size = len(body.data) + body.begin  # what is around the messages may be kept twice
        if elements is None or len(elements.raws) < 2 or size > self._most_bytes // 2:
            return
        if before is not None and known == len(elements.raws) == len(before.elements.raws):
            self._use(before)  # the same messages again
            return
        new = elements.raws[known:]
        if before is not None:
            between, end = before.between, body.known_end
        else:
            end = body.begin
            found = _SEPARATOR.match(body.data, end + _size(new[0]))
            between = b"" if found is None else found[0]
        joined = between.join([b"", *new] if known else new)
        if not body.data.startswith(joined, end):
            return  # the white space between messages differs
        end += len(joined)
        keys = tuple(self._places(app, wire, body.data, end, _KEPT_PLACES))
        if not keys:
            return
        name, values = elements.name, body.value[elements.name]
        counts = [] if before is None else before.counts[:known]
        counted = accumulate(map(count_of, values), initial=counts[-1] if counts else 0)
        counts += list(counted)[1:]
        named = body.known_references
        if refers:
            new_ones = enumerate(values, known)
            named += [(at, one) for at, each in new_ones for one in references({name: [each]})]
        kept = KeptBody(
            head=body.data[: body.begin],
            between=between,
            elements=elements,
            references=tuple(named),
            counts=counts,
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

    def _find(self, app: str, wire: str, data: bytes) -> KeptBody | None:
        found = self._found
        places = self._places(app, wire, data, len(data), _PLACES)
        return next((found[key] for key in places if key in found), None)

    def _places(self, app: str, wire: str, data: bytes, end: int, steps: int) -> Iterator[_Key]:
        """What a body may be found by, before an offset in it."""
        for grid in self._grids:
            last = end - end % grid
            for place in range(last, max(0, last - steps * grid), -grid):
                yield app, wire, place, hash(data[max(0, place - _WINDOW) : place])

    def _use(self, kept: KeptBody) -> None:
        if kept in self._kept:
            self._kept.move_to_end(kept)

    def _forget(self, kept: KeptBody) -> None:
        if kept not in self._kept:
            return
        del self._kept[kept]
        self._bytes -= kept.size
        for key in kept.keys:
            if self._found.get(key) is kept:
                del self._found[key]


def read_whole(wire: str, data: bytes) -> CallBody:
    """A body that is compared with no other. Raises `RequestRejected`."""
    plain, name = parse_object(data), _LISTS[wire]
    members, elements, begin = plain.members, None, 0
    if isinstance(plain.value.get(name), list):
        raws = [raw.copy() for raw in decode_elements(members[name])]
        elements = ListElements(name=name, raws=raws)
        begin = member_spans(data, document_span(data), "$", members)[name].start + 1
        while data[begin] in _BLANK:
            begin += 1
    return CallBody(data=data, members=members, value=plain.value, elements=elements, begin=begin)


def _read_rest(kept: KeptBody, data: bytes) -> CallBody | None:
    """The body, of which messages that are in `kept` as well are not read again; None where there
    are none, or where the rest is not accepted."""
    head, raws, name = kept.head, kept.elements.raws, kept.elements.name
    begin, known = len(head), len(raws)
    beginning = head + kept.between.join(raws)
    end = len(beginning)
    if not data.startswith(beginning):
        sizes = (_size(raw) + len(kept.between) for raw in raws)
        ends = [each - len(kept.between) for each in accumulate(sizes, initial=begin)][1:]
        view = memoryview(beginning)
        known = bisect_right(ends, 0, key=lambda end: int(not data.startswith(view[:end])))
        if not known:
            return None
        end = ends[known - 1]
    following = _NEXT.match(data, end)
    if following is None:
        return None
    rest = head + data[following.end() :]
    try:
        read = parse_object(rest, kept.counts[known - 1])
    except AnaphoraError:
        return None
    if name == "input" and "type" in read.value:
        return None  # what the messages refer to may depend on it
    members, left_out = read.members, len(data) - len(rest)
    elements = kept.elements.begin(known)
    elements.raws += [raw.copy() for raw in decode_elements(members[name])]
    start = len(head.rstrip(_BLANK)) - 1
    stop = start + _size(members[name]) + left_out
    members[name] = msgspec.Raw(memoryview(data)[start:stop])
    return CallBody(
        data=data,
        members=members,
        value=read.value,
        elements=elements,
        known=known,
        before=kept,
        begin=begin,
        known_end=end,
    )


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
