"""Types of the tables in the wires' `fields.py`, which describe the content of requests."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from anaphora.rendered import Kind

Medium: TypeAlias = Literal["images", "documents", "audio"]


class Effect(enum.Enum):
    """The effect of a request field."""

    TEXT = "text that the model reads"
    CACHE = "affects the cache"
    MONEY = "changes the cost"
    TOOL = "offers tools"
    STORED = "names stored objects"
    ANSWER = "changes the answer only"
    ASK = "needs an entry in the grant"


class RequestField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a wire's requests."""

    name: str
    effect: Effect
    members: frozenset[str] | None = None
    """The known members of its object: others need an entry in the grant. None: any."""
    beta: bool = False
    """Accepted with a beta header only."""
    counted: bool = False
    """Also a field of requests that only count tokens."""
    unread: bool = False
    """No model reads it, for any value."""
    prose: bool = False
    """Its value may be text that a model reads, although the field does something else."""
    prose_members: frozenset[str] = frozenset()
    """Members of its object that may be such text, known or not; the others are parameters."""

    @property
    def is_param(self) -> bool:
        """Whether the value is a number or a name, and no text that a model reads."""
        return not self.prose and self.effect not in (Effect.TEXT, Effect.TOOL, Effect.ASK)


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
    """The members that hold inline bytes; the first present one is used."""
    opaque: frozenset[str] = frozenset()
    """The members with the app's own JSON, or with sources from an earlier reply: the provider
    fetches nothing that they name."""
    members: frozenset[str] | None = None
    """The members that the provider accepts; None: not known."""
    beta: bool = False
    changes_tools: bool = False
    by_app: bool = False
    """An item that the app makes, not the model."""


#: A type that is not in the table.
OTHER_TYPE = BlockType(inside=("content", "source.content"))


class RequestTable(msgspec.Struct, frozen=True, kw_only=True):
    """The fields and block types of a wire's requests."""

    wire: str
    fields: Mapping[str, RequestField]
    blocks: Mapping[str, BlockType]
    other: BlockType = OTHER_TYPE
    """The row of blocks whose type is not in the table."""
    message: BlockType = BlockType(inside=("content",), shows=None)
    """The row of messages without a type."""
    message_fields: Mapping[str, frozenset[str]] = {}
    """The members that the provider accepts, by role."""
    messages: str = "messages"
    system: str = ""
    """The field of the system text, if that is not a message."""
    items: frozenset[str] = frozenset()
    """The types of its messages, if they are items with types of their own."""
    turns: frozenset[str] = frozenset()
    """Those `items` that are calls, results and reasoning. Others, such as those that define tools,
    instruct the model."""
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
    """The type of content that is a plain text."""
    rename: Callable[[str], str] | None = None
    """Converts the names of members to the provider's, if it accepts several spellings."""
    usual: frozenset[str] = frozenset()
    """Names of members that `rename` does not change."""
    classify: Callable[[dict[str, Any], Level], tuple[str, BlockType]] | None = None
    """Tells the type of a block that names none."""
    one_member: bool = False
    """A block or tool is an object with one member, which names its kind."""
    media_roles: frozenset[str] | None = None
    """The roles whose messages show media to the model; None: all."""
    function: str = ""
    """The member of a tool that holds its function, or a list of functions; empty: the tool is the
    function."""
    single: bool = False
    """A single object is accepted as a list of one."""
    nested_tools: bool = False
    """Tools may hold others."""
    tool: frozenset[str] | None = None
    """The members of a function that the provider accepts; None: not known."""
    limit: str = "max_tokens"
    """The field that limits the output."""
    smallest_limit: int = 1
    """The smallest limit of the output; some hosts take 0 for no limit."""
    limits_thinking: bool = False
    """The limit of the output includes thinking that has a budget of its own."""
    read_path: Callable[[str], tuple[str, bool]] | None = None
    """Reads the model in a path, and whether the path requests a stream, on a wire whose paths name
    both."""

    def names(self, *, beta: bool, counted: bool = False) -> frozenset[str]:
        """The fields that the provider accepts, with or without a beta header."""
        return frozenset(
            field.name
            for field in self.fields.values()
            if field.beta == beta and (field.counted or not counted) and "." not in field.name
        )


def request_fields(
    effects: Mapping[Effect, str],
    *,
    members: Mapping[str, str] | None = None,
    beta: str = "",
    counted: str = "",
    unread: str = "",
    prose: str = "",
) -> dict[str, RequestField]:
    """The fields of a wire by their names: effects, and the known members of objects. `prose`
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
            effect=effect,
            members=known.get(name),
            beta=name in betas,
            counted=name in counts,
            unread=name in unreads,
            prose=name in texts,
            prose_members=frozenset(inner.get(name, ())),
        )
        for effect, names in effects.items()
        for name in names.split()
    } | {
        name: RequestField(name=name, effect=Effect.ANSWER, members=known[name])
        for name in known
        if "." in name
    }


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


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


def request_table(wire: str) -> RequestTable:
    """The request table of a wire (not of a dialect)."""
    found: RequestTable = import_module(f"anaphora.wire.{wire}.fields").TABLE
    return found
