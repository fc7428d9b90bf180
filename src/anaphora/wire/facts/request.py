"""The facts of a request for grants and bounds. `reading.read_facts` reads them; if a request
differs from the preceding one only in its last messages, most are reused."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import wire as wires
from anaphora.bounded import BoundedMap
from anaphora.values import Ttl
from anaphora.wire.elements import ListElements, long_hash
from anaphora.wire.reading import DECODE_ERRORS, Members
from anaphora.wire.tables import BlockType, Effect, RequestTable, request_table

from .stored import StoredKind
from .tools import ServerTool

NULL = msgspec.Raw(b"null")


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


class InlineSpan(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a medium: from `start` to `end` in the value of a body field."""

    field: str
    start: int
    end: int


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
    spans: tuple[InlineSpan, ...] = ()
    """Spans of their base64, which is not text. They do not overlap."""

    @property
    def inline(self) -> int:
        """Number of body bytes that are base64, not text."""
        return sum(span.end - span.start for span in self.spans)


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    """TTLs of markers inside blocks that hold more than text."""
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


# ── Only text and tool calls? ────────────────────────────────────────────────────────────────────
#
# The types below accept nothing else: content that they decode holds only text and tool calls.


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    arguments: msgspec.Raw = NULL


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str | None = None
    type: str | None = None
    index: int | None = None
    function: _PlainFunction | None = None


_SCALAR = str | int | float | bool | None


def _plain_struct(name: str, rows: dict[str, BlockType], content: Any, marker: str) -> Any:
    """A struct for blocks of these types: members with a text or number, the app's own JSON, and
    inner blocks of type `content`."""
    inside = {place for row in rows.values() for place in row.inside}
    opaque = {member for row in rows.values() for member in row.opaque}
    known = {member for row in rows.values() for member in row.members or ("text",)}
    fields: list[tuple[str, Any, Any]] = []
    for member in sorted((known | opaque | inside | {marker}) - {"type", ""}):
        if member in inside:
            fields.append((member, content, None))
        elif member == marker:
            fields.append((member, _PlainMarker | None, None))
        elif member in opaque:
            fields.append((member, msgspec.Raw, NULL))
        elif member == "summary":
            fields.append((member, list[_PlainText] | None, None))
        else:
            fields.append((member, _SCALAR, None))
    kinds: Any = Literal[tuple(rows)]
    typed = ("type", kinds) if "message" not in rows else ("type", kinds, "message")
    return msgspec.defstruct(
        name, [typed, *fields], forbid_unknown_fields=True, gc=False, kw_only=True
    )


class _PlainMarker(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: str | None = None
    mode: str | None = None
    ttl: str | None = None


class _PlainText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: str
    text: str


def _list(kind: Any) -> Any:
    return list[kind]


def _plain_types(table: RequestTable) -> tuple[Any, Any]:
    """The types of messages and system blocks that hold only text and tool calls."""
    if table.plain is not None:
        return table.plain, table.plain_block
    rows = {kind: row for kind, row in table.blocks.items() if row.plain}
    items = {kind: row for kind, row in rows.items() if kind in table.items}
    parts = {kind: row for kind, row in rows.items() if kind not in items}
    leaf = _plain_struct("Leaf", parts, str | None, table.marker)
    block = _plain_struct("Block", parts, str | _list(leaf) | None, table.marker)
    content: Any = str | _list(block) | None
    if items:
        return _plain_struct("Item", items, content, ""), None
    fields: list[tuple[str, Any, Any]] = [("content", content, None)]
    for member in sorted(table.message.members or {"role"}):
        if member == "tool_calls":
            fields.append((member, list[_PlainCall] | None, None))
        elif member != "content":
            fields.append((member, _SCALAR, None))
    return msgspec.defstruct("Message", fields, forbid_unknown_fields=True, gc=False), block


def _plain_decoders(table: RequestTable) -> dict[str, Callable[[bytes | msgspec.Raw], Any]]:
    """Decoders of fields with plain content, and of a single message under the empty name."""
    message, block = _plain_types(table)
    kinds: dict[str, Any] = {"": message}
    if table.items:
        kinds |= dict.fromkeys((table.messages, table.system), str | _list(message) | None)
    else:
        kinds[table.messages] = _list(message)
        if table.system:
            system = message | None if block is None else str | _list(block) | None
            kinds[table.system] = system
    return {name: msgspec.json.Decoder(kind).decode for name, kind in kinds.items()}


_TABLES = {name: request_table(name) for name in wires.WIRES}
_PLAIN_DECODERS = {name: _plain_decoders(table) for name, table in _TABLES.items()}


def are_plain(wire: str, elements: ListElements) -> bool:
    """Whether messages hold only text and tool calls. Those known to be plain are not read."""
    count = len(elements.raws)
    notes = elements.notes
    if notes.plain < count:
        if not is_plain(wire, elements.name, elements.joined(notes.plain)):
            return False
        notes.plain = count
    return True


def is_plain(wire: str, name: str, raw: bytes | msgspec.Raw) -> bool:
    """Whether there is only text and tool calls. A list is plain if each of its elements is."""
    try:
        plain = _PLAIN_DECODERS[wire][name](raw)
    except DECODE_ERRORS:
        return False
    check = _TABLES[wire].is_plain
    if check is None or plain is None or isinstance(plain, str):
        return True
    return all(map(check, plain)) if isinstance(plain, list) else check(plain)


# ── Facts of earlier requests ─────────────────────────────────────────────────────────────────────

#: The wire or dialect, the path and the headers of a request.
Asked: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]


#: Facts that are kept, and about how many bytes they take together.
_MOST_FACTS, _MOST_FACT_BYTES = 4096, 16 * 1024 * 1024


class KnownFacts(NamedTuple):
    """The facts of a request whose messages hold only text and tool calls: they depend on its
    other members alone."""

    facts: RequestFacts
    size: int
    """As in the facts, but without the messages."""
    memory: int
    """About how many bytes it takes."""


_KNOWN_FACTS = BoundedMap[tuple[Asked, bytes], KnownFacts](
    _MOST_FACTS, most_size=_MOST_FACT_BYTES, size_of=lambda known: known.memory
)
_LOCK = threading.Lock()


def remember_facts(
    asked: Asked, members: Members, elements: ListElements, facts: RequestFacts
) -> None:
    """Keeps the facts for requests with the same other members."""
    name = elements.name
    if name in members and elements.notes.plain == len(elements.raws):
        # Short texts, each an object of its own.
        memory = 4000 + 8 * len(msgspec.msgpack.encode((asked, facts)))
        known = KnownFacts(facts, facts.size - memoryview(members[name]).nbytes, memory)
        with _LOCK:
            _KNOWN_FACTS[asked, _digest_without(members, name)] = known


def facts_before(
    asked: Asked, wire: str, members: Members, elements: ListElements
) -> RequestFacts | None:
    """The facts of an earlier request with the same other members in the same order, if both have
    only text and tool calls in their messages; else None."""
    name = elements.name
    if name not in members:
        return None
    with _LOCK:
        before = _KNOWN_FACTS.use((asked, _digest_without(members, name)))
    if before is None or not are_plain(wire, elements):
        return None
    return replace(before.facts, size=before.size + memoryview(members[name]).nbytes)


def _digest_without(members: Members, name: str) -> bytes:
    """Of the names, sizes and values of all members but one, in their order."""
    pieces: list[bytes | msgspec.Raw] = []
    for each, raw in members.items():
        if each != name:
            text = each.encode(errors="surrogatepass")
            pieces += b"%d %d " % (len(text), memoryview(raw).nbytes), text, raw
    digest: bytes = long_hash(b"".join(pieces)).digest()
    return digest
