"""What a request asks for, for grants and bounds, and the fields that a grant need not list."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from anaphora import wire as wires
from anaphora.values import Ttl
from anaphora.wire.tables import Effect, RequestTable, request_table

from .stored import StoredKind


class Named(NamedTuple):
    """A value of a request and its field."""

    param: str
    value: str


class HandleRef(NamedTuple):
    """An object at the provider that a request refers to."""

    param: str
    kind: StoredKind
    id: str


class OutputLimit(NamedTuple):
    """An output limit in a request."""

    param: str
    tokens: int


class MediaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The media of a request."""

    images: int = 0
    documents: int = 0
    """Files of any other kind, such as PDFs."""
    audio: int = 0
    """Includes videos whose audio is billed separately."""
    sounds: int = 0
    """How many of these are sounds in the request, and"""
    sound_bytes: int = 0
    """the bytes of their base64."""
    inline: int = 0
    """The bytes of media in the body, which are not text."""


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the provider defines or runs: web search, code execution, computer use."""

    param: str
    type: str
    max_calls: int | None = None
    """The tool's own limit in this request."""
    model: str = ""
    """The model that it calls."""


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a request asks for besides text."""

    wire: str
    """A name of `wire.WIRES`, even if the request was read as a dialect."""
    size: int
    """Bytes of all fields."""
    models: tuple[Named, ...]
    """All models named in the path or body, the requested one first."""
    stream: bool = False
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    """The field of the limit, whether it is set or not."""
    limits: tuple[OutputLimit, ...] = ()
    """All fields that limit the output; `max_tokens` is the largest of them."""
    n: int = 1
    thinking_budget: int = 0
    """Thinking tokens that may come on top of the limit."""
    budget: int = 0
    """Requested thinking tokens, within the limit or on top."""
    predicted: int = 0
    """Bytes of a predicted output: rejected parts of it are billed as output."""
    tools: tuple[Named, ...] = ()
    """Names of functions."""
    server_tools: tuple[ServerTool, ...] = ()
    max_tool_calls: int | None = None
    """The limit of calls of all server tools together."""
    remote_mcp: tuple[str, ...] = ()
    """Fields that name remote MCP servers."""
    background: bool = False
    store: bool | None = None
    """Whether the provider keeps the answer; None: its default."""
    handles: tuple[HandleRef, ...] = ()
    service_tier: str = ""
    tiers: tuple[Named, ...] = ()
    """Service tiers other than the standard one, and fast mode."""
    geo: str = ""
    """The region in which inference has to run."""
    betas: tuple[Named, ...] = ()
    unknown: tuple[str, ...] = ()
    """Paths of fields that are unknown or have values of unknown cost."""
    unbounded: tuple[str, ...] = ()
    """Those of them that make the cost unpredictable."""
    media: MediaCounts = MediaCounts()
    cache_ttls: tuple[Ttl, ...] = ()
    """TTLs of all markers in the request."""
    late_tools: bool = False
    """Messages add or remove tools."""
    stored_prompt: bool = False
    """Model, instructions and tools may be stored at the provider instead of in the request."""

    @property
    def model(self) -> str:
        """The requested model; empty if none is named."""
        return self.models[0].value if self.models else ""


#: Fields that are read on every wire, so that a grant's `fields` cannot bypass their checks.
ALWAYS_READ = frozenset(
    "models fallbacks context_management tools functions n guardrailConfig".split()
)


class KnownFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a wire or dialect that need no entry in a grant, and how they are read. Every
    other field is refused unless a grant lists it."""

    table: RequestTable
    """The wire's own table, with the markers of the dialect."""
    top: frozenset[str]
    nested: Mapping[str, frozenset[str]]
    """The members of objects, by the object's path."""
    folded: Mapping[str, str]
    """All known names by lowercase letters: some servers ignore case."""

    @property
    def wire(self) -> str:
        """A name of `wire.WIRES`."""
        return self.table.wire


@functools.cache
def known_fields(name: str) -> KnownFields:
    """The fields of a wire. A dialect's name adds its provider's parameter fields."""
    dialect = None if name in wires.WIRES else wires.dialect_of(name)
    table = request_table(name if dialect is None else dialect.wire)
    known = [field for field in table.fields.values() if field.effect is not Effect.ASK]
    top = {field.name for field in known if "." not in field.name}
    nested = {field.name: field.members for field in known if field.members is not None}
    for param in () if dialect is None else dialect.fields:
        place = dialect.place(param) if dialect is not None else None
        if place is None or not place.at:
            continue
        first, *rest = place.at.split(".")
        if rest and (first not in top or first in nested):
            nested[first] = nested.get(first, frozenset()) | {rest[0]}
        top.add(first)
    if dialect is not None:
        top.update(dialect.constants)
    if dialect is not None and dialect.markers:
        (marker,) = {next(iter(each)) for each in dialect.markers.values()}
        table = msgspec.structs.replace(table, marker=marker)
    names = sorted(top.union(*nested.values(), ALWAYS_READ))
    return KnownFields(
        table=table,
        top=frozenset(top),
        nested=nested,
        folded={name.casefold(): name for name in names},
    )
