"""Recognises request bodies that begin like an earlier one, to decode only the new messages.

A program without state sends its conversation whole at every turn. What is kept of a body is where
its messages end and their digests, not its text. A new body is hashed up to the known end, and the
messages that both have are left out when the rest is decoded: a list without some of its elements
is valid if the whole list is, once those elements were found to be. `split` then takes the chunks
that it cut before.

A `BodyMemory` finds and keeps bodies for any reader; a reader stores its own facts with them.
`request_bodies` has the one that stores none.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from itertools import takewhile
from typing import Any, Generic, TypeVar

import msgspec

from anaphora.errors import InvalidRequest

from .elements import (
    DIGEST,
    QUIET,
    ElementNotes,
    ListElements,
    RawElements,
    digest_of,
    feed,
    long_hash,
)
from .reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    decode_members,
)
from .spans import document_span, member_spans
from .tables import request_table

#: A kept body is found by digests of its beginnings up to the last multiples of these numbers: its
#: end may change. In a new body they are looked for at more multiples, as it may have grown: at
#: every third one, since three in a row are kept.
GRIDS = (1024, 8192, 65536)
_KEPT_PLACES, _PLACES = 3, 16
#: What all kept bodies may take, and what one takes besides its messages, and for each of them.
MOST_BYTES = 5 * 1024 * 1024
_BODY_BYTES, _MESSAGE_BYTES = 1300, 40
BLANK = b" \t\n\r"
_SEPARATOR = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
#: After an element: a comma and another element, or the end of the list.
_NEXT = re.compile(rb"[ \t\n\r]*(?:,(?=[ \t\n\r]*[^\] \t\n\r])|(?=\]))")

Facts = TypeVar("Facts")


def _scope_hash(scope: Hashable, wire: str) -> Any:
    """Copied, never changed."""
    return long_hash(repr((scope, wire)).encode(errors="surrogatepass"))


class RunningDigest:
    """Digests of the beginnings of one body, and of its scope and wire. Each part of it is hashed
    about once."""

    __slots__ = ("_ends", "_found", "_states", "_view", "data")

    def __init__(self, scope: Any, data: bytes) -> None:
        """`scope` is the hash of the body's scope and wire."""
        self.data = data
        self._view = memoryview(data)
        self._found: dict[int, bytes] = {}
        self._ends = [0]
        self._states: list[Any] = [scope]
        """The hash of what is before each of the ends so far, which rise."""

    def at(self, ends: Iterable[int]) -> list[bytes]:
        """Of the bytes up to each of these offsets, which rise."""
        found, known, states, view = self._found, self._ends, self._states, self._view
        digests: list[bytes] = []
        for end in ends:
            digest = found.get(end)
            if digest is None:
                index = bisect_right(known, end)
                state = states[index - 1].copy()
                piece = view[known[index - 1] : end]
                if piece.nbytes <= QUIET:
                    state.update(piece)
                else:
                    feed(state, piece)
                known.insert(index, end)
                states.insert(index, state)
                digest = found[end] = state.digest()
            digests.append(digest)
        return digests


class Outline(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The beginning of a body, up to the end of its last message, without its text."""

    name: str
    """The field that holds the messages."""
    head: int
    """The offset of the first message."""
    head_digest: bytes
    """Of what is before it."""
    bracket: int
    """The offset at which the list of messages begins."""
    members: tuple[tuple[str, int, int], ...]
    """Those before the messages, with the offsets of their values."""
    between: bytes
    """What stands between two messages."""
    ends: array[int]
    """The offsets at which the messages end."""
    notes: ElementNotes
    digests: tuple[bytes, ...]
    """Of beginnings, by which it is found."""

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, about."""
        names = 0
        for name, _, _ in self.members:
            names += len(name) + _MESSAGE_BYTES
        return _BODY_BYTES + names + len(self.between) + _MESSAGE_BYTES * len(self.ends)


class KeptBody(msgspec.Struct, Generic[Facts], frozen=True, eq=False):
    """An outline, and what its reader found out about the messages."""

    outline: Outline
    facts: Facts
    size: int


class KnownBeginning(msgspec.Struct, Generic[Facts], frozen=True, eq=False, kw_only=True):
    """The messages that a body has in common with a kept one, at its beginning."""

    kept: KeptBody[Facts]
    count: int
    """How many messages, at least one."""
    data: bytes
    """The body."""
    following: int
    """The offset after them in the list: of a message, or of the end of the list."""

    @property
    def rest(self) -> bytes:
        """The body without the known messages."""
        return self.data[: self.kept.outline.head] + self.data[self.following :]

    def members(self) -> Members | None:
        """Those of the body, but for the known messages in their list; None if they cannot be read
        without doubt."""
        outline, data = self.kept.outline, self.data
        name = outline.name
        key = b'{"%b":' % name.encode()
        # The members before the list are known, and need not be read again.
        listed = key + data[outline.bracket : outline.head] + data[self.following :]
        try:
            members = decode_members(listed)
            start = len(key)
            end = start + _size(members[name])
            if not listed.startswith(members[name], start):
                return None
            after = listed[end:].lstrip(BLANK)
            if after[:1] == b"," and name in decode_members(b"{" + after[1:]):
                return None  # given twice
        except DECODE_ERRORS:
            return None
        view = memoryview(data)
        before = {each: msgspec.Raw(view[begin:stop]) for each, begin, stop in outline.members}
        return {**before, **members}

    def complete(self, members: Members) -> ListElements:
        """All messages of the body, whose `members` were read without the known ones; their list is
        replaced by the whole one."""
        outline, count = self.kept.outline, self.count
        name = outline.name
        new = decode_elements(members[name])
        notes = outline.notes.begin(count)
        notes.digests += b"".join(map(digest_of, new))
        start = outline.bracket
        stop = start + _size(members[name]) + self.following - outline.head
        members[name] = msgspec.Raw(memoryview(self.data)[start:stop])
        ends = outline.ends if count == len(outline.ends) else outline.ends[:count]
        raws = RawElements(self.data, outline.head, len(outline.between), ends, new)
        return ListElements(
            name=name, raws=raws, notes=notes, begin=outline.head, before=outline.members
        )


class BodyMemory(Generic[Facts]):
    """The latest bodies. Bounded. Bodies of different scopes are never compared: their digests
    differ."""

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        grids: tuple[int, ...] = GRIDS,
        size_of: Callable[[Facts], int] = lambda _: 0,
    ) -> None:
        """`size_of` is the memory that facts take."""
        self._most_bytes = most_bytes
        self._grids = grids
        self._known_places = lru_cache(maxsize=1024)(_places)
        self._scope_hash = lru_cache(maxsize=256)(_scope_hash)
        self._size_of = size_of
        self._bytes = 0
        self._found: dict[bytes, KeptBody[Facts]] = {}
        self._kept: OrderedDict[KeptBody[Facts], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of memory that the kept bodies take, about."""
        return self._bytes

    def clear(self) -> None:
        self._found.clear()
        self._kept.clear()
        self._bytes = 0

    def digests(self, scope: Hashable, wire: str, data: bytes) -> RunningDigest:
        """The digests of a body, by which it is found."""
        return RunningDigest(self._scope_hash(scope, wire), data)

    def find(self, body: RunningDigest) -> KnownBeginning[Facts] | None:
        """What a body has in common with a kept one; None if it is not even a message."""
        if not self._kept:
            return None
        for digest in reversed(body.at(self._places(len(body.data), _PLACES))):
            kept = self._found.get(digest)
            if kept is not None:
                outline = kept.outline
                places = self._places(outline.ends[-1], _KEPT_PLACES)
                return _compare(kept, body.data, places[outline.digests.index(digest)])
        return None

    def outline(
        self, body: RunningDigest, elements: ListElements, beginning: KnownBeginning[Facts] | None
    ) -> Outline | None:
        """The outline of a body with these messages, of which `beginning` was found. None if it
        cannot be kept. May run in any thread."""
        data = body.data
        count, begin = len(elements.raws), elements.begin
        known = 0 if beginning is None else beginning.count
        before = None if beginning is None else beginning.kept.outline
        if count < 2:
            return None
        if before is not None and known == count == len(before.ends):
            return before  # the same messages again
        new = elements.raws[known:]
        if before is not None:
            between, ends = before.between, before.ends[:known]
        else:
            found = _SEPARATOR.match(data, begin + _size(new[0]))
            between, ends = b"" if found is None else found[0], array("I")
        for raw in new:
            start = ends[-1] + len(between) if ends else begin
            if not data.startswith(raw, start) or (ends and not data.startswith(between, ends[-1])):
                return None  # the white space between messages differs
            ends.append(start + len(memoryview(raw)))
        places = self._places(ends[-1], _KEPT_PLACES)
        if not places:
            return None
        head = memoryview(data)[:begin]
        return Outline(
            name=elements.name,
            head=begin,
            head_digest=digest_of(head) if before is None else before.head_digest,
            bracket=len(data[:begin].rstrip(BLANK)) - 1 if before is None else before.bracket,
            members=elements.before,
            between=between,
            ends=ends,
            notes=elements.notes,
            digests=tuple(body.at(places)),
        )

    def keep(
        self,
        outline: Outline,
        beginning: KnownBeginning[Facts] | None,
        facts: Callable[[], Facts],
    ) -> None:
        """Keeps a body, of which `beginning` was found."""
        if beginning is not None:
            before = beginning.kept
            if before.outline is outline:
                self._use(before)
                return
            if beginning.count == len(before.outline.ends):
                self._forget(before)  # all of it is in this one
        found = facts()
        size = outline.size + self._size_of(found)
        if size > self._most_bytes // 2:
            return
        kept = KeptBody(outline, found, size)
        self._found.update(dict.fromkeys(outline.digests, kept))
        self._bytes += size
        self._kept[kept] = None
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def _places(self, end: int, steps: int) -> tuple[int, ...]:
        """The offsets up to `end` by which a body may be found, the first ones first."""
        return self._known_places(end // self._grids[0], steps, self._grids)

    def _use(self, kept: KeptBody[Facts]) -> None:
        if kept in self._kept:
            self._kept.move_to_end(kept)

    def _forget(self, kept: KeptBody[Facts]) -> None:
        if kept not in self._kept:
            return
        del self._kept[kept]
        self._bytes -= kept.size
        for key in kept.outline.digests:
            if self._found.get(key) is kept:
                del self._found[key]


def _places(units: int, steps: int, grids: tuple[int, ...]) -> tuple[int, ...]:
    """The last multiples of each grid, and of so many before them every third one; the first grid
    divides the others."""
    places: set[int] = set()
    for grid in grids:
        last = units * grids[0] // grid * grid
        places.update(range(last, max(0, last - _KEPT_PLACES * grid), -grid))
        step = _KEPT_PLACES * grid
        before = last // step * step
        places.update(range(before, max(0, last - steps * grid), -step))
    return tuple(sorted(places))


def _compare(kept: KeptBody[Facts], data: bytes, same: int) -> KnownBeginning[Facts] | None:
    """`same` bytes are known to be those of the kept body."""
    outline, view = kept.outline, memoryview(data)
    ends, between = outline.ends, outline.between
    if same < outline.head and digest_of(view[: outline.head]) != outline.head_digest:
        return None
    count = bisect_right(ends, same)
    while count < len(ends):
        begin = ends[count - 1] if count else outline.head
        if count:
            if not data.startswith(between, begin):
                break
            begin += len(between)
        digest = digest_of(view[begin : ends[count]])
        if not outline.notes.digests.startswith(digest, DIGEST * count):
            break
        count += 1
    following = _NEXT.match(data, ends[count - 1]) if count else None
    if following is None:
        return None
    return KnownBeginning(kept=kept, count=count, data=data, following=following.end())


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def list_of_messages(wire: str, data: bytes, members: Members) -> ListElements | None:
    """The messages of a body; None if they are not in a list, or a member is given twice."""
    name = request_table(wire).messages
    raw = members.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return None
    try:
        spans = member_spans(data, document_span(data), "$", members)
        raws = decode_elements(raw)
    except (InvalidRequest, *DECODE_ERRORS):
        return None
    begin = spans[name].start + 1
    while data[begin] in BLANK:
        begin += 1
    first = takewhile(lambda one: one[0] != name, spans.items())
    return ListElements(
        name=name,
        raws=raws,
        notes=ElementNotes(b"".join(map(digest_of, raws))),
        begin=begin,
        before=tuple((each, span.start, span.end) for each, span in first),
    )
