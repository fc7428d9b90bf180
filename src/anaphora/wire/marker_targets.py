"""Finds the blocks that carry the markers of a request, in its bytes."""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkRun, Rendered

from .elements import DecodedBody
from .markers import INNER_LEVELS, MarkerPlaces
from .reading import Members, decode_members, decode_text, encode_members, request_error
from .spans import (
    ByteSpan,
    MemberSpan,
    document_span,
    element_spans,
    is_text,
    known_element_span,
    member_spans,
)
from .tables import request_table

_OPEN_LIST, _OPEN_OBJECT, _QUOTE = b'[{"'


class MarkerTarget(msgspec.Struct, frozen=True):
    """The place of one marker, and the bytes to add around it."""

    block: ByteSpan
    opening: bytes = b""
    """The bytes that make a text a block."""
    close: bytes = b""
    element: ByteSpan | None = None
    """The marker after the block, on a wire whose markers are elements; of any form."""


class MarkerLocator:
    """The blocks of one request."""

    def __init__(
        self,
        body: bytes,
        rendered: Rendered,
        places: MarkerPlaces,
        decoded: DecodedBody | None,
        names: tuple[str, ...],
    ) -> None:
        """`names` are the members of a marker."""
        self._body = body
        self._decoded = None if decoded is None else decoded.members
        self._known = None if decoded is None else decoded.elements
        self._rendered = rendered
        self._places = places
        self._names = names
        self._root: dict[str, MemberSpan] | None = None
        self._fields: dict[str, ByteSpan] = {}
        self._lists: dict[int, list[ByteSpan]] = {}

    def target(
        self, chunk: int, inside: int | None, located: tuple[ChunkRun, int] | None = None
    ) -> MarkerTarget:
        """The block of a chunk, or the text that becomes one; `inside` is the marker's offset in
        the chunk, if that is not the chunk's own splice."""
        run, index = located or self._rendered.locate(chunk)
        name, position, block = _steps(run, index)
        places, path = self._places, f"$.{name}"
        field = self._fields.get(name)
        if field is None:
            field = self._fields[name] = self._field(name)
        if self._body[field.start] == _QUOTE:
            if run.section != "messages":
                return MarkerTarget(field, b"[" + places.text, b"]")
            return MarkerTarget(field, b"[" + places.message + places.text, b"]}]")
        if places.is_element and block is None:
            return self._with_element(self._elements(field, path), chunk, position)
        item = self._element(field, name, position)
        if block is None:
            return self._nested(item, chunk, inside)
        path = f"{path}[{position}]"
        if self._body[item.start] == _QUOTE:
            return MarkerTarget(item, places.message + places.text, b"]}")
        members = member_spans(self._body, item, path)
        for listed in places.contents:
            if listed in members:
                break
        else:
            raise request_error("has no content that can be marked", path)
        content = members[listed].value
        if self._body[content.start] == _QUOTE:
            return MarkerTarget(content, b"[" + places.text, b"]")
        if listed == places.joined and inside is not None:
            return self._nested(item, chunk, inside)
        blocks = self._elements(content, f"{path}.{listed}")
        if places.is_element:
            return self._with_element(blocks, chunk, block)
        return self._nested(blocks[-1 if listed == places.joined else block], chunk, inside)

    def _with_element(self, listed: list[ByteSpan], chunk: int, block: int) -> MarkerTarget:
        """A block of a list that also holds markers, and the marker after it. Markers are no
        chunks, so the request's own ones before the block are counted."""
        first = chunk - block
        at = block + sum(first <= mark.chunk < chunk for mark in self._rendered.marks)
        if at + 1 < len(listed):
            after = listed[at + 1]
            members = decode_members(memoryview(self._body)[after.start : after.end])
            if not members.keys().isdisjoint(self._names):
                return MarkerTarget(listed[at], element=after)
        return MarkerTarget(listed[at])

    def _nested(self, block: ByteSpan, chunk: int, inside: int | None) -> MarkerTarget:
        """The block itself, or the one inside it whose end is at the offset `inside` of the chunk.
        Chunks hold members without white space and without markers, and end with their block."""
        if inside is None:
            return MarkerTarget(block)
        size = len(self._rendered.chunk_data(chunk))
        if self._places.joined:
            return self._joined(block, size, inside)
        bare, found = self._inner_blocks(block)
        for end, inner in found:
            if size - bare + end == inside:
                return MarkerTarget(inner)
        raise InvalidRequest("no block inside this one to mark", path="plan.marks")

    def _joined(self, block: ByteSpan, size: int, inside: int) -> MarkerTarget:
        """One of the blocks in a list that is one chunk. Its offset is counted back from the end of
        the chunk, without the brackets after the list."""
        members = member_spans(self._body, block, "$")
        listed = self._places.joined
        if listed not in members or is_text(self._body, members[listed].value):
            raise InvalidRequest("no block inside this one to mark", path="plan.marks")
        for element in reversed(self._elements(members[listed].value, "$")):
            if size - 1 == inside:
                return MarkerTarget(element)
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
        table = request_table(self._rendered.wire)
        row = table.blocks.get(kind, table.other)
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

    def _field(self, name: str) -> ByteSpan:
        """The value of a field, which may be a member of another: `toolConfig.tools`."""
        name, _, member = name.partition(".")
        span = self.members()[name].value
        return member_spans(self._body, span, f"$.{name}")[member].value if member else span

    def members(self) -> dict[str, MemberSpan]:
        """The members of the request."""
        if self._root is None:
            span = document_span(self._body)
            self._root = member_spans(self._body, span, "$", self._decoded)
        return self._root

    def names(self) -> Members | dict[str, MemberSpan]:
        """The fields of the request by their names."""
        return self.members() if self._decoded is None or self._root else self._decoded

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
