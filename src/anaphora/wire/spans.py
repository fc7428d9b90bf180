"""Offsets of the values of a JSON document in its bytes.

msgspec reads the document and gives the length of each value; only the white space, commas and keys
between the values are read here. An ambiguous document, such as one that has a key twice, is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import add, itemgetter
from typing import NamedTuple, TypeAlias

import msgspec

from anaphora.errors import InvalidRequest

from .reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    decode_members,
    decode_reason,
    decode_value,
    request_error,
)

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_QUOTE, _CLOSE, _COMMA, _COLON = b'"},:'
_OPEN_LIST, _CLOSE_LIST = b"[]"
_BLANK = 32
_BLANKS = b" \t\n\r"


class ByteSpan(NamedTuple):
    """Bytes from `start` up to `end`."""

    start: int
    end: int


class MemberSpan(NamedTuple):
    """A member of an object: the start of its key and of its value, and the end of the value."""

    key: int
    start: int
    end: int

    @property
    def value(self) -> ByteSpan:
        return ByteSpan(self.start, self.end)


def document_span(body: bytes) -> ByteSpan:
    """The document without the white space around it."""
    end = len(body)
    while end and body[end - 1] in _BLANKS:
        end -= 1
    return ByteSpan(_after_space(body, 0), end)


def is_text(body: bytes, span: ByteSpan) -> bool:
    return body[span.start] == _QUOTE


def is_list(body: bytes, span: ByteSpan) -> bool:
    return body[span.start] == _OPEN_LIST


def member_spans(
    body: bytes, span: ByteSpan, path: str, members: Members | None = None
) -> dict[str, MemberSpan]:
    """The members of an object. The bytes of each value are compared with what msgspec read, so
    keys, values and the bytes between them cover the whole object: it has no other members.
    `members` are those, if they are already decoded."""
    if members is None:
        try:
            members = decode_members(memoryview(body)[span.start : span.end])
        except DECODE_ERRORS as problem:
            reason = decode_reason(problem, body[span.start : span.end])
            raise request_error(f"not a JSON object: {reason}", path) from None
    found = _usual_members(body, span, members)
    if found is not None:
        return found
    found = {}
    position = _after_space(body, span.start + 1)
    for name, raw in members.items():
        key = _STRING.match(body, position)
        if key is None or decode_value(key[0], str, path, request_error) != name:
            raise _ambiguous(path)
        start = _after_space(body, _expect(body, _after_space(body, key.end()), _COLON, path))
        end = start + memoryview(raw).nbytes
        if not body.startswith(raw, start):
            raise _ambiguous(path)
        found[name] = MemberSpan(position, start, end)
        position = _after_space(body, end)
        if len(found) < len(members):
            position = _after_space(body, _expect(body, position, _COMMA, path))
    if _expect(body, position, _CLOSE, path) != span.end:
        raise _ambiguous(path)
    return found


def _usual_members(body: bytes, span: ByteSpan, members: Members) -> dict[str, MemberSpan] | None:
    """`member_spans` for keys without escapes, and blanks only after colons and commas."""
    blank = b" " if body.startswith(b'": ', body.find(b'"', span.start + 2)) else b""
    found: dict[str, MemberSpan] = {}
    position, comma = span.start + 1, b"," + blank
    for name, raw in members.items():
        key = b'"%b":%b' % (name.encode(), blank)
        start = position + len(key)
        end = start + memoryview(raw).nbytes
        if not body.startswith(key, position) or not body.startswith(raw, start):
            return None
        if not body.startswith(comma if len(found) + 1 < len(members) else b"}", end):
            return None
        found[name] = MemberSpan(position, start, end)
        position = end + len(comma)
    return found if found and end + 1 == span.end else None


def element_spans(body: bytes, span: ByteSpan, path: str) -> list[ByteSpan]:
    """The elements of a list."""
    if not is_list(body, span):
        raise request_error("not a JSON list", path)
    try:
        elements = decode_elements(memoryview(body)[span.start : span.end])
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), path) from None
    sizes = [memoryview(raw).nbytes for raw in elements]
    found: list[ByteSpan] = []
    position = span.start + 1
    if sum(sizes) + len(sizes) + 1 == span.end - span.start:
        # Nothing but brackets and commas is around the elements.
        starts = list(accumulate((size + 1 for size in sizes), initial=position))[:-1]
        return list(map(ByteSpan, starts, map(add, starts, sizes)))
    for raw in elements:
        if found:
            position = _expect(body, position, _COMMA, path)
        start = _after_space(body, position)
        end = start + memoryview(raw).nbytes
        found.append(ByteSpan(start, end))
        position = _after_space(body, end)
    if _expect(body, _after_space(body, position), _CLOSE_LIST, path) != span.end:
        raise _ambiguous(path)
    return found


def known_element_span(
    body: bytes, span: ByteSpan, elements: Sequence[msgspec.Raw], position: int, path: str
) -> ByteSpan:
    """The span of one of the already decoded elements of a list, found from the end of the list."""
    last = len(elements) - 1
    start = end = span.end - 1
    for index in range(last, position - 1, -1):
        end = start
        if index < last:
            while body[end - 1] in _BLANKS:
                end -= 1
            if body[end - 1] != _COMMA:
                raise _ambiguous(path)
            end -= 1
        while body[end - 1] in _BLANKS:
            end -= 1
        raw = elements[index]
        start = end - memoryview(raw).nbytes
    if start <= span.start or not body.startswith(raw, start):
        raise _ambiguous(path)
    return ByteSpan(start, end)


def _after_space(body: bytes, position: int) -> int:
    # Nearly always there is none, or one blank.
    if position < len(body) and body[position] > _BLANK:
        return position
    if position + 1 < len(body) and body[position] == _BLANK < body[position + 1]:
        return position + 1
    match = _SPACE.match(body, position)
    assert match is not None
    return match.end()


def _expect(body: bytes, position: int, character: int, path: str) -> int:
    """The position after this character, which must be there."""
    if position >= len(body) or body[position] != character:
        raise _ambiguous(path)
    return position + 1


def _ambiguous(path: str) -> InvalidRequest:
    return request_error("a member is given twice, or the JSON is ambiguous", path)


# ── Edits ────────────────────────────────────────────────────────────────────────────────────────

#: Bytes in place of those between two offsets.
Edit: TypeAlias = tuple[int, int, bytes]
_EDIT_PLACE = itemgetter(0, 1)


def removal_span(members: dict[str, MemberSpan], name: str, holder: ByteSpan) -> ByteSpan:
    """The span of a member with the comma before it, else the one after it."""
    names, span = list(members), members[name]
    index = names.index(name)
    if index:
        return ByteSpan(members[names[index - 1]].end, span.end)
    return ByteSpan(span.key, members[names[1]].key if len(names) > 1 else holder.end - 1)


def edited(body: bytes, edits: list[Edit]) -> bytes:
    """A body with edits that do not overlap; the same object if there are none."""
    if not edits:
        return body
    pieces: list[bytes | memoryview] = []
    view, done = memoryview(body), 0
    for start, end, inserted in sorted(edits, key=_EDIT_PLACE):
        assert start >= done, "edits of one body must not overlap"
        pieces += [view[done:start], inserted]
        done = end
    pieces.append(view[done:])
    return b"".join(pieces)
