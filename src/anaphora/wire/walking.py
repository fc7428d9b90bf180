"""Reads the content of requests by the request tables of the wires.

Each wire has a `RequestTable` in its `fields.py`: what each field does, and what each type of block
is. A `Walk` reads messages, tools and blocks by it, one level at a time:

    walk = Walk(TABLE)
    message = walk.message(raw, "$.messages[0]")
    for block in walk.inner(message):
        block.type, block.row.medium, block.marker

Values are raw JSON, or decoded (`Walk(TABLE, VALUES)`). The first is for readers that cut a
request: anything that is not a request of the wire is an error. The second is for readers that
search a request: values of an unexpected type have no blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from .reading import (
    DECODE_ERRORS,
    ErrorFactory,
    Members,
    decode_members,
    decode_text,
    decode_value,
    list_elements,
    object_members,
    request_error,
)
from .tables import BlockType, Level, RequestTable

#: A block that is kept whole.
_WHOLE = BlockType()


# ── Levels ───────────────────────────────────────────────────────────────────────────────────────


class SentLevel:
    """Raw JSON. Errors name the path."""

    def __init__(self, fail: ErrorFactory = request_error) -> None:
        self._fail = fail

    def members(self, value: Any, path: str) -> dict[str, Any]:
        try:
            return decode_members(value)
        except DECODE_ERRORS:
            return object_members(value, path, self._fail)  # raises

    def elements(self, value: Any, path: str) -> list[Any]:
        return list_elements(value, path, self._fail)

    def text(self, value: Any) -> str:
        return decode_text(value) if self.first(value) == b'"' else ""

    def kind(self, members: Members, path: str) -> str:
        if "type" not in members:
            raise self._fail("is missing", f"{path}.type")
        try:
            return decode_text(members["type"])
        except DECODE_ERRORS:
            kind: str = decode_value(members["type"], str, f"{path}.type", self._fail)
            return kind

    def first(self, value: Any) -> bytes:
        return bytes(memoryview(value)[:1]) if value is not None else b""

    def text_block(self, kind: str, text: Any) -> dict[str, Any]:
        return {"type": Raw(b'"%b"' % kind.encode()), "text": text}


class _ValueLevel:
    """Decoded values: one of another type than expected is empty."""

    def members(self, value: Any, path: str) -> dict[str, Any]:  # noqa: ARG002
        return dict(value) if isinstance(value, dict) else {}

    def elements(self, value: Any, path: str) -> list[Any]:  # noqa: ARG002
        return value if isinstance(value, list) else []

    def text(self, value: Any) -> str:
        return value if isinstance(value, str) else ""

    def kind(self, members: dict[str, Any], path: str) -> str:  # noqa: ARG002
        return self.text(members.get("type"))

    def first(self, value: Any) -> bytes:
        return _FIRST.get(type(value), b"")

    def text_block(self, kind: str, text: Any) -> dict[str, Any]:
        return {"type": kind, "text": text}


_FIRST: dict[type, bytes] = {str: b'"', list: b"[", dict: b"{"}
SENT, VALUES = SentLevel(), _ValueLevel()


# ── The walk ─────────────────────────────────────────────────────────────────────────────────────


class WalkedBlock(msgspec.Struct, frozen=True, gc=False):
    """A message, a block, or a tool."""

    type: str
    row: BlockType
    members: dict[str, Any]
    """Without its marker."""
    raw: Any
    """The whole value, unchanged."""
    path: str
    marker: Any = None


class Walk:
    """Reads the messages and blocks of requests of one wire."""

    __slots__ = ("_bare", "_blocks", "_level", "_marker", "_other", "table")

    def __init__(self, table: RequestTable, level: Level = SENT) -> None:
        self.table = table
        self._level = level
        self._blocks, self._other, self._marker = table.blocks, table.other, table.marker
        self._bare: Walk = self
        if table.unmarked_roles and table.marker:
            self._bare = Walk(msgspec.structs.replace(table, marker=""), level)

    def of_role(self, role: str) -> Walk:
        """The walk of messages of that role."""
        return self._bare if role in self.table.unmarked_roles else self

    def message(self, value: Any, path: str) -> WalkedBlock:
        """A message, or an item of a wire that has items."""
        members, table = self.members(value, path), self.table
        if not table.items:
            return WalkedBlock("message", table.message, members, value, path)
        text = self._level.text
        kind, role = text(members.get("type")), text(members.get("role"))
        if not kind:
            kind = "message" if role else "item_reference"
        known = kind in table.items and (role or kind != "message")
        row = self._blocks[kind] if known else _WHOLE
        return WalkedBlock(kind, row, members, value, path)

    def block(self, value: Any, path: str, *, typed: bool = True) -> WalkedBlock:
        """A block. One that is not `typed` may lack a type."""
        members, level = self.members(value, path), self._level
        marker = members.pop(self._marker, None) if self._marker else None
        if self.table.classify is not None:
            kind, row = self.table.classify(members, level)
            return WalkedBlock(kind, row, members, value, path, marker)
        kind = level.kind(members, path) if typed else level.text(members.get("type"))
        return WalkedBlock(kind, self._blocks.get(kind, self._other), members, value, path, marker)

    def inner(self, block: WalkedBlock) -> list[WalkedBlock]:
        """The blocks in a message or a block, in their order."""
        found: list[WalkedBlock] = []
        walk = self
        if block.type == "message" and self._bare is not self:
            walk = self.of_role(self._level.text(block.members.get("role")))
        for place in block.row.inside:
            found += walk.inside(block.members, place, block.path)
        return found

    def inside(self, members: dict[str, Any], place: str, path: str) -> list[WalkedBlock]:
        """The blocks in a member of an object: those of a list, a single one, or a text."""
        level = self._level
        outer, _, name = place.rpartition(".")
        if outer:
            value, path = members.get(outer), f"{path}.{outer}"
            if value is None or level.first(value) != b"{":
                return []
            members = self.members(value, path)
        value, path = members.get(name), f"{path}.{name}"
        first = b"" if value is None else level.first(value)
        if first == b"[":
            return self.listed(value, path)
        if first == b"{":
            return [self.block(value, path)]
        if first != b'"' or outer:
            return []
        kind = self.table.text
        text = level.text_block(kind, value)
        return [WalkedBlock(kind, self._blocks.get(kind, self._other), text, None, path)]

    def listed(self, value: Any, path: str) -> list[WalkedBlock]:
        """The blocks of a list."""
        elements, block = self._level.elements(value, path), self.block
        return [block(each, f"{path}[{index}]") for index, each in enumerate(elements)]

    def tools(self, value: Any, path: str) -> list[WalkedBlock]:
        """The tools of a list. Their members have the names that were sent."""
        level, found = self._level, list[WalkedBlock]()
        single = self.table.single and level.first(value) == b"{"
        for index, each in enumerate([value] if single else level.elements(value, path)):
            where = f"{path}[{index}]"
            members = level.members(each, where)
            marker = members.pop(self._marker, None) if self._marker else None
            kind = level.text(members.get("type"))
            found.append(WalkedBlock(kind, _WHOLE, members, each, where, marker))
        return found

    def function_name(self, tool: WalkedBlock) -> str:
        """The name of a tool that is a single function; empty if it has none."""
        level, members, holder = self._level, tool.members, self.table.function
        if holder:
            value = members.get(holder)
            members = level.members(value, tool.path) if level.first(value) == b"{" else {}
        return level.text(members.get("name"))

    def section(self, value: Any, path: str) -> list[WalkedBlock]:
        """The system blocks of a list. They hold no others."""
        found: list[WalkedBlock] = []
        for index, each in enumerate(self._level.elements(value, path)):
            block = self.block(each, f"{path}[{index}]", typed=False)
            if block.row.inside:
                row = msgspec.structs.replace(block.row, inside=())
                block = msgspec.structs.replace(block, row=row)
            found.append(block)
        return found

    def all_blocks(self, block: WalkedBlock) -> Iterator[WalkedBlock]:
        """The blocks in a message or block at all levels, each after those inside it."""
        for inner in self.inner(block):
            yield from self.all_blocks(inner)
            yield inner

    def members(self, value: Any, path: str) -> dict[str, Any]:
        """The members of an object, under the names that the provider reads them by."""
        members, rename = self._level.members(value, path), self.table.rename
        if rename is None or self.table.usual.issuperset(members):
            return members
        renamed = {rename(name): each for name, each in members.items()}
        if len(renamed) < len(members):
            raise request_error("a member is given under two names", path)
        return renamed
