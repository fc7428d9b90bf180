"""Parses requests whose first messages are known: of a conversation's next turn only the new ones.

    requests = KnownRequests(limit_bytes=64 * 1024 * 1024)
    call = requests.read(body, "anthropic", path, scope="app")

A program without state sends its conversation whole at every turn. Two bodies with the same bytes
up to the end of a message hold the same messages up to there: these are cut out of the body, the
wire parses the short rest, and the known messages are put before the new ones. They are the same
objects, so the render log of the turn before goes on as well.

A request is kept with digests of its beginning up to the end of its last messages (cuts), and up to
round offsets before them, by which it is found. The digests begin with the scope and the wire, so
requests of different scopes have nothing in common.

A cut stands after a message that is not the assistant's, since parsing may join what the assistant
says in successive items. Several are kept: the last messages change if a program moves its cache
markers to the new ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import Any, TypeAlias

import msgspec
from blake3 import blake3

from anaphora.errors import AnaphoraError
from anaphora.prompt import BlockMark, Call, MarkRequest, PartMark, PromptBlock
from anaphora.values import Conversation, Message, ToolCall, ToolResult
from anaphora.values.conversation import Segment

from . import base_of, get
from .markers import marked_message
from .reading import DECODE_ERRORS, decode_elements, decode_members, request_error
from .tables import request_table

#: Refuses a body that another parser could read differently, or that is too large.
Check: TypeAlias = Callable[[bytes], object]

#: A kept request is found at the last multiple of each number before a cut; a body, which has
#: grown, is looked up at several.
_GRIDS, _STEPS = (1024, 8192, 65536), 16
#: How many cuts are kept of a request, and how many kept requests are compared with a body.
_CUTS, _TRIES = 4, 3
#: What a request, a message and a part take in memory besides their text, about.
_REQUEST_BYTES, _MESSAGE_BYTES, _PART_BYTES = 2500, 150, 200

_BLANK = b" \t\n\r"
_MOST_BLANK = 256
_OPENING = re.compile(rb"[ \t\n\r]*+\{")
_KEY = re.compile(rb'[ \t\n\r]*+("(?:[^"\\]|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_AFTER = re.compile(rb"[ \t\n\r]*+([,}])")
#: After an element: a comma and another element, or the end of the list.
_NEXT = re.compile(rb"[ \t\n\r]*+(?:,(?=[ \t\n\r]*+[^\] \t\n\r])|(?=\]))")
#: What makes characters of a text take two or four bytes: escapes, and bytes that begin them.
_WIDE = re.compile(rb"\\u[dD][89abAB]|[\xf0-\xf4]")


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


class _Kept(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What is kept of a request."""

    begin: int
    """The offset of its list of messages."""
    before: bytes
    """A body up to there with the names of the members before the list, and a zero for each."""
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
    """The memory that it takes, about."""


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
        self._kept: OrderedDict[_Kept, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of memory that the kept requests take, about."""
        return self._size

    def read(
        self, body: bytes, wire: str, path: str = "", scope: str = "", check: Check | None = None
    ) -> Call:
        """The same call as that of the wire's `parse`, or the same error. `check` runs first: on
        the body, or on a body without the known messages."""
        return self.find(body, wire, scope).read(path, check)

    def find(self, body: bytes, wire: str, scope: str = "") -> RequestReading:
        """The reading of a request, whose known messages are found."""
        hashes = _Hashes(msgspec.json.encode((scope, wire)), body)
        return RequestReading(self, hashes, wire, self._find(hashes) if self._found else None)

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
            if made.size > self._limit // 2:
                return
            self._found.update(dict.fromkeys(made.places, made))
            self._kept[made] = None
            self._size += made.size
            while self._size > self._limit:
                self._forget(next(iter(self._kept)))

    def _forget(self, kept: _Kept) -> None:
        if kept not in self._kept:
            return  # another thread was first
        del self._kept[kept]
        self._size -= kept.size
        for digest in kept.places:
            if self._found.get(digest) is kept:
                del self._found[digest]


class RequestReading:
    """Reads one request, whatever is kept or forgotten meanwhile."""

    def __init__(
        self, requests: KnownRequests, hashes: _Hashes, wire: str, beginning: _Beginning | None
    ) -> None:
        self._requests = requests
        self._hashes = hashes
        self._wire = wire
        self._base = base_of(wire)
        self._beginning = beginning

    @property
    def known(self) -> int:
        """How many messages are known."""
        return 0 if self._beginning is None else self._beginning.cut.messages

    @property
    def rest(self) -> bytes:
        """The body without the known messages, and with zeros for the members before them."""
        found, body = self._beginning, self._hashes.body
        return body if found is None else found.kept.before + body[found.following :]

    def read(self, path: str = "", check: Check | None = None) -> Call:
        """The call; see `KnownRequests.read`."""
        if self._beginning is not None:
            try:
                call = self._read_rest(self._beginning, path, check)
            except (AnaphoraError, *DECODE_ERRORS):
                call = None  # raised for the whole body, with its path
            if call is not None:
                return call
            self._beginning = None
        body = self._hashes.body
        if check is not None:
            check(body)
        call = get(self._wire).parse(body, path)
        listed = _list_of_messages(body, request_table(self._base).messages)
        if listed is not None:
            self._keep(call, listed, None)
        return call

    def _read_rest(self, found: _Beginning, path: str, check: Check | None) -> Call | None:
        """The call, of which only the new messages are parsed; None if that is not certain to be
        the same."""
        kept, body = found.kept, self._hashes.body
        rest = body[: kept.begin + 1] + body[found.following :]
        listed = _list_of_messages(rest, request_table(self._base).messages)
        if listed is None or listed.begin != kept.begin:
            return None
        if check is not None:
            check(self.rest)
        call = get(self._wire).parse(rest, path, found.cut.messages)
        if _depends(self._base, call) != kept.depends:
            return None
        call = _joined(call, kept, found.cut.messages)
        self._keep(call, listed, found)
        return call

    def _keep(self, call: Call, listed: _ListOfMessages, found: _Beginning | None) -> None:
        """Keeps the request. `listed` are its messages that were parsed."""
        messages, blocks = call.ir.segments[0].messages, _blocks_in_messages(self._base, call)
        cuts, missing, size = list[_Cut](), 0, _REQUEST_BYTES + len(listed.before)
        if found is not None:
            of, missing, size = found.kept.cuts, found.missing, found.cut.size
            cuts += of[: of.index(found.cut) + 1]
        added = messages[self.known :]
        texts = [0, *accumulate(map(_text_size, listed.elements))]
        parts = [0, *accumulate(map(_parts_size, added))]
        for index, end, count in _new_cuts(self._base, listed, added):
            end += missing
            taken = size + texts[index + 1] + parts[count]
            cuts.append(_Cut(end, self.known + count, taken, self._hashes.up_to(end)))
        cuts = cuts[-_CUTS:]
        offsets = {place for cut in cuts for place in _places(cut.end // _GRIDS[0], 1)}
        if not offsets:
            return
        made = _Kept(
            begin=listed.begin,
            before=listed.before,
            messages=messages,
            blocks=blocks,
            marks=tuple(mark for mark in call.ir.cache.marks if _is_kept(mark, blocks)),
            depends=_depends(self._base, call),
            cuts=tuple(cuts),
            places=tuple(map(self._hashes.up_to, sorted(offsets))),
            size=size + texts[-1] + parts[-1],
        )
        self._requests.keep(made, None if found is None else found.kept)


def _joined(call: Call, kept: _Kept, known: int) -> Call:
    """The call of a body's rest with the known messages before its own."""
    ir, segment = call.ir, call.ir.segments[0]
    new = segment.messages
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
            system_blocks=kept.blocks or ir.system_blocks,
            segments=(Segment(segment.role, messages),),
        ),
    )


def _is_kept(mark: MarkRequest, blocks: tuple[PromptBlock, ...]) -> bool:
    return isinstance(mark, PartMark) or (bool(blocks) and isinstance(mark, BlockMark))


# ── Where the messages of a body are ─────────────────────────────────────────────────────────────


class _ListOfMessages(msgspec.Struct, frozen=True, eq=False):
    begin: int
    """The offset of the list in its body."""
    before: bytes
    """A body up to there with the names of the members before it, and a zero for each."""
    elements: list[msgspec.Raw]
    ends: Iterator[int]
    """The offsets after the elements, the last one first."""


def _list_of_messages(body: bytes, name: str) -> _ListOfMessages | None:
    """The messages of a body; None if they are not in a list, or a member is given twice."""
    members = decode_members(body)
    opening = _OPENING.match(body)
    begin, before = -1, [b"{"]
    at, closed = 0 if opening is None else opening.end(), not members
    for key, raw in members.items():
        found = _KEY.match(body, at)
        if closed or found is None or not body.startswith(raw, found.end()):
            return None
        after = _AFTER.match(body, found.end() + memoryview(raw).nbytes)
        if after is None:
            return None
        if key == name:
            begin = found.end()
            before.append(found[1] + b":[")
        elif begin < 0:
            before.append(found[1] + b":0,")
        at, closed = after.end(), after[1] == b"}"
    if not closed or begin < 0 or body[begin : begin + 1] != b"[":
        return None
    elements = decode_elements(members[name])
    ends = _ends(body, begin + memoryview(members[name]).nbytes - 1, elements)
    return _ListOfMessages(begin, b"".join(before), elements, ends)


def _ends(body: bytes, end: int, elements: list[msgspec.Raw]) -> Iterator[int]:
    """The offsets after these elements, the last one first; `end` is that of the list's bracket.
    Fewer if there is much white space between elements."""
    for raw in reversed(elements):
        end = _last_of(body, end)
        if end < 0:
            return
        yield end
        comma = _last_of(body, end - memoryview(raw).nbytes)
        if comma < 0:
            return
        end = comma - 1


def _last_of(body: bytes, end: int) -> int:
    """The offset after the last byte before `end` that is not blank; -1 if it is far."""
    start = max(0, end - _MOST_BLANK)
    found = len(body[start:end].rstrip(_BLANK))
    return start + found if found else -1


def _new_cuts(
    base: str, listed: _ListOfMessages, added: Sequence[Message]
) -> list[tuple[int, int, int]]:
    """The last places for cuts: an element, the offset after it, and how many of the added messages
    are before that."""
    elements, count = listed.elements, len(added)
    items = base == "openai_responses"
    settled = _settled(added) if base == "gemini" else None
    if items and len(elements) == 1 and added[0].role == "system":
        return []  # before other items it is the system prompt
    cuts: list[tuple[int, int, int]] = []
    for index, end in zip(range(len(elements) - 1, -1, -1), listed.ends, strict=False):
        if not count or len(cuts) == _CUTS:
            break
        is_answer = added[count - 1].role == "assistant"
        if not is_answer and (settled is None or settled[count - 1]):
            cuts.append((index, end, count))
        if not (items and is_answer and index and _is_answer(elements[index - 1])):
            count -= 1
    return cuts[::-1]


def _is_answer(item: msgspec.Raw) -> bool:
    """Whether an item of Responses is the assistant's: successive ones are one message."""
    from .openai_responses.reply import ItemReader

    return ItemReader("$", request_error).read(item)[0] == "assistant"


def _settled(messages: Sequence[Message]) -> list[bool]:
    """Whether each call of Gemini that has no id has its result after each message: which call a
    later result is for depends on those that wait."""
    settled, waiting = list[bool](), set[str]()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolCall and _has_made_id(part):
                waiting.add(part.id)
            elif type(part) is ToolResult and _has_made_id(part):
                waiting.discard(part.call_id)
        settled.append(not waiting)
    return settled


def _has_made_id(part: ToolCall | ToolResult) -> bool:
    return part.extras is not None and '"id":null' in part.extras.get("gemini.form", "")


def _depends(base: str, call: Call) -> tuple[object, ...]:
    """What the parsed messages of a call depend on besides their own bytes: with instructions, or
    after a stored response, a system message is no system prompt; marks have a default TTL."""
    if base != "openai_responses":
        return (False,)
    ir = call.ir
    blocks = ir.system_blocks
    given = bool(blocks) and blocks[0].label == "instructions"
    return given, ir.continuation is None, ir.cache.automatic


def _blocks_in_messages(base: str, call: Call) -> tuple[PromptBlock, ...]:
    """The system prompt of a call, if it was a message."""
    blocks = call.ir.system_blocks
    if base == "openai_chat" or (base == "openai_responses" and not _depends(base, call)[0]):
        return blocks
    return ()


def _text_size(raw: msgspec.Raw) -> int:
    """The most that the texts of an element take: a text has one, two or four bytes for each of its
    characters."""
    data = bytes(raw)
    if data.isascii() and b"\\u" not in data:
        return len(data)
    return len(data) * (4 if _WIDE.search(data) else 2)


def _parts_size(message: Message) -> int:
    """What a message takes besides its texts."""
    count = len(message.parts)
    for part in message.parts:
        if type(part) is ToolResult and type(part.content) is tuple:
            count += len(part.content)
    return _MESSAGE_BYTES + count * _PART_BYTES


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
    """The last offsets of each grid by which a body of so many units of the first grid may be
    found, in rising order."""
    end = units * _GRIDS[0]
    places: set[int] = set()
    for grid in _GRIDS:
        last = end // grid * grid
        places.update(range(last, max(0, last - steps * grid), -grid))
    return tuple(sorted(places))
