"""Parses requests whose first messages are known: of a conversation's next turn only the new ones.

    requests = KnownRequests(limit_bytes=64 * 1024 * 1024)
    call = requests.read(body, "anthropic", path, scope="app").call

A program without state sends its conversation whole at every turn. Two bodies with the same bytes
up to the end of a message hold the same messages up to there: these are cut out of the body, the
wire parses the short rest, and the known messages are put before the new ones. They are the same
objects, so the render log of the turn before goes on as well.

A request is kept with digests of its beginning up to the end of its last messages (cuts), and up to
round offsets before them, by which it is found. The digests begin with the scope and the wire, so
requests of different scopes have nothing in common.

Several cuts are kept: the last messages change if a program moves its cache markers to the new
ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias

import msgspec
from blake3 import blake3

from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.prompt import BlockMark, Call, MarkRequest, PartMark, PromptBlock
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message
from anaphora.values.conversation import Segment
from anaphora.values.stability import SegmentRole

from . import Wire, base_of, get
from .markers import marked_message
from .message_cuts import MessageList, blocks_in_messages, cut_places, depends_on, message_list
from .reading import DECODE_ERRORS, Members, decode_members
from .tables import request_table

#: Refuses a body that another parser could read differently, or that is too large.
Check: TypeAlias = Callable[[bytes], object]

#: The limit of memory where none is configured.
MOST_BYTES = 64 * 1024 * 1024
#: A kept request is found at the last multiple of each number before a cut, and at a power of two,
#: which is far from the end of a body with much after its messages; a body, which has grown, is
#: looked up at several.
_GRIDS, _STEPS = (256, 2048, 16384, 131072), 8
#: How many cuts are kept of a request, and how many kept requests are compared with a body.
_CUTS, _TRIES = 4, 3
#: What a request and a chunk take in memory besides their text, about.
_REQUEST_BYTES, _CHUNK_BYTES = 2500, 60

#: After an element: a comma and another element, or the end of the list.
_NEXT = re.compile(rb"[ \t\n\r]*+(?:,(?=[ \t\n\r]*+[^\] \t\n\r])|(?=\]))")


class _Cut(msgspec.Struct, frozen=True, gc=False):
    """The end of a message."""

    end: int
    """The offset after it in the body."""
    messages: int
    """How many messages the call has up to there."""
    size: int
    """The memory that these take, about."""
    digest: bytes
    """Of the scope, the wire, and the body up to there."""


class _Kept(msgspec.Struct, eq=False, kw_only=True):
    """What is kept of a request."""

    begin: int
    """The offset of its list of messages."""
    messages: Conversation
    blocks: tuple[PromptBlock, ...]
    """The system prompt, if a message holds it."""
    marks: tuple[MarkRequest, ...]
    """The marks on these blocks, and on messages."""
    depends: tuple[object, ...]
    """What parsed messages depend on besides their own bytes."""
    cuts: tuple[_Cut, ...]
    places: tuple[bytes, ...]
    """The digests by which it is found."""
    size: int
    """The memory that it takes, about, without its chunks."""
    rendered: Rendered | None = None
    """Its chunks, or those of the turn before."""

    @property
    def whole_size(self) -> int:
        found = self.rendered
        if found is None or not found.runs:
            return self.size
        run = found.runs[-1]
        return self.size + run.log.start(run.count) + _CHUNK_BYTES * run.count


class _Beginning(msgspec.Struct, frozen=True, eq=False):
    """What a body has in common with a kept request."""

    kept: _Kept
    cut: _Cut
    following: int
    """The offset after the known messages: of another one, or of the end of the list."""

    @property
    def missing(self) -> int:
        """How many bytes are cut out of the body."""
        return self.following - self.kept.begin - 1


class KnownRequests:
    """The latest requests, bounded by the memory that they take. For several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._lock = Lock()
        self._found: dict[bytes, _Kept] = {}
        self._kept: OrderedDict[_Kept, int] = OrderedDict()
        """With the memory that each takes."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of memory that the kept requests take, about."""
        return self._size

    def read(
        self,
        body: bytes,
        wire: str,
        path: str = "",
        scope: str = "",
        check: Check | None = None,
        codec: Wire | None = None,
    ) -> RequestReading:
        """A reading with the same call as that of the wire's `parse`; raises the same errors.
        `check` runs first: on the body, or on a body without the known messages. `codec` is that of
        the wire, which `get` returns if it is not given."""
        reading = self.find(body, wire, scope, codec)
        if reading.known:
            try:
                return reading.parse(path, check)
            except (AnaphoraError, *DECODE_ERRORS):
                reading = reading.whole()  # raises the error of the body, with its path
        return reading.parse(path, check)

    def find(
        self, body: bytes, wire: str, scope: str = "", codec: Wire | None = None
    ) -> RequestReading:
        """The reading of a request, whose known messages are found."""
        hashes = _Hashes(msgspec.json.encode((scope, wire)), body)
        found = self._find(hashes) if self._found else None
        return RequestReading(self, hashes, base_of(wire), codec or get(wire), found)

    def _find(self, hashes: _Hashes) -> _Beginning | None:
        body, tried = hashes.body, list[_Kept]()
        digests = [hashes.up_to(place) for place in _places(len(body) // _GRIDS[0], _STEPS)]
        for digest in reversed(digests):
            kept = self._found.get(digest)
            if kept is None or kept in tried:
                continue
            for cut in reversed(kept.cuts):
                if cut.end < len(body) and hashes.up_to(cut.end) == cut.digest:
                    following = _NEXT.match(body, cut.end)
                    return None if following is None else _Beginning(kept, cut, following.end())
            tried.append(kept)
            if len(tried) == _TRIES:
                break
        return None

    def keep(self, made: _Kept, before: _Kept | None) -> None:
        """Keeps a request in place of that of the turn before."""
        with self._lock:
            if before is not None:
                self._forget(before)
            size = made.whole_size
            if size > self._limit // 2:
                return
            self._found.update(dict.fromkeys(made.places, made))
            self._kept[made] = size
            self._size += size
            while self._size > self._limit:
                self._forget(next(iter(self._kept)))

    def _forget(self, kept: _Kept) -> None:
        size = self._kept.pop(kept, None)
        if size is None:
            return  # another thread was first
        self._size -= size
        for digest in kept.places:
            if self._found.get(digest) is kept:
                del self._found[digest]


class RequestReading:
    """Reads one request, whatever is kept or forgotten meanwhile."""

    call: Call
    """The request, once it was parsed."""

    def __init__(
        self,
        requests: KnownRequests,
        hashes: _Hashes,
        base: str,
        codec: Wire,
        beginning: _Beginning | None,
    ) -> None:
        self._requests = requests
        self._hashes = hashes
        self._base = base
        self._codec = codec
        self._list_name = request_table(self._base).messages
        self._beginning = beginning
        self._made: _Kept | None = None
        body = hashes.body
        self.rest = body
        """The body without the known messages."""
        if beginning is not None:
            self.rest = body[: beginning.kept.begin + 1] + body[beginning.following :]

    @property
    def known(self) -> int:
        """How many messages are known."""
        return 0 if self._beginning is None else self._beginning.cut.messages

    @property
    def known_messages(self) -> Sequence[Message]:
        found = self._beginning
        return () if found is None else found.kept.messages[: found.cut.messages]

    @property
    def previous(self) -> Rendered | None:
        """The chunks of the turn before: what `render` continues."""
        return None if self._beginning is None else self._beginning.kept.rendered

    def whole(self) -> RequestReading:
        """A reading of the same body of which nothing is known."""
        return RequestReading(self._requests, self._hashes, self._base, self._codec, None)

    def parse(
        self, path: str = "", check: Check | None = None, rest: bytes | None = None
    ) -> RequestReading:
        """Parses the rest, which may be given with changes in members other than the messages.
        Raises an error also if known messages would be parsed differently in this body."""
        found, listed = self._beginning, None
        if check is not None:
            check(self.rest)
        call = self._codec.parse(self.rest if rest is None else rest, path, self.known)
        listed = message_list(self.rest, self._list_name)
        if found is not None:
            kept = found.kept
            if (
                listed is None
                or listed.begin != kept.begin
                or depends_on(self._base, call) != kept.depends
            ):
                raise InvalidRequest("known messages depend on the other members", path="$")
            call = _joined(call, kept, found.cut.messages)
        self.call = call
        if listed is not None:
            self._keep(call, listed, found)
        return self

    def members(self, rest: Members | None = None) -> Members:
        """The members of the body. `rest` are those of its rest, if they are decoded."""
        found, name = self._beginning, self._list_name
        members = decode_members(self.rest) if rest is None else rest
        if found is None:
            return members
        begin = found.kept.begin
        end = begin + memoryview(members[name]).nbytes + found.missing
        return {**members, name: msgspec.Raw(memoryview(self._hashes.body)[begin:end])}

    def keep_rendered(self, rendered: Rendered) -> None:
        """Keeps the chunks of this request for the next turn."""
        if self._made is not None:
            self._made.rendered = rendered
            self._requests.keep(self._made, self._made)

    def _keep(self, call: Call, listed: MessageList, found: _Beginning | None) -> None:
        """Keeps the request. `listed` are its messages that were parsed."""
        base, hashes, known = self._base, self._hashes, self.known
        messages, blocks = call.ir.run(SegmentRole.CONVERSATION), blocks_in_messages(base, call)
        cuts, missing, size = list[_Cut](), 0, _REQUEST_BYTES
        if found is not None:
            of, missing, size = found.kept.cuts, found.missing, found.cut.size
            cuts += of[: of.index(found.cut) + 1]
        places, added = cut_places(base, listed, messages[known:], _CUTS)
        for place in places:
            end = place.end + missing
            digest = hashes.up_to(end)
            cuts.append(_Cut(end, known + place.messages, size + place.size, digest))
        cuts = cuts[-_CUTS:]
        offsets = {place for cut in cuts for place in _places(cut.end // _GRIDS[0], 1)}
        if not offsets:
            return
        before = None if found is None else found.kept
        made = self._made = _Kept(
            begin=listed.begin,
            messages=messages,
            blocks=blocks,
            marks=tuple(mark for mark in call.ir.cache.marks if _is_kept(mark, blocks)),
            depends=depends_on(base, call),
            cuts=tuple(cuts),
            places=tuple(map(hashes.up_to, sorted(offsets))),
            size=size + added,
            rendered=None if before is None else before.rendered,
        )
        self._requests.keep(made, before)


def _joined(call: Call, kept: _Kept, known: int) -> Call:
    """The call of a body's rest with the known messages before its own."""
    ir = call.ir
    new = ir.run(SegmentRole.CONVERSATION)
    if len(kept.messages) == known:
        messages = kept.messages.append(*new) if new else kept.messages
    else:
        messages = Conversation.of_ids([*kept.messages[:known], *new])
    marks = [mark for mark in kept.marks if marked_message(mark) < known]
    if marks:
        own = ir.cache.marks
        first = [mark for mark in own if not isinstance(mark, PartMark)]
        marks = [*first, *marks, *(mark for mark in own if isinstance(mark, PartMark))]
        ir = msgspec.structs.replace(
            ir, cache=msgspec.structs.replace(ir.cache, marks=tuple(marks))
        )
    return msgspec.structs.replace(
        call,
        ir=msgspec.structs.replace(
            ir,
            system_blocks=kept.blocks or ir.all_system_blocks(),
            segments=(Segment(SegmentRole.CONVERSATION, messages),),
        ),
    )


def _is_kept(mark: MarkRequest, blocks: tuple[PromptBlock, ...]) -> bool:
    return isinstance(mark, PartMark) or (bool(blocks) and isinstance(mark, BlockMark))


# ── Digests ──────────────────────────────────────────────────────────────────────────────────────


class _Hashes:
    """Digests of the beginnings of one body, each after its scope and wire. The body is hashed
    about once."""

    __slots__ = ("_digests", "_offsets", "_states", "_view", "body")

    def __init__(self, scope: bytes, body: bytes) -> None:
        self.body = body
        self._view = memoryview(body)
        self._digests: dict[int, bytes] = {}
        self._offsets = [0]
        self._states: list[Any] = [blake3(scope)]
        """The hash of what is before each of the offsets so far, which rise."""

    def up_to(self, end: int) -> bytes:
        """Of the bytes before this offset."""
        digest = self._digests.get(end)
        if digest is None:
            index = bisect_right(self._offsets, end)
            state = self._states[index - 1].copy()
            state.update(self._view[self._offsets[index - 1] : end])
            self._offsets.insert(index, end)
            self._states.insert(index, state)
            digest = self._digests[end] = state.digest()
        return digest


@lru_cache(maxsize=1024)
def _places(units: int, steps: int) -> tuple[int, ...]:
    """The last offsets of each grid, and the last powers of two, by which a body of so many units
    of the first grid may be found, in rising order."""
    end = units * _GRIDS[0]
    places: set[int] = set()
    for grid in _GRIDS:
        last = end // grid * grid
        places.update(range(last, max(0, last - steps * grid), -grid))
    powers = range(max(_GRIDS[0].bit_length(), end.bit_length() - steps + 1), end.bit_length() + 1)
    places.update(1 << each - 1 for each in powers)
    return tuple(sorted(places))
