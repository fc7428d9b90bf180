"""What the messages of a call hold besides text and tool calls: media, stored objects, tools.

Pieces that a parse keeps as JSON (blocks of other kinds, unknown members of known ones) are decoded
and searched at all levels, since a provider may read more of them than a parse does.

Text is bounded by its bytes, media by their kind. So the bytes of a medium are excepted from the
text of a request, but only where this wire passes it to the model as a medium: elsewhere its data
may be billed as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast, get_args

import msgspec

from anaphora import wire as wires
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.markers import MARKER_FORMS
from anaphora.wire.openai_responses.items import begins_item, in_message
from anaphora.wire.reading import DECODE_ERRORS, decode_reason, request_error
from anaphora.wire.tables import BlockType, Medium, RequestTable, request_table
from anaphora.wire.walking import VALUES

from .facts import MediaCounts, Named
from .stored import GEMINI_FILE, StoredObject, stored_item, stored_objects
from .tools import FoundTools, read_tool

Json: TypeAlias = dict[str, Any]

#: Shorter data is not excepted from the text.
_SHORTEST = 64
#: Members that hold an address, or the medium itself as a data URL.
_ADDRESSES = frozenset({"url", "image_url", "video_url"})
#: Data of the app's own tools, not interpreted by providers, by the enclosing member.
_ARGUMENTS = {"functionCall": "args", "functionResponse": "response", "function": "arguments"}
#: The kinds of opaque parts that hold other members of a message, or a call that is no function's.
_NO_BLOCKS: dict[str, tuple[str, ...]] = {
    "anthropic": ("message",),
    "bedrock": ("message",),
    "gemini": ("content",),
    "openai_chat": ("message", "tool_call"),
}
#: The type of the block or item that is a tool's result, where a message does not hold it itself.
_RESULTS = {
    "anthropic": "tool_result",
    "bedrock": "toolResult",
    "gemini": "functionResponse",
    "openai_responses": "function_call_output",
}
#: Keys of extras that are notes of a parse.
_NOTES = frozenset({"openai.system"})

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
#: The type of a part's block, on wires that name it, where it decides what its members are.
_TYPES: dict[str, dict[type, str]] = {
    "anthropic": {Text: "text", ToolCall: "tool_use", ToolResult: "tool_result"},
    "openai_responses": {
        Text: "output_text",
        ToolCall: "function_call",
        ToolResult: "function_call_output",
        Thinking: "reasoning",
    },
}
#: The member of a block that holds the id of its file.
_FILE_HOLDERS = {"anthropic": ".source", "openai_chat": ".file"}
#: Wires that take a medium in place of its address.
_DATA_URLS = ("openai_chat", "openai_responses")
#: Parts that are read further only if they hold more than text.
_TEXTS = frozenset({Text, ToolCall, ToolResult, Thinking})
#: Members of blocks with a text or nothing, that ask for nothing, as extras of a part.
_MEMBER = r'\{(?:"(?:%s)":(?:"[^"\\]*+"|\[\]|null|true|false)(?:,|(?=\})))*+\}'
_USUAL = {
    "gemini": re.compile(_MEMBER % "thought|thoughtSignature"),
    "openai_chat": re.compile(_MEMBER % "field"),
    "openai_responses": re.compile(_MEMBER % "annotations|id|logprobs|phase|status|summary"),
}
_NONE = re.compile(r"(?!)")
#: The member that is a part's block, on Converse.
_MEMBERS: dict[type, str] = {
    Text: "citationsContent",
    ToolCall: "toolUse",
    ToolResult: "toolResult",
    Thinking: "reasoningContent",
    Image: "image",
    Document: "document",
    Audio: "audio",
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


def read_content(wire: str, call: Call) -> CallContent:
    """What a parsed call of a wire of `wire.WIRES` holds. Raises `InvalidRequest`."""
    scan = _Scan(request_table(wire))
    blocks = call.ir.system_blocks
    # How many messages of the request became the system prompt.
    of_messages = wire in ("openai_chat", "openai_responses")
    leading = int(of_messages and bool(blocks) and blocks[0].label != "instructions")
    try:
        scan.marks(call)
        scan.system(call, blocks)
        for run in call.ir.body_runs():
            scan.messages(run.messages, leading)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), "$") from None
    return scan.found


class _Scan:
    """Reads the parts of one call."""

    def __init__(self, table: RequestTable) -> None:
        self.found = CallContent()
        self._own = table
        self._blocks = {**_KNOWN_TYPES, **table.blocks}
        self._types = _TYPES.get(table.wire, {})
        self._is_usual = _USUAL.get(table.wire, _NONE).fullmatch
        self._role = ""

    # ── The call ─────────────────────────────────────────────────────────────────────────────────

    def marks(self, call: Call) -> None:
        for mark in call.ir.cache.marks:
            self.found.cache_ttls.add(mark.ttl)
            for text in (mark.extras or {}).values():
                self._stored(_decode(text), self._own.marker or "cachePoint")
                self._loose(_decode(text), self._own.marker or "cachePoint")

    def system(self, call: Call, blocks: Sequence[PromptBlock]) -> None:
        own = self._own
        for index, block in enumerate(blocks):
            if block.extras is not None:
                self._extras(block.extras, Text, f"{own.system or own.messages}[{index}]")
        # A system text that a call cannot hold stays with the unknown fields.
        extras = (call.extras or {}).get(own.wire)
        kept = _decode(extras).get(own.system) if extras is not None and own.system else None
        if kept is not None and own.classify is not None:
            self._stored(kept, own.system)
            listed = kept = self._renamed(kept, own.system)
            if isinstance(kept, dict):
                listed = kept.get("parts")
                self._members(kept, "message", own.system, frozenset({"parts"}))
            for index, each in enumerate(listed if isinstance(listed, list) else [listed]):
                self._block(each, f"{own.system}[{index}]", shown=False)

    def messages(self, messages: Iterable[Message], leading: int) -> None:
        own = self._own
        item, root = leading, own.messages
        for index, message in enumerate(messages, leading):
            self._role = message.role
            shown = own.media_roles is None or message.role in own.media_roles
            before: Part | None = None
            for at, part in enumerate(message.parts):
                kind = type(part)
                if own.items:
                    # Successive items of the model are one message.
                    inside = before is not None and in_message(part) and in_message(before)
                    item += before is not None and (not inside or begins_item(part))
                    before = part
                if kind in _TEXTS and self._is_text(part):
                    continue
                where = f"{root}[{item if own.items else index}]"
                self._part(part, self._path(where, part, at), shown)
            item += 1

    def _is_text(self, part: Any) -> bool:
        """Whether a part holds only text or a tool call, beside usual members of its block."""
        if part.extras is not None:
            if type(part) is Thinking and self._own.items and not part.data:
                return False  # it may be stored at the provider
            for key, text in part.extras.items():
                if not (key.endswith(".form") or key in _NOTES or self._is_usual(text)):
                    return False
        if type(part) is not ToolResult or type(part.content) is str:
            return True
        return all(type(each) is Text and each.extras is None for each in part.content)

    def _path(self, message: str, part: Part, at: int) -> str:
        """The path of a part, if a message's parts are its blocks."""
        own = self._own
        of_message = own.wire == "openai_chat" and self._role in ("assistant", "tool")
        if own.items or of_message or _is_fields(own.wire, part):
            return message
        return f"{message}.{own.message.inside[0]}[{at}]"

    # ── Parts ────────────────────────────────────────────────────────────────────────────────────

    def _part(self, part: Part, path: str, shown: bool, *, in_result: bool = False) -> None:
        if isinstance(part, Opaque):
            self._kept(part, path, shown, in_result)
            return
        if part.extras is not None:
            self._extras(part.extras, type(part), path, part)
        if isinstance(part, ToolResult):
            # A result of the older form of Chat's tools is not shown.
            inner = shown and (self._own.media_roles is None or part.name is None)
            row = self._own.blocks.get(_RESULTS.get(self._own.wire, ""))
            place = f".{row.inside[0]}" if row is not None else ".content"
            for at, each in enumerate(() if isinstance(part.content, str) else part.content):
                # A part of Gemini's may follow a text that is none.
                below = "" if self._own.rename is not None else f"{place}[{at}]"
                self._part(each, path + below, inner, in_result=True)
        elif isinstance(part, Image | Document | Audio):
            self._medium(part, path, shown)

    def _medium(self, part: Image | Document | Audio, path: str, shown: bool) -> None:
        own, source, found = self._own, part.source, self.found
        medium: Medium = "images" if isinstance(part, Image) else "documents"
        medium = "audio" if isinstance(part, Audio) else medium
        if own.rename is not None and own.classify is not None:
            row = own.classify({"inlineData": {"mimeType": source.media_type}}, VALUES)[1]
            medium = row.medium or medium
            if row.chunk is Kind.AUDIO and isinstance(source, Bytes):
                found.sounds.append(4 * -(-len(source.data) // 3))
        if isinstance(source, Bytes):
            if own.wire == "anthropic" and source.media_type == "text/plain":
                return  # a text in the body
            is_text = (part.extras or {}).get("bedrock.form") == '"text"'
            self._except(-(-4 * len(source.data) // 3) if shown and not is_text else 0)
        elif isinstance(source, Url):
            is_data = own.wire in _DATA_URLS and source.url.startswith("data:")
            self._except(len(source.url) if shown and is_data else 0)
        found.counts[medium] += 1
        if own.rename is not None and not isinstance(source, Bytes):
            uri = source.url if isinstance(source, Url) else source.id
            self._address({"fileUri": uri}, f"{path}.fileData")
        elif isinstance(source, FileId) and own.one_member:
            found.unknown.append("s3Location")
        elif isinstance(source, FileId):
            holder = _FILE_HOLDERS.get(own.wire, "")
            self._stored({"file_id": source.id}, f"{path}{holder}")

    def _except(self, size: int) -> None:
        self.found.inline += size if size >= _SHORTEST else 0

    # ── What a parse kept as JSON ────────────────────────────────────────────────────────────────

    def _kept(self, part: Opaque, path: str, shown: bool, in_result: bool) -> None:
        own = self._own
        value = _decode(part.json)
        if _is_fields(own.wire, part):
            self._stored({"role": self._role, **value}, path)
            value = self._renamed(value, path)
            if isinstance(value.get("audio"), dict) and "id" in value["audio"]:
                self.found.counts["audio"] += 1  # the audio of an earlier answer
            self._loose(value, path)
            return
        self._stored(value, path)
        value = self._renamed(value, path)
        if in_result and (result := _RESULTS.get(own.wire)) is not None:
            shows = own.blocks[result].shows
            shown = shown and (shows is None or self._kind(value) in shows)
        if own.items and not value.get("type") and not value.get("role"):
            self.found.stored += stored_item(value, "item_reference", path)
        self._block(value, path, shown=shown)

    def _extras(self, extras: Extras, kind: type, path: str, part: Part | None = None) -> None:
        for key, text in extras.items():
            if key in _NOTES:
                continue
            members = _decode(text)
            if not isinstance(members, dict):
                continue
            if key == "openai_responses.item":
                self._beside(members, Message, path)
            elif not key.endswith(".form"):
                self._beside(members, kind, path, part)

    def _beside(self, members: Json, kind: type, path: str, part: Part | None = None) -> None:
        """Members of a block besides those that its part holds."""
        own = self._own
        type_name = "message" if kind is Message else self._types.get(kind, "")
        if type_name == "output_text" and self._role != "assistant":
            type_name = ""
        named = {**members, "type": type_name, "role": self._role}
        if isinstance(part, Thinking) and part.data:
            named["encrypted_content"] = part.data
        self._stored(named, path)
        members = self._renamed(members, path)
        if own.one_member:
            if members.keys() - {_MEMBERS.get(kind)}:
                raise request_error("a block has one member", f"$.{path}")
        elif own.other.members is not None and not members.keys() <= own.other.members:
            self.found.counts["documents"] += 1  # a new kind of part: it may be anything
        row = self._blocks.get(type_name, BlockType())
        self._members(members, type_name, path, row.opaque)

    def _block(self, value: Any, path: str, *, shown: bool) -> None:
        """A block that is kept whole, and all blocks in it."""
        if not isinstance(value, dict):
            self._loose(value, path)
            return
        own = self._own
        if own.classify is not None:
            kind, row = own.classify(value, VALUES)
            is_known = kind in own.blocks or own.rename is not None
        else:
            kind = VALUES.text(value.get("type"))
            row, is_known = self._blocks.get(kind, own.other), kind in own.blocks
        shown = shown and is_known
        self._note(kind, row, value, path)
        if shown:
            for data in _shown_data(value, row):
                self._except(len(data))
        understood = {place.partition(".")[0] for place in (*row.inside, *row.data)}
        for place in row.inside:
            holder, _, name = place.rpartition(".")
            below = value.get(holder) if holder else value
            inner = below.get(name) if isinstance(below, dict) else None
            for at, each in enumerate(inner if isinstance(inner, list) else [inner]):
                if isinstance(each, dict):
                    is_shown = row.shows is None or self._kind(each) in row.shows
                    self._block(each, f"{path}.{place}[{at}]", shown=shown and is_shown)
                elif isinstance(each, list):
                    self._loose(each, f"{path}.{place}[{at}]")
        self._members(value, kind, path, row.opaque | understood)

    def _kind(self, block: Json) -> str:
        if self._own.classify is not None:
            return self._own.classify(block, VALUES)[0]
        return VALUES.text(block.get("type"))

    def _members(self, members: Json, kind: str, path: str, understood: frozenset[str]) -> None:
        """Markers, tools and other values in the members of a block."""
        for name, form in MARKER_FORMS.items():
            if isinstance(marker := members.get(name), dict):
                self.found.cache_ttls.add(_ttl(marker, form.ttl))
        understood = understood | self._defining(kind, members)
        for name, value in members.items():
            if isinstance(value, (dict, list)) and name not in understood:
                self._loose(value, f"{path}.{name}", name)

    def _note(self, kind: str, row: BlockType, members: Json, path: str) -> None:
        """Counts media, and adds the tools that a block defines."""
        found, own = self.found, self._own
        if own.one_member:
            self._note_only(kind, row, members, path)
            return
        known = own.other.members
        is_new = bool(kind) and kind not in self._blocks
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
            self._address(members["fileData"], "")
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
            self._loose(members[kind], f"{path}.{kind}")
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

    def _address(self, file: Json, path: str) -> None:
        """Notes the address of a file: in Google's file store, a bucket, or public. With a path,
        the stored file is added as well."""
        uri = file.get("fileUri")
        if path:
            self._stored(file, path)
        if not isinstance(uri, str) or GEMINI_FILE.fullmatch(uri) is not None:
            return
        if not uri.lower().startswith(("http://", "https://")):
            self.found.unknown.append("fileData.fileUri")  # the operator's account can read it

    def _stored(self, value: Any, path: str) -> None:
        self.found.stored += stored_objects(value, path)

    def _loose(self, value: Any, path: str, field: str = "") -> None:
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
                    self._address(item["fileData"], "")
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

    def _renamed(self, value: Any, path: str) -> Any:
        """The value with the provider's own member names, if it accepts several spellings."""
        rename = self._own.rename
        return value if rename is None else _renamed(value, rename, f"$.{path}")


def _is_fields(wire: str, part: Part) -> bool:
    """Whether a part holds other members of its message, or a call that is no function's."""
    return isinstance(part, Opaque) and part.kind in _NO_BLOCKS.get(wire, ())


def _decode(text: str) -> Any:
    return msgspec.json.decode(text)


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
