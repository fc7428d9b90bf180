"""What the pieces hold that a parse keeps as JSON: blocks of other kinds, unknown members of known
ones. They are searched at all levels, since a provider may read more of them than a parse does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, cast, get_args

from anaphora import wire as wires
from anaphora.rendered import Kind
from anaphora.values import Ttl
from anaphora.wire.markers import MARKER_FORMS
from anaphora.wire.reading import request_error
from anaphora.wire.tables import BlockType, Medium, RequestTable, request_table
from anaphora.wire.walking import VALUES

from .facts import MediaCounts, Named
from .stored import GEMINI_FILE, StoredObject, stored_objects
from .tools import FoundTools, read_tool

Json: TypeAlias = dict[str, Any]

#: Shorter data is not excepted from the text.
_SHORTEST = 64
#: Members that hold an address, or the medium itself as a data URL.
_ADDRESSES = frozenset({"url", "image_url", "video_url"})
#: Data of the app's own tools, not interpreted by providers, by the enclosing member.
_ARGUMENTS = {"functionCall": "args", "functionResponse": "response", "function": "arguments"}
# Blocks and items that define tools, that list those of a remote server, and their members.
_DEFINING = frozenset({"tool_addition", "tool_removal", "additional_tools", "tool_search_output"})
_LISTINGS = frozenset({"mcp_list_tools", "mcp_tool_listing", "mcp_toolset"})
_TOOLS = ("tools", "tool")
#: The members of a tool that messages of Bedrock add or remove.
_CHANGED_TOOL = frozenset({"type", "name", "serverName"})
#: The members of a source that is in the request, on Bedrock.
_SENT_SOURCE = frozenset({"bytes", "text", "content"})
# Members and types that may define tools, and members that may open files of the operator's
# account, in lowercase, without underscores. Elsewhere or spelled otherwise than a provider's, a
# server may read them, so they need an entry in the grant.
_TOOL_MEMBERS = frozenset(
    """additionaltools functiondeclarations functions inputschema mcpservers systemtool tool
    tooladdition toolconfig tooldefinitions toolremoval tools toolspec""".split()
)
_TOOL_TYPES = frozenset(
    """additionaltools custom function mcp mcplisttools mcptoollisting mcptoolset namespace
    tooladdition toolremoval toolsearchoutput""".split()
)
_FILES = frozenset({"filedata", "fileuri", "s3location", "s3uri"})
_READ_FILES = ("fileData", "fileUri")

#: The block types of all wires: some providers accept those of others.
_KNOWN_TYPES: dict[str, BlockType] = {
    kind: row for name in wires.WIRES for kind, row in request_table(name).blocks.items()
}


@lru_cache(maxsize=512)
def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


class CallContent:
    """What was found in the messages and the system text of one call."""

    def __init__(self) -> None:
        self.counts: dict[Medium, int] = {"images": 0, "documents": 0, "audio": 0}
        self.sounds: list[int] = []
        self.inline = 0
        self.stored: list[StoredObject] = []
        self.tools = FoundTools()
        self.unknown: list[str] = []
        """Names of fields whose values need an entry in the grant."""
        self.cache_ttls: set[Ttl] = set()
        self.changes_tools = False

    @property
    def owned(self) -> list[StoredObject]:
        """The stored objects that may be an app's own."""
        return [one for one in self.stored if one.is_owned]

    @property
    def media(self) -> MediaCounts:
        sounds = self.sounds
        return MediaCounts(
            **self.counts, sounds=len(sounds), sound_bytes=sum(sounds), inline=self.inline
        )


class KeptJson:
    """Reads the pieces of one call, and adds what they hold to `found`."""

    def __init__(self, table: RequestTable) -> None:
        self.found = CallContent()
        self.blocks = {**_KNOWN_TYPES, **table.blocks}
        self._own = table

    def exclude(self, size: int) -> None:
        self.found.inline += size if size >= _SHORTEST else 0

    def block(self, value: Any, path: str, *, shown: bool) -> None:
        """A block that is kept whole, and all blocks in it."""
        if not isinstance(value, dict):
            self.loose(value, path)
            return
        own = self._own
        if own.classify is not None:
            kind, row = own.classify(value, VALUES)
            is_known = kind in own.blocks or own.rename is not None
        else:
            kind = VALUES.text(value.get("type"))
            row, is_known = self.blocks.get(kind, own.other), kind in own.blocks
        shown = shown and is_known
        self._note(kind, row, value, path)
        if shown:
            for data in _shown_data(value, row):
                self.exclude(len(data))
        understood = {place.partition(".")[0] for place in (*row.inside, *row.data)}
        for place in row.inside:
            holder, _, name = place.rpartition(".")
            below = value.get(holder) if holder else value
            inner = below.get(name) if isinstance(below, dict) else None
            for at, each in enumerate(inner if isinstance(inner, list) else [inner]):
                if isinstance(each, dict):
                    is_shown = row.shows is None or self.kind(each) in row.shows
                    self.block(each, f"{path}.{place}[{at}]", shown=shown and is_shown)
                elif isinstance(each, list):
                    self.loose(each, f"{path}.{place}[{at}]")
        self.members(value, kind, path, row.opaque | understood)

    def kind(self, block: Json) -> str:
        if self._own.classify is not None:
            return self._own.classify(block, VALUES)[0]
        return VALUES.text(block.get("type"))

    def members(self, members: Json, kind: str, path: str, understood: frozenset[str]) -> None:
        """Markers, tools and other values in the members of a block."""
        for name, form in MARKER_FORMS.items():
            if isinstance(marker := members.get(name), dict):
                self.found.cache_ttls.add(_ttl(marker, form.ttl))
        understood = understood | self._defining(kind, members)
        for name, value in members.items():
            if isinstance(value, (dict, list)) and name not in understood:
                self.loose(value, f"{path}.{name}", name)

    def _note(self, kind: str, row: BlockType, members: Json, path: str) -> None:
        """Counts media, and adds the tools that a block defines."""
        found, own = self.found, self._own
        if own.one_member:
            self._note_only(kind, row, members, path)
            return
        known = own.other.members
        is_new = bool(kind) and kind not in self.blocks
        if (not members.keys() <= known) if known is not None else is_new:
            found.counts["documents"] += 1  # a new kind of part or block: it may be anything
        if row.medium == "documents" and _is_text_source(members.get("source")):
            pass
        elif row.medium is not None:
            found.counts[row.medium] += 1
            data = members.get("inlineData")
            if row.chunk is Kind.AUDIO and isinstance(data, dict):
                data = data.get("data")
                found.sounds += [len(data)] if isinstance(data, str) else []
        elif kind == "image_generation_call" and members.get("result"):
            found.counts["images"] += 1
        found.changes_tools = found.changes_tools or row.changes_tools
        may_define = kind not in _DEFINING and kind not in _LISTINGS
        if may_define and _folded(kind) in _TOOL_TYPES:
            found.unknown.append(kind)
        self._note_tools(kind, members, path)
        if isinstance(members.get("fileData"), dict) and own.classify is not None:
            self.address(members["fileData"], "")
            if "inlineData" in members:
                found.counts["audio"] += 1  # both in one part: either may be read

    def _note_only(self, kind: str, row: BlockType, members: Json, path: str) -> None:
        """The same for a block with one member."""
        found = self.found
        if len(members) > 1:
            raise request_error("a block has one member", f"$.{path}")
        if kind and kind not in self._own.blocks:
            found.counts["documents"] += 1  # a new kind of block: it may be anything
        if row.medium is not None:
            found.counts[row.medium] += 1
        if row.data:
            self.loose(members[kind], f"{path}.{kind}")
        if kind == "cachePoint" and isinstance(members[kind], dict):
            found.cache_ttls.add(_ttl(members[kind], "5m"))
            if members[kind].get("ttl") not in (None, *get_args(Ttl)):
                found.unknown.append("cachePoint.ttl")
        if row.changes_tools:
            found.changes_tools = True
            held = members[kind] if isinstance(members[kind], dict) else {}
            tool = held.get("tool")
            if held.keys() != {"tool"} or not isinstance(tool, dict) or tool.keys() - _CHANGED_TOOL:
                found.unknown.append(kind)
            elif kind == "toolAddition":
                found.tools.functions.append(Named(path, str(tool.get("name"))))
                found.tools.remote_mcp += [path] if tool.get("serverName") else []

    def address(self, file: Json, path: str) -> None:
        """Notes the address of a file: in Google's file store, a bucket, or public. With a path,
        the stored file is added as well."""
        uri = file.get("fileUri")
        if path:
            self.stored(file, path)
        if not isinstance(uri, str) or GEMINI_FILE.fullmatch(uri) is not None:
            return
        if not uri.lower().startswith(("http://", "https://")):
            self.found.unknown.append("fileData.fileUri")  # the operator's account can read it

    def stored(self, value: Any, path: str) -> None:
        self.found.stored += stored_objects(value, path)

    def loose(self, value: Any, path: str, field: str = "") -> None:
        """Notes media, tools and files in places where no block is expected."""
        stack = [(path, field, value)]
        while stack:
            where, name, item = stack.pop()
            if isinstance(item, list):
                stack += [(f"{where}[{at}]", name, each) for at, each in enumerate(item)]
            elif isinstance(item, dict):
                kind = VALUES.text(item.get("type"))
                row = _KNOWN_TYPES.get(kind) if kind else None
                if row is not None and row.medium is not None:
                    self.found.counts[row.medium] += 1
                self._note_tools(kind, item, where)
                if isinstance(item.get("fileData"), dict) and self._own.classify is not None:
                    self.address(item["fileData"], "")
                if self._own.one_member:
                    self._note_members(item, name)
                skipped = self._defining(kind, item) | (set() if row is None else row.opaque)
                stack += [
                    (f"{where}.{inner}", inner, each)
                    for inner, each in item.items()
                    if inner not in skipped and inner != _ARGUMENTS.get(name)
                ]

    def _note_members(self, members: Json, field: str) -> None:
        """Media, and files that the operator's account can read, by the names of members."""
        if field == "source":
            self.found.unknown += members.keys() - _SENT_SOURCE
            return
        for name in members:
            row = self._own.blocks.get(name)
            if row is not None and row.medium is not None:
                self.found.counts[row.medium] += 1
            elif _folded(name) in _FILES:
                self.found.unknown.append(name)

    def _note_tools(self, kind: str, members: Json, path: str) -> None:
        """Adds the tools that a block defines, or that a server has listed."""
        if kind in _LISTINGS:
            self.found.tools.remote_mcp.append(path)
        if kind in _DEFINING and kind != "tool_removal":
            for name in _TOOLS:
                tools = members.get(name) or []
                for tool in tools if isinstance(tools, list) else [tools]:
                    read_tool(self._own, path, tool, self.found.tools)

    def _defining(self, kind: str, members: Json) -> set[str]:
        """The members with the tools that a block of this type defines. Others that may define
        tools or open files are unknown fields."""
        unknown = self.found.unknown
        if self._own.rename is not None:
            unknown += [n for n in members if _folded(n) in _FILES and n not in _READ_FILES]
        defining = [name for name in members if _folded(name) in _TOOL_MEMBERS]
        if not defining:
            return set()
        read: tuple[str, ...] = _TOOLS if kind in _DEFINING or kind in _LISTINGS else ()
        if self._own.one_member and kind in self._own.blocks:
            read = (kind,)
        unknown += [name for name in defining if name not in read and members[name]]
        # The tool that is removed is looked at: it has a name alone.
        return set() if kind == "tool_removal" else {name for name in defining if name in read}

    def renamed(self, value: Any, path: str) -> Any:
        """The value with the provider's own member names, if it accepts several spellings."""
        rename = self._own.rename
        return value if rename is None else _renamed(value, rename, f"$.{path}")


def _renamed(value: Any, rename: Callable[[str], str], path: str, field: str = "") -> Any:
    """A value with the provider's own member names, at all levels except in the data of the app's
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


def _ttl(marker: Mapping[str, Any], default: Ttl) -> Ttl:
    ttl = marker.get("ttl")
    return cast(Ttl, ttl) if ttl in get_args(Ttl) else default


def _shown_data(members: Json, row: BlockType) -> list[str]:
    """The base64 or data URLs of a block."""
    source = members.get("source")
    if isinstance(source, dict) and source.get("type") != "base64":
        return []
    for path in row.data:
        value: Any = members
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, list):
            return [each for each in value if isinstance(each, str)]
        if isinstance(value, str) and (
            path.rpartition(".")[2] not in _ADDRESSES or value.startswith("data:")
        ):
            return [value]
    return []
