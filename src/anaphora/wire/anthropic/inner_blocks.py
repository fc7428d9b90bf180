"""Markers on blocks inside other blocks: in the content of tool results, search results and fetched
pages, and in the content of a document's source. They take slots like any other marker."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from anaphora.values import Ttl
from anaphora.wire.markers import INNER_LEVELS
from anaphora.wire.reading import (
    ErrorFactory,
    Members,
    encode_members,
    list_elements,
    object_members,
)

from .params import take_marker

#: The offsets of markers in a block (None: at its end), and their TTLs.
Marks: TypeAlias = list[tuple[int | None, Ttl]]

#: The members that hold inner blocks: a list of them or one, and an object with such a list.
CONTENT, SOURCE = "content", "source"
#: Blocks without inner blocks: the source of an image is long.
_ALONE = frozenset({"text", "image", "tool_use", "thinking", "redacted_thinking"})


def holds_blocks(kind: str, members: Members) -> bool:
    """Whether a block of this type may hold others."""
    return kind not in _ALONE and (CONTENT in members or SOURCE in members)


def take_inner_marks(members: Members, path: str, fail: ErrorFactory, level: int = 0) -> Marks:
    """Takes the markers out of the blocks in a block; where they stood in its bytes. All levels are
    written anew: a block has the same bytes with and without markers."""
    marks: Marks = []
    if level == INNER_LEVELS:
        return marks
    before: Members = {}
    for name, raw in members.items():
        first = bytes(memoryview(raw)[:1])
        if (name == CONTENT and first in (b"[", b"{")) or (name == SOURCE and first == b"{"):
            offset = len(encode_members({**before, name: msgspec.Raw(b"")})) - 1
            where = f"{path}.{name}"
            value, inner = _unmarked_value(raw, name, first, where, fail, level + 1)
            members[name] = raw = msgspec.Raw(value)
            marks += [(offset + at, ttl) for at, ttl in inner]
        before[name] = raw
    return marks


def _unmarked_value(
    raw: msgspec.Raw, name: str, first: bytes, path: str, fail: ErrorFactory, level: int
) -> tuple[bytes, list[tuple[int, Ttl]]]:
    """A list of blocks, a block or a source without markers, and where those stood."""
    if first == b"{":
        return _unmarked_block(raw, path, fail, level, is_block=name == CONTENT)
    blocks: list[bytes] = []
    marks: list[tuple[int, Ttl]] = []
    offset = len(b"[")
    for index, element in enumerate(list_elements(raw, path, fail)):
        block = bytes(element)
        if block[:1] == b"{":
            block, inner = _unmarked_block(element, f"{path}[{index}]", fail, level, is_block=True)
            marks += [(offset + at, ttl) for at, ttl in inner]
        blocks.append(block)
        offset += len(block) + len(b",")
    return b"[" + b",".join(blocks) + b"]", marks


def _unmarked_block(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, level: int, *, is_block: bool
) -> tuple[bytes, list[tuple[int, Ttl]]]:
    members = object_members(raw, path, fail)
    marker = take_marker(members, path, fail) if is_block else None
    marks = [
        (at, ttl) for at, ttl in take_inner_marks(members, path, fail, level) if at is not None
    ]
    data = encode_members(members)
    if marker is not None:
        marks.append((len(data) - 1, marker[0]))
    return data, marks
