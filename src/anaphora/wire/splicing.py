"""Puts markers into the bytes of a request, and changes nothing else (`wire.splice`).

White space, key order, numbers, escapes and the forms of content stay. Only a block can carry a
marker: a text that needs one becomes a list of one text block, with the bytes of the text
unchanged. Providers read both forms as the same prompt, so the cached prefix stays the same.

Markers of the request stay, with their TTL; those of the plan are added while there are slots. With
`replace`, the request ends up with the plan's markers only. Fields of the whole request (an
automatic breakpoint, the cache key, the cache options) are only added if the request has none of
that name.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Dialect
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkRun, Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Notice

from .breakpoints import key_place
from .elements import DecodedBody
from .markers import INNER_LEVELS, MARKER_PLACES, MarkerPlaces
from .reading import (
    Members,
    decode_members,
    decode_text,
    encode_members,
    request_error,
)
from .spans import (
    ByteSpan,
    Edit,
    MemberSpan,
    document_span,
    edited,
    element_spans,
    is_text,
    known_element_span,
    member_spans,
    removal_span,
)
from .tables import request_table

_OPEN_LIST, _OPEN_OBJECT = b"[{"
#: A marker: its chunk, and its offset in the chunk if that is not the chunk's own splice.
_Place = tuple[int, int | None]


class SplicedBody(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request with markers."""

    body: bytes
    """The given object, if nothing was changed."""
    marks: tuple[Mark, ...]
    """All markers that it has now."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers to send with it: some providers take the cache key in a header."""
    notices: tuple[Notice, ...] = ()


class _Target(msgspec.Struct, frozen=True):
    """The place of one marker, and the bytes to add around it."""

    block: ByteSpan
    opening: bytes = b""
    """The bytes that make a text a block."""
    close: bytes = b""


def splice(
    body: bytes,
    plan: Plan,
    rendered: Rendered,
    dialect: Dialect | None = None,
    *,
    replace: bool = False,
    slots: int | None = None,
    decoded: DecodedBody | None = None,
) -> SplicedBody:
    """`rendered` is the request, split by the codec of its wire or dialect; `decoded` is the body,
    if it is already decoded."""
    places = MARKER_PLACES.get(rendered.wire)
    notices: list[Notice] = []
    if plan.held is not None or plan.preludes:
        notices.append(Notice("handle_left_out", "a cache handle cannot be put into a request"))
    if places is None or (dialect is not None and dialect.markers == {}):
        if plan.marks or plan.automatic is not None:
            notices.append(Notice("markers_left_out", "this provider takes no markers"))
        return SplicedBody(body=body, marks=rendered.marks, notices=tuple(notices))
    work = _Splicing(body, rendered, places, dialect, notices, decoded)
    if plan.marks or rendered.marks:
        work.place(plan, replace=replace, slots=slots)
    headers = work.fields(plan, replace=replace)
    body, marks = edited(body, work.edits), tuple(work.marks)
    return SplicedBody(body=body, marks=marks, headers=headers, notices=tuple(notices))


class _Splicing:
    """One request that is being marked."""

    def __init__(
        self,
        body: bytes,
        rendered: Rendered,
        places: MarkerPlaces,
        dialect: Dialect | None,
        notices: list[Notice],
        decoded: DecodedBody | None,
    ) -> None:
        self._body = body
        self._decoded = None if decoded is None else decoded.members
        self._known = None if decoded is None else decoded.elements
        self._rendered = rendered
        self._places = places
        self._dialect = dialect
        self._notices = notices
        self._names: tuple[str, ...] = ()
        """The members of a marker."""
        self.edits: list[Edit] = []
        self._root: dict[str, MemberSpan] | None = None
        self._lists: dict[int, list[ByteSpan]] = {}
        self.marks: list[Mark] = list(rendered.marks)

    # ── Markers ──────────────────────────────────────────────────────────────────────────────────

    def place(self, plan: Plan, *, replace: bool, slots: int | None) -> None:
        own_form = None if self._dialect is None else self._dialect.markers
        self._table = request_table(self._rendered.wire)
        self._names = (self._table.marker,)
        if own_form:
            self._names = tuple({name for form in own_form.values() for name in form})
        own = {(mark.chunk, mark.splice): mark for mark in self._rendered.marks}
        wanted = {(mark.chunk, mark.splice): mark for mark in plan.marks}
        if replace:
            for place, mark in own.items():
                if wanted.get(place) != mark:
                    self._remove_marker(place)
            new = [mark for place, mark in wanted.items() if own.get(place) != mark]
            kept = [mark for place, mark in own.items() if wanted.get(place) == mark]
        else:
            new = [mark for place, mark in wanted.items() if place not in own]
            kept = list(own.values())
            new = self._within(new, None if slots is None else max(0, slots - len(kept)))
            if kept:
                new = [self._in_order(mark, kept) for mark in new]
        placed = [
            mark for mark in new if self._insert(mark, removed=(mark.chunk, mark.splice) in own)
        ]
        self.marks = sorted([*kept, *placed], key=_hash_order)

    def _within(self, new: list[Mark], room: int | None) -> list[Mark]:
        """As many marks as there are slots: the last ones, which cover the most."""
        if room is None or len(new) <= room:
            return new
        dropped = new[: len(new) - room]
        for mark in dropped:
            self._leave_out(mark, "the request's own markers use all slots")
        return new[len(new) - room :]

    def _in_order(self, mark: Mark, kept: list[Mark]) -> Mark:
        """The mark with a TTL that is accepted between the markers that stay: a longer one may not
        follow a shorter one."""
        ttl = mark.ttl
        for other in kept:
            behind = _hash_order(other) > _hash_order(mark)
            longer = TTL_SECONDS[other.ttl] > TTL_SECONDS[ttl]
            if behind == longer and other.ttl != ttl:
                ttl = other.ttl
        if ttl == mark.ttl:
            return mark
        reason = f"this marker gets {ttl}, not {mark.ttl}: longer TTLs must come first"
        path = self._rendered.chunk(mark.chunk).path
        self._notices.append(Notice("ttl_changed", reason, path))
        return Mark(mark.chunk, ttl, mark.splice)

    def _insert(self, mark: Mark, *, removed: bool) -> bool:
        """Insert a marker; False if the block has one that cannot be read."""
        marker = self._rendered.markers.get(mark.ttl)
        if marker is None:
            known = " or ".join(self._rendered.markers) or "none"
            reason = f"this provider has no TTL of {mark.ttl}; use {known}"
            raise InvalidRequest(reason, path="plan.marks")
        run, index = self._rendered.locate(mark.chunk)
        if mark.splice is None and run.log.splices[index] < 0:
            raise InvalidRequest(f"{run.path(index)} takes no marker", path="plan.marks")
        target = self._target((mark.chunk, mark.splice))
        start, end = target.block
        if target.opening:
            self.edits.append((start, start, target.opening))
            self.edits.append((end, end, marker + b"}" + target.close))
            return True
        members = member_spans(self._body, target.block, "$")
        for name in self._names:
            if name not in members:
                continue
            span = members[name]
            if self._body[span.start : span.end] == b"null":
                self._remove(members, name, target.block)
            elif not removed:
                self._leave_out(mark, f"the block has a {name} of another form")
                return False
        bare = all(name in self._names for name in members)
        self.edits.append((end - 1, end - 1, marker[1:] if bare else marker))
        return True

    def _remove_marker(self, place: _Place) -> None:
        block = self._target(place).block
        members = member_spans(self._body, block, "$")
        for name in members.keys() & self._names:
            self._remove(members, name, block)

    def _remove(self, members: dict[str, MemberSpan], name: str, block: ByteSpan) -> None:
        self.edits.append((*removal_span(members, name, block), b""))

    def _leave_out(self, mark: Mark, reason: str) -> None:
        path = self._rendered.chunk(mark.chunk).path
        self._notices.append(Notice("marker_left_out", reason, path))

    # ── Locating ─────────────────────────────────────────────────────────────────────────────────

    def _target(self, place: _Place) -> _Target:
        """The block of a chunk, or the text that becomes one."""
        chunk, inside = place
        run, index = self._rendered.locate(chunk)
        name, position, block = _steps(run, index)
        places, path = self._places, f"$.{name}"
        field = self._members()[name].value
        if is_text(self._body, field):
            if run.section != "messages":
                return _Target(field, b"[" + places.text, b"]")
            return _Target(field, b"[" + places.message + places.text, b"]}]")
        item = self._element(field, name, position)
        if block is None:
            return self._nested(item, chunk, inside)
        path = f"{path}[{position}]"
        if is_text(self._body, item):
            return _Target(item, places.message + places.text, b"]}")
        members = member_spans(self._body, item, path)
        listed = next((each for each in places.contents if each in members), "")
        if not listed:
            raise request_error("has no content that can be marked", path)
        content = members[listed].value
        if is_text(self._body, content):
            return _Target(content, b"[" + places.text, b"]")
        if listed == places.joined and inside is not None:
            return self._nested(item, chunk, inside)
        blocks = self._elements(content, f"{path}.{listed}")
        return self._nested(blocks[-1 if listed == places.joined else block], chunk, inside)

    def _nested(self, block: ByteSpan, chunk: int, inside: int | None) -> _Target:
        """The block itself, or the one inside it whose end is at the offset `inside` of the chunk.
        Chunks hold members without white space and without markers, and end with their block."""
        if inside is None:
            return _Target(block)
        size = len(self._rendered.chunk_data(chunk))
        if self._places.joined:
            return self._joined(block, size, inside)
        bare, found = self._inner_blocks(block)
        for end, inner in found:
            if size - bare + end == inside:
                return _Target(inner)
        raise InvalidRequest("no block inside this one to mark", path="plan.marks")

    def _joined(self, block: ByteSpan, size: int, inside: int) -> _Target:
        """One of the blocks in a list that is one chunk. Its offset is counted back from the end of
        the chunk, without the brackets after the list."""
        members = member_spans(self._body, block, "$")
        listed = self._places.joined
        if listed not in members or is_text(self._body, members[listed].value):
            raise InvalidRequest("no block inside this one to mark", path="plan.marks")
        for element in reversed(self._elements(members[listed].value, "$")):
            if size - 1 == inside:
                return _Target(element)
            size -= self._bare_size(element) + 1
        raise InvalidRequest("no block inside this one to mark", path="plan.marks")

    def _inner_blocks(
        self, block: ByteSpan, level: int = 0, *, is_block: bool = True
    ) -> tuple[int, list[tuple[int, ByteSpan]]]:
        """The size of a block in a chunk, and the blocks inside it at all levels with the offset of
        the end of each."""
        body, found = self._body, list[tuple[int, ByteSpan]]()
        members = member_spans(body, block, "$")
        holders = self._holders(members) if is_block else {"content": "content"}
        size = 1
        for name, span in members.items():
            if is_block and name in self._names:
                continue
            size += len(string(name)) + 1
            place = holders.get(name) if level < INNER_LEVELS else None
            holds_blocks, listed = name == place, body[span.start] == _OPEN_LIST
            values = None if place is None else self._inner_values(holds_blocks, span)
            if values is None:
                size += span.end - span.start + 1
                continue
            size += listed
            for value in values:
                if body[value.start] != _OPEN_OBJECT:
                    size += value.end - value.start + 1
                    continue
                bare, inner = self._inner_blocks(value, level + 1, is_block=holds_blocks)
                found += [(size + end, each) for end, each in inner]
                if holds_blocks:
                    found.append((size + bare - 1, value))
                size += bare + 1
            size += listed + (not values)
        return max(size, 2), found

    def _holders(self, members: dict[str, MemberSpan]) -> dict[str, str]:
        """The members of a block that hold others, and the paths in them."""
        span, kind = members.get("type"), ""
        if span is not None and is_text(self._body, span.value):
            kind = decode_text(self._body[span.start : span.end])
        row = self._table.blocks.get(kind, self._table.other)
        return {place.partition(".")[0]: place for place in row.inside}

    def _inner_values(self, lists: bool, span: MemberSpan) -> list[ByteSpan] | None:
        """The values of a member that holds other blocks, in a list or one; None for any other."""
        first = self._body[span.start]
        if first == _OPEN_OBJECT:
            return [span.value]
        return self._elements(span.value, "$") if first == _OPEN_LIST and lists else None

    def _bare_size(self, block: ByteSpan) -> int:
        """The size of a block without white space and markers."""
        members: Members = decode_members(self._body[block.start : block.end])
        return len(encode_members({n: raw for n, raw in members.items() if n not in self._names}))

    def _members(self) -> dict[str, MemberSpan]:
        if self._root is None:
            span = document_span(self._body)
            self._root = member_spans(self._body, span, "$", self._decoded)
        return self._root

    def _element(self, span: ByteSpan, name: str, position: int) -> ByteSpan:
        known, path = self._known, f"$.{name}"
        if known is None or known.name != name:
            return self._elements(span, path)[position]
        return known_element_span(self._body, span, known.raws, position, path)

    def _elements(self, span: ByteSpan, path: str) -> list[ByteSpan]:
        known = self._lists.get(span.start)
        if known is None:
            known = self._lists[span.start] = element_spans(self._body, span, path)
        return known

    # ── Fields of the request ────────────────────────────────────────────────────────────────────

    def fields(self, plan: Plan, *, replace: bool) -> tuple[tuple[str, str], ...]:
        """Adds the plan's fields that the request does not have; returns headers."""
        places, rendered = self._places, self._rendered
        added: list[bytes] = []
        headers: tuple[tuple[str, str], ...] = ()
        if places.automatic:
            if replace and rendered.automatic not in (None, plan.automatic):
                span = document_span(self._body)
                self._remove(self._members(), places.automatic, span)
                self._members().pop(places.automatic)
            if plan.automatic is not None and rendered.request_markers:
                added.append(rendered.request_markers[plan.automatic])
        if plan.only_marks and places.only_marks:
            added.append(places.only_marks)
        if plan.key is not None:
            place = key_place(self._dialect, places)
            if isinstance(place, str):
                headers = ((place, plan.key),)
            elif place is not None:
                added.append(place + string(plan.key))
        if not added:
            return headers
        end = self._body.rindex(b"}")
        names = self._members() if self._decoded is None or self._root else self._decoded
        for field in added:
            name = next(iter(decode_members(b"{" + field[1:] + b"}")))
            if name not in names:
                self.edits.append((end, end, field))
        return headers


def _steps(run: ChunkRun, index: int) -> tuple[str, int, int | None]:
    """The list of the body that holds a chunk, the element in it, and the block in that; None if
    the element is the block itself."""
    if run.section == "messages":
        log = run.log
        message = log.message_of(index)
        first = log.message_ends[message - 1] if message else 0
        return run.place or "messages", run.first_message + message, index - first
    name, _, rest = run.path(index).partition("[")
    position, _, inner = rest.partition("]")
    if not inner:
        return name, int(position), None
    return name, int(position), int(inner.rpartition("[")[2][:-1])


def _hash_order(mark: Mark) -> tuple[int, float]:
    return mark.chunk, float("inf") if mark.splice is None else mark.splice
