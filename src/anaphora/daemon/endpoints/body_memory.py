"""Reads the bodies of calls strictly, most of which begin like the one before.

    bodies = AppBodies()
    body = bodies.read(app_id, wire, data)
    bodies.keep(app_id, wire, body, refers=...)

Messages that the body before had are neither decoded nor checked again: a list without some of its
elements is free of duplicate keys where the whole list is, once those elements were found to be.
Where the rest is refused, all of the body is read, so that errors are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from anaphora.daemon.facts.handles import Reference, references
from anaphora.daemon.off_loop import LARGE
from anaphora.errors import AnaphoraError
from anaphora.wire.body_memory import BodyMemory, KnownBeginning, ListElements, list_of_messages
from anaphora.wire.reading import Members

from .body import count_of, is_counted, parse_object


class MessageFacts(msgspec.Struct, frozen=True, eq=False):
    """What is known of the messages of a kept body."""

    references: tuple[tuple[int, Reference], ...]
    """What they refer to, with the index of the message."""
    counts: list[int]
    """The messages and blocks up to the end of each message; empty where the body is too short for
    too many."""


class CallBody(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The body of a call. The decoded value lacks the first messages if they are `known`."""

    data: bytes
    members: Members
    value: dict[str, Any]
    elements: ListElements | None = None
    """The messages; None where they are not in a list."""
    beginning: KnownBeginning[MessageFacts] | None = None
    begin: int = 0
    """The offset of the first message."""

    @property
    def known(self) -> int:
        """How many messages were in the body before, at its beginning."""
        return 0 if self.beginning is None else self.beginning.count

    @property
    def known_references(self) -> list[tuple[int, Reference]]:
        named = () if self.beginning is None else self.beginning.kept.facts.references
        return [each for each in named if each[0] < self.known] if named else []

    def references(self) -> Iterator[Reference]:
        """The stored objects that it names."""
        yield from references(self.value)
        for _, reference in self.known_references:
            yield reference

    def facts(self, *, refers: bool) -> MessageFacts:
        """Of its messages; `refers` tells whether it names stored objects."""
        known, beginning = self.known, self.beginning
        name = "" if self.elements is None else self.elements.name
        values = self.value.get(name, [])
        counts: list[int] = []
        if is_counted(len(self.data)):
            counts = [] if beginning is None else beginning.kept.facts.counts[:known]
            counted = accumulate(map(count_of, values), initial=counts[-1] if counts else 0)
            counts += list(counted)[1:]
        named = self.known_references
        if refers:
            new_ones = enumerate(values, known)
            named += [(at, one) for at, each in new_ones for one in references({name: [each]})]
        return MessageFacts(tuple(named), counts)


class BodyReading:
    """Reads one body. `new` is how many of its bytes no body before had at its beginning: where
    they are many, it is to be called in a thread."""

    def __init__(
        self, wire: str, data: bytes, beginning: KnownBeginning[MessageFacts] | None
    ) -> None:
        self._wire = wire
        self._data = data
        self._beginning = beginning
        self.new = len(data)
        if beginning is not None:
            self.new -= beginning.end - len(beginning.kept.head)

    @property
    def is_large(self) -> bool:
        return self.new > LARGE

    def __call__(self) -> CallBody:
        """Raises `RequestRejected`, `TooLarge`."""
        body, large = None, self.is_large
        if self._beginning is not None:
            body = _read_rest(self._beginning, by_pieces=large)
        return read_whole(self._wire, self._data, by_pieces=large) if body is None else body


class AppBodies:
    """The latest bodies of all apps. Bounded. Bodies of different apps are never compared."""

    def __init__(self, memory: BodyMemory[MessageFacts] | None = None) -> None:
        self._memory = BodyMemory[MessageFacts]() if memory is None else memory

    def read(self, app: str, wire: str, data: bytes) -> CallBody:
        """A JSON object without duplicate keys. Raises `RequestRejected`."""
        return self.reading(app, wire, data)()

    def reading(self, app: str, wire: str, data: bytes) -> BodyReading:
        """What reads it."""
        return BodyReading(wire, data, self._memory.find(app, wire, data))

    def keep(self, app: str, wire: str, body: CallBody, *, refers: bool) -> None:
        """Remembers a body; `refers` tells whether it names stored objects."""
        if body.elements is not None:
            self._memory.keep(
                app,
                wire,
                body.data,
                body.members,
                body.elements,
                body.begin,
                body.beginning,
                lambda: body.facts(refers=refers),
            )


def read_whole(wire: str, data: bytes, *, by_pieces: bool = False) -> CallBody:
    """A body that is compared with no other. Raises `RequestRejected`."""
    plain = parse_object(data, by_pieces=by_pieces)
    elements, begin = list_of_messages(wire, data, plain.members)
    return CallBody(
        data=data, members=plain.members, value=plain.value, elements=elements, begin=begin
    )


def _read_rest(
    beginning: KnownBeginning[MessageFacts], *, by_pieces: bool = False
) -> CallBody | None:
    """The body, of which known messages are not read again; None where the rest is not accepted."""
    kept, counted = beginning.kept, 0
    if is_counted(len(beginning.data)):
        if not kept.facts.counts:
            return None
        counted = kept.facts.counts[beginning.count - 1]
    try:
        read = parse_object(beginning.rest, counted, by_pieces=by_pieces)
    except AnaphoraError:
        return None
    if kept.elements.name == "input" and "type" in read.value:
        return None  # what the messages refer to may depend on it
    members = read.members
    elements = beginning.complete(members)
    return CallBody(
        data=beginning.data,
        members=members,
        value=read.value,
        elements=elements,
        beginning=beginning,
        begin=len(kept.head),
    )
