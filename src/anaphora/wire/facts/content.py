"""Finds the contents of messages other than text: media, files and other stored objects, tools.

Most requests hold only text and tool calls. A typed decoder, made from the wire's table, detects
these; only other messages are decoded in full and walked.

Text is bounded by its bytes, media by their kind. So the bytes of a medium are excepted from the
text of a request, but only in places where this wire passes it to the model as a medium: elsewhere
its data may be billed as text. Excepted bytes are spans of the body that do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import msgspec

from anaphora import wire as wires
from anaphora.values import Ttl
from anaphora.values.stability import Kind
from anaphora.wire.elements import ListElements
from anaphora.wire.markers import MARKER_FORMS
from anaphora.wire.reading import (
    DECODE_ERRORS,
    decode_elements,
    decode_reason,
    request_error,
)
from anaphora.wire.tables import BlockType, Medium, RequestTable, request_table
from anaphora.wire.walking import VALUES, Walk, WalkedBlock

from .request import InlineSpan, MediaCounts, are_plain, is_plain
from .shapes import (
    CHANGED_TOOL,
    DEFINING,
    LISTINGS,
    SENT_SOURCE,
    TOOLS,
    may_define_tools,
    may_open_file,
    read_members,
)
from .stored import GEMINI_FILE, StoredKind, owned_objects
from .tools import FoundTools, read_tool

#: Length of the beginning of a text that is searched for; the rest is compared. Shorter texts are
#: not excepted.
_BEGIN = 64
#: Members that hold an address, or the medium itself as a data URL.
_ADDRESSES = frozenset({"url", "image_url", "video_url"})
#: Data of the app's own tools, not interpreted by providers, by the enclosing member.
_ARGUMENTS = {"functionCall": "args", "functionResponse": "response", "function": "arguments"}

_encode = msgspec.json.Encoder().encode


class RequestContent:
    """The contents found in the messages of one request."""

    __slots__ = (
        "_counts",
        "_sounds",
        "_spans",
        "cache_ttls",
        "changes_tools",
        "handles",
        "tools",
        "unknown",
    )

    def __init__(self) -> None:
        self._counts: dict[Medium, int] = {"images": 0, "documents": 0, "audio": 0}
        self._sounds: list[int] = []
        self._spans: list[InlineSpan] = []
        self.handles: list[tuple[str, StoredKind, str]] = []
        """Fields, kinds and ids."""
        self.tools = FoundTools()
        self.unknown: list[str] = []
        """Names of fields whose values need an entry in the grant."""
        self.cache_ttls: set[Ttl] = set()
        self.changes_tools = False

    @property
    def media(self) -> MediaCounts:
        return MediaCounts(
            **self._counts,
            spans=tuple(self._spans),
            sounds=len(self._sounds),
            sound_bytes=sum(self._sounds),
        )

    def add(self, kind: Medium, number: int = 1) -> None:
        """Adds to the count of a kind of media."""
        self._counts[kind] += number

    def add_sound(self, data: Any) -> None:
        """Notes a sound that was counted as audio, by its base64."""
        if isinstance(data, str):
            self._sounds.append(len(data))

    def add_stored(self, value: Any, path: str) -> None:
        """Adds the stored objects that a value names."""
        self.handles += owned_objects(value, path)

    def except_span(self, span: InlineSpan | None) -> None:
        """Excepts the bytes of a medium from the text."""
        if span is not None:
            self._spans.append(span)


def holds_content(table: RequestTable, name: str) -> bool:
    """Whether a field of a request holds messages or system text."""
    return name == table.messages or (name == table.system and bool(name))


def holds_only_text(
    wire: str, name: str, raw: msgspec.Raw, elements: ListElements | None = None
) -> bool:
    """Whether a field with content holds only text and tool calls. `elements` are the elements of
    one of the fields; those known to be plain are not read again."""
    if elements is None or elements.name != name:
        return is_plain(wire, name, raw)
    return are_plain(wire, elements)


def scan_content(
    table: RequestTable,
    name: str,
    raw: msgspec.Raw,
    found: RequestContent,
    elements: ListElements | None = None,
) -> None:
    """Adds what a field with content holds besides text and tool calls."""
    raws: Sequence[msgspec.Raw] | None = None
    if elements is not None and elements.name == name:
        raws = elements.raws
    elif name == table.messages and bytes(memoryview(raw)[:1]) == b"[":
        raws = decode_elements(raw)
    if raws is None:
        values = _decode(raw, name)
    else:
        wire = table.wire
        values = [None if is_plain(wire, "", each) else _decode(each, name) for each in raws]
    _ContentScan(table, name, raw, found).scan(values)


def _decode(raw: msgspec.Raw, name: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), f"$.{name}") from None


#: The block types of all wires: some providers accept those of others.
_KNOWN_TYPES: dict[str, BlockType] = {
    kind: row for name in wires.WIRES for kind, row in request_table(name).blocks.items()
}


class _ContentScan:
    """Walks the messages of one field, or its system text."""

    def __init__(
        self, table: RequestTable, name: str, raw: msgspec.Raw, found: RequestContent
    ) -> None:
        self._own = table
        blocks = {**_KNOWN_TYPES, **table.blocks}
        self._walk = Walk(msgspec.structs.replace(table, blocks=blocks), VALUES)
        self._name = name
        self._found = found
        self._finder = SpanFinder(name, raw)

    def scan(self, values: Any) -> None:
        self._found.add_stored(values, self._name)
        if self._own.rename is not None:
            try:
                values = _renamed(values, self._own.rename, f"$.{self._name}")
            except RecursionError:
                raise request_error("the value is nested too deeply", f"$.{self._name}") from None
        is_system = self._name == self._own.system
        if is_system and isinstance(values, list) and not self._own.items:
            for block in self._walk.section(values, self._name):
                self._block(block, shown=False)
            return
        for index, value in enumerate(values if isinstance(values, list) else [values]):
            if value is None or isinstance(value, str):
                continue
            message = self._walk.message(value, f"{self._name}[{index}]")
            roles = self._own.media_roles
            role = VALUES.text(message.members.get("role"))
            shown = not is_system and (roles is None or role in roles)
            self._block(message, shown=shown, is_message=not self._own.items)
            if not isinstance(value, dict):
                self._loose(value, f"{self._name}[{index}]")

    def _block(self, block: WalkedBlock, *, shown: bool, is_message: bool = False) -> None:
        found, row, members = self._found, block.row, block.members
        if not is_message:
            shown = shown and (block.type in self._own.blocks or self._own.classify is not None)
            self._note(block)
        elif isinstance(members.get("audio"), dict) and "id" in members["audio"]:
            found.add("audio")  # the audio of an earlier answer
        elif row.medium is not None:
            listed = members.get(row.data[0])
            if listed:
                found.add(row.medium, len(listed) if isinstance(listed, list) else 1)
        if shown:
            for data in _shown_data(block):
                found.except_span(self._finder.find(data))
        if isinstance(block.marker, dict):
            found.cache_ttls.add(_ttl(block.marker, self._own.marker))
        understood = {place.partition(".")[0] for place in (*row.inside, *row.data)}
        understood.update(read_members(self._own, block.type, members, found.unknown))
        for inner in self._walk.inner(block):
            if isinstance(inner.raw, list):
                self._loose(inner.raw, inner.path)
            else:
                is_shown = row.shows is None or inner.type in row.shows
                self._block(inner, shown=shown and is_shown)
        for name, value in members.items():
            if isinstance(value, (dict, list)) and name not in understood | row.opaque:
                self._loose(value, f"{block.path}.{name}", name)

    def _note(self, block: WalkedBlock) -> None:
        """Counts media, and adds the tools that a block defines."""
        found, row, kind, members = self._found, block.row, block.type, block.members
        known, is_listed = self._own.other.members, block.path.endswith("]")
        if self._own.one_member:
            self._note_only(kind, row, members, block.path)
            return
        if known is not None and not members.keys() <= known:
            found.add("documents")  # a new kind of part: it may be anything
        elif known is None and kind and kind not in self._walk.table.blocks and is_listed:
            found.add("documents")  # a new kind of block: it may be anything
        if row.medium == "documents" and _is_text_source(members.get("source")):
            pass
        elif row.medium is not None:
            found.add(row.medium)
            if row.chunk is Kind.AUDIO and isinstance(members.get("inlineData"), dict):
                found.add_sound(members["inlineData"].get("data"))
        elif kind == "image_generation_call" and members.get("result"):
            found.add("images")
        if row.changes_tools:
            found.changes_tools = True
        if may_define_tools(kind):
            found.unknown.append(kind)
        self._note_tools(kind, members, block.path)
        if isinstance(members.get("fileData"), dict) and self._own.classify is not None:
            self._address(members["fileData"])
            if "inlineData" in members:
                found.add("audio")  # both in one part: either may be read

    def _note_only(self, kind: str, row: BlockType, members: dict[str, Any], path: str) -> None:
        """The same for a block with one member."""
        found = self._found
        if len(members) > 1:
            raise request_error("a block has one member", f"$.{path}")
        if kind and kind not in self._own.blocks:
            found.add("documents")  # a new kind of block: it may be anything
        if row.medium is not None:
            found.add(row.medium)
        if row.data:
            self._loose(members[kind], f"{path}.{kind}")
        if kind == "cachePoint" and isinstance(members[kind], dict):
            found.cache_ttls.add(_ttl(members[kind], ""))
            if members[kind].get("ttl") not in (None, *get_args(Ttl)):
                found.unknown.append("cachePoint.ttl")
        if row.changes_tools:
            found.changes_tools = True
            held = members[kind] if isinstance(members[kind], dict) else {}
            tool = held.get("tool")
            if held.keys() != {"tool"} or not isinstance(tool, dict) or tool.keys() - CHANGED_TOOL:
                found.unknown.append(kind)
            elif kind == "toolAddition":
                found.tools.functions.append((path, str(tool.get("name"))))
                found.tools.remote_mcp += [path] if tool.get("serverName") else []

    def _address(self, file: dict[str, Any]) -> None:
        """Notes the address of a file: in Google's file store, a bucket, or public."""
        uri = file.get("fileUri")
        if not isinstance(uri, str) or GEMINI_FILE.fullmatch(uri) is not None:
            return
        if not uri.lower().startswith(("http://", "https://")):
            self._found.unknown.append("fileData.fileUri")  # the operator's account can read it

    def _loose(self, value: Any, path: str, field: str = "") -> None:
        """Notes media, tools and files in places where no block is expected."""
        stack = [(path, field, value)]
        while stack:
            where, name, item = stack.pop()
            if isinstance(item, list):
                stack += [(f"{where}[{at}]", name, each) for at, each in enumerate(item)]
            elif isinstance(item, dict):
                kind = item.get("type")
                row = _KNOWN_TYPES.get(kind) if isinstance(kind, str) else None
                if row is not None and row.medium is not None:
                    self._found.add(row.medium)
                if isinstance(kind, str):
                    self._note_tools(kind, item, where)
                if isinstance(item.get("fileData"), dict) and self._own.classify is not None:
                    self._address(item["fileData"])
                if self._own.one_member:
                    self._note_members(item, name)
                kind = kind if isinstance(kind, str) else ""
                skipped = read_members(self._own, kind, item, self._found.unknown)
                skipped |= set() if row is None else row.opaque
                stack += [
                    (f"{where}.{inner}", inner, each)
                    for inner, each in item.items()
                    if inner not in skipped and inner != _ARGUMENTS.get(name)
                ]

    def _note_members(self, members: dict[str, Any], field: str) -> None:
        """Media, and files that the operator's account can read, by the names of members."""
        if field == "source":
            self._found.unknown += members.keys() - SENT_SOURCE
            return
        for name in members:
            row = self._own.blocks.get(name)
            if row is not None and row.medium is not None:
                self._found.add(row.medium)
            elif may_open_file(name):
                self._found.unknown.append(name)

    def _note_tools(self, kind: str, members: dict[str, Any], path: str) -> None:
        """Adds the tools that a block defines, or that a server has listed."""
        if kind in LISTINGS:
            self._found.tools.remote_mcp.append(path)
        if kind in DEFINING and kind != "tool_removal":
            for name in TOOLS:
                tools = members.get(name) or []
                for tool in tools if isinstance(tools, list) else [tools]:
                    read_tool(self._own, path, tool, self._found.tools)


def _renamed(value: Any, rename: Callable[[str], str], path: str, field: str = "") -> Any:
    """A message with the provider's own member names, at all levels except in the data of the app's
    own tools."""
    if isinstance(value, list):
        return [_renamed(each, rename, f"{path}[{at}]", field) for at, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, each in value.items():
        known = rename(name)
        if known in made:
            raise request_error("a member is given under two names", path)
        opaque = known == _ARGUMENTS.get(field)
        made[known] = each if opaque else _renamed(each, rename, f"{path}.{known}", known)
    return made


def _is_text_source(source: Any) -> bool:
    """Whether the source of a document is text in the body (its images are counted separately), or
    the origin of a search result."""
    if isinstance(source, dict):
        return source.get("type") in ("text", "content")
    return isinstance(source, str)


def _ttl(marker: dict[str, Any], field: str) -> Ttl:
    for ttl in get_args(Ttl):
        if marker.get("ttl") == ttl:
            return cast(Ttl, ttl)
    return MARKER_FORMS[field].ttl if field in MARKER_FORMS else "5m"


def _shown_data(block: WalkedBlock) -> list[str]:
    """The base64 or data URLs of a block."""
    source = block.members.get("source")
    if isinstance(source, dict) and source.get("type") != "base64":
        return []
    for path in block.row.data:
        value: Any = block.members
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, list):
            return [each for each in value if isinstance(each, str)]
        if isinstance(value, str) and (
            path.rpartition(".")[2] not in _ADDRESSES or value.startswith("data:")
        ):
            return [value]
    return []


class SpanFinder:
    """Finds the texts of a field in its bytes, each after the preceding one."""

    def __init__(self, field: str, raw: msgspec.Raw) -> None:
        self._field = field
        self._source = raw
        self._raw: bytes | None = None
        self._position = 0

    def find(self, text: str) -> InlineSpan | None:
        """The next place of this text after the last one found. None for a short text or one with
        another spelling, which may be billed as text."""
        if len(text) < _BEGIN:
            return None
        if self._raw is None:
            self._raw = bytes(self._source)
        # Base64 needs no escapes, and this copies it faster.
        written = text.encode() if '"' not in text and "\\" not in text else _encode(text)[1:-1]
        span = self._find(self._raw, written)
        if span is None and (other := _encode(text)[1:-1]) != written:
            written = other
            span = self._find(self._raw, written)
        if span is None and b"/" in written:  # some writers escape it
            span = self._find(self._raw, written.replace(b"/", b"\\/"))
        return span

    def _find(self, raw: bytes, written: bytes) -> InlineSpan | None:
        begin = b'"' + written[:_BEGIN]
        start = raw.find(begin, self._position) + 1
        while start > 0:
            end = start + len(written)
            if raw.startswith(b'"', end) and raw.startswith(written, start):
                self._position = end + 1
                return InlineSpan(self._field, start, end)
            start = raw.find(begin, start) + 1
        return None
