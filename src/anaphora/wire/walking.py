"""What a request contains: one reader, and the tables that it reads by.

Each wire has a `RequestTable` in its `fields.py`: what each field does, and what each type of block
is. A `Walk` reads messages, tools and blocks by it, one level at a time:

    walk = Walk(TABLE)
    message = walk.message(raw, "$.messages[0]")
    for block in walk.inner(message):
        block.type, block.row.medium, block.marker

Values are JSON as it was sent (`Raw`), or decoded (`Walk(TABLE, VALUES)`). The first is for readers
that cut a request: what is no request of the wire is an error. The second is for readers that look
for something: what they do not understand has no blocks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from anaphora.rendered import Kind

from .reading import (
    DECODE_ERRORS,
    ErrorFactory,
    Members,
    decode_text,
    decode_value,
    list_elements,
    object_members,
    request_error,
)

Medium: TypeAlias = Literal["images", "documents", "audio"]


class Does(enum.Enum):
    """What a field of a request does."""

    TEXT = "text that the model reads"
    CACHE = "changes what is cached"
    MONEY = "changes the cost"
    TOOL = "offers tools"
    STORED = "names stored objects"
    ANSWER = "changes the answer only"
    ASK = "needs an entry in the grant"


class RequestField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a wire's requests."""

    name: str
    does: Does
    members: frozenset[str] | None = None
    """The known members of its object: others need an entry in the grant. None: any."""
    beta: bool = False
    """Accepted with a beta header only."""
    counted: bool = False
    """Also a field of requests that only count tokens."""
    unread: bool = False
    """No model reads it, whatever its value."""
    prose: bool = False
    """Its value may be text that a model reads, although the field does something else."""
    prose_members: frozenset[str] = frozenset()
    """The same for members of its object, known or not; the others are parameters."""

    @property
    def is_param(self) -> bool:
        """Whether the value is a number or a name, and no text that a model reads."""
        return not self.prose and self.does not in (Does.TEXT, Does.TOOL, Does.ASK)


class BlockType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of block, part or item."""

    chunk: Kind = Kind.OTHER
    markable: bool = False
    medium: Medium | None = None
    inside: tuple[str, ...] = ()
    """The members that hold other blocks, a list of them or one; `source.content`: in an object."""
    shows: frozenset[str] | None = frozenset()
    """The types of the blocks inside whose media the model sees; None: of all."""
    data: tuple[str, ...] = ()
    """The members that lead to inline bytes; the first that is there counts."""
    opaque: frozenset[str] = frozenset()
    """The members with JSON of the app's own, or with sources that an answer named: the provider
    opens nothing that they name."""
    members: frozenset[str] | None = None
    """What the provider accepts in it; None: not known."""
    plain: bool = False
    """Only text or a tool call: it has no media and refers to nothing."""
    beta: bool = False
    changes_tools: bool = False
    by_app: bool = False
    """An item that the app makes, not the model."""


#: A type that is not in the table.
OTHER_TYPE = BlockType(inside=("content", "source.content"))
#: An item that is sent on as it is.
_WHOLE = BlockType()


class RequestTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a wire contain."""

    wire: str
    fields: Mapping[str, RequestField]
    blocks: Mapping[str, BlockType]
    other: BlockType = OTHER_TYPE
    """Of blocks whose type is not in the table."""
    message: BlockType = BlockType(inside=("content",), shows=None)
    """Of messages without a type."""
    message_fields: Mapping[str, frozenset[str]] = {}
    """By role: the members that the provider accepts."""
    messages: str = "messages"
    system: str = ""
    """The field of the system text, where that is no message."""
    items: frozenset[str] = frozenset()
    """The types of its messages, where they are items with types of their own."""
    turns: frozenset[str] = frozenset()
    """Of `items`: calls, results and reasoning. Others, such as those that define tools, instruct
    the model."""
    content: frozenset[str] = frozenset({"content"})
    """The members of a message of a user, a model or a tool that are no instructions."""
    role_implied: bool = False
    """A message without a role is the user's."""
    params: frozenset[str] = frozenset()
    """Parameters that other hosts of this wire take in fields of the body."""
    marker: str = ""
    """The member that marks a block."""
    unmarked_roles: frozenset[str] = frozenset()
    """The roles whose messages carry no markers."""
    text: str = "text"
    """The type that content has which is a mere text."""
    rename: Callable[[str], str] | None = None
    """How the provider reads the names of members, where not as they are written."""
    usual: frozenset[str] = frozenset()
    """Names of members that `rename` does not change."""
    classify: Callable[[dict[str, Any], Level], tuple[str, BlockType]] | None = None
    """Tells the type of a block that names none."""
    media_roles: frozenset[str] | None = None
    """The roles whose messages show media to the model; None: all."""
    function: str = ""
    """The member of a tool that holds its function, or a list of functions; empty: the tool is the
    function."""
    single: bool = False
    """A single object stands for a list of one."""
    nested_tools: bool = False
    """Tools may hold others."""
    tool: frozenset[str] | None = None
    """The members of a function that the provider accepts; None: not known."""
    limit: str = "max_tokens"
    """The field that limits the output."""
    smallest_limit: int = 1
    """Of the output: some hosts take 0 for no limit."""
    unlimited_below: bool = False
    """A smaller limit of the output is none."""
    limits_thinking: bool = False
    """The limit of the output includes thinking that has a budget of its own."""
    named_in_path: bool = False
    """The path names the model. Such a wire also takes names in snake_case."""
    streams_by_default: bool = False
    plain: Any = None
    """The type of messages without unknown members, where the types of blocks do not tell."""
    is_plain: Callable[[Any], bool] | None = None
    """Whether a message of a plain type holds only text and tool calls."""

    def names(self, *, beta: bool, counted: bool = False) -> frozenset[str]:
        """The fields that the provider accepts, with or without a beta header."""
        return frozenset(
            field.name
            for field in self.fields.values()
            if field.beta == beta and (field.counted or not counted) and "." not in field.name
        )


def request_fields(
    does: Mapping[Does, str],
    *,
    members: Mapping[str, str] | None = None,
    beta: str = "",
    counted: str = "",
    unread: str = "",
    prose: str = "",
) -> dict[str, RequestField]:
    """The fields of a wire by their names: what they do, and the known members of objects. `prose`
    has fields, and members as `FIELD.MEMBER`."""
    known = {name: frozenset(names.split()) for name, names in (members or {}).items()}
    betas, counts, unreads = (frozenset(each.split()) for each in (beta, counted, unread))
    texts, inner = frozenset(prose.split()), dict[str, set[str]]()
    for name in texts:
        field, _, member = name.partition(".")
        inner.setdefault(field, set()).update([member] if member else [])
    return {
        name: RequestField(
            name=name,
            does=what,
            members=known.get(name),
            beta=name in betas,
            counted=name in counts,
            unread=name in unreads,
            prose=name in texts,
            prose_members=frozenset(inner.get(name, ())),
        )
        for what, names in does.items()
        for name in names.split()
    } | {
        name: RequestField(name=name, does=Does.ANSWER, members=known[name])
        for name in known
        if "." in name
    }


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ── Levels ───────────────────────────────────────────────────────────────────────────────────────


class Level(Protocol):
    """How the values of a request are read."""

    def members(self, value: Any, path: str) -> dict[str, Any]:
        """The members of an object, which may be changed."""

    def elements(self, value: Any, path: str) -> list[Any]: ...

    def text(self, value: Any) -> str:
        """A text; empty for anything else."""

    def kind(self, members: dict[str, Any], path: str) -> str:
        """The type of a block."""

    def first(self, value: Any) -> bytes:
        """The first byte of a value, which tells its JSON type."""

    def text_block(self, kind: str, text: Any) -> dict[str, Any]:
        """The members of a block of text."""


class SentLevel:
    """JSON as it was sent. Errors name the path."""

    def __init__(self, fail: ErrorFactory = request_error) -> None:
        self._fail = fail

    def members(self, value: Any, path: str) -> dict[str, Any]:
        return object_members(value, path, self._fail)

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
    """All of it, as it was given."""
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
        """The name of a tool that is one function; empty where it has none."""
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
        """The blocks in a message or block at all levels, each behind those inside it."""
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


def request_table(wire: str) -> RequestTable:
    """What the requests of a wire contain (not of a dialect)."""
    found: RequestTable = import_module(f"anaphora.wire.{wire}.fields").TABLE
    return found
