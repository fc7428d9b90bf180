"""What the messages of a call hold besides text and tool calls: media, stored objects, tools.

Pieces that a parse keeps as JSON (blocks of other kinds, unknown members of known ones) are decoded
and searched at all levels, since a provider may read more of them than a parse does.

Text is bounded by its bytes, media by their kind. So the bytes of a medium are excepted from the
text of a request, but only where this wire passes it to the model as a medium: elsewhere its data
may be billed as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

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
    Url,
)
from anaphora.wire.openai_responses.items import begins_item, in_message
from anaphora.wire.reading import DECODE_ERRORS, decode_reason, request_error
from anaphora.wire.tables import BlockType, Medium, RequestTable, request_table
from anaphora.wire.walking import VALUES

from .kept import CallContent, Json, KeptJson
from .stored import stored_item

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


def read_content(wire: str, call: Call) -> CallContent:
    """What a parsed call of a wire of `wire.WIRES` holds. Raises `InvalidRequest`."""
    scan = _Scan(request_table(wire))
    blocks = call.ir.all_system_blocks()
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
        self._json = KeptJson(table)
        self.found = self._json.found
        self._own = table
        self._types = _TYPES.get(table.wire, {})
        self._is_usual = _USUAL.get(table.wire, _NONE).fullmatch
        self._role = ""

    # ── The call ─────────────────────────────────────────────────────────────────────────────────

    def marks(self, call: Call) -> None:
        for mark in call.ir.cache.marks:
            self.found.cache_ttls.add(mark.ttl)
            for text in (mark.extras or {}).values():
                self._json.stored(_decode(text), self._own.marker or "cachePoint")
                self._json.loose(_decode(text), self._own.marker or "cachePoint")

    def system(self, call: Call, blocks: Sequence[PromptBlock]) -> None:
        own = self._own
        for index, block in enumerate(blocks):
            if block.extras is not None:
                self._extras(block.extras, Text, f"{own.system or own.messages}[{index}]")
        # A system text that a call cannot hold stays with the unknown fields.
        extras = (call.extras or {}).get(own.wire)
        kept = _decode(extras).get(own.system) if extras is not None and own.system else None
        if kept is not None and own.classify is not None:
            self._json.stored(kept, own.system)
            listed = kept = self._json.renamed(kept, own.system)
            if isinstance(kept, dict):
                listed = kept.get("parts")
                self._json.members(kept, "message", own.system, frozenset({"parts"}))
            for index, each in enumerate(listed if isinstance(listed, list) else [listed]):
                self._json.block(each, f"{own.system}[{index}]", shown=False)

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
            self._json.exclude(-(-4 * len(source.data) // 3) if shown and not is_text else 0)
        elif isinstance(source, Url):
            is_data = own.wire in _DATA_URLS and source.url.startswith("data:")
            self._json.exclude(len(source.url) if shown and is_data else 0)
        found.counts[medium] += 1
        if own.rename is not None and not isinstance(source, Bytes):
            uri = source.url if isinstance(source, Url) else source.id
            self._json.address({"fileUri": uri}, f"{path}.fileData")
        elif isinstance(source, FileId) and own.one_member:
            found.unknown.append("s3Location")
        elif isinstance(source, FileId):
            holder = _FILE_HOLDERS.get(own.wire, "")
            self._json.stored({"file_id": source.id}, f"{path}{holder}")

    # ── What a parse kept as JSON ────────────────────────────────────────────────────────────────

    def _kept(self, part: Opaque, path: str, shown: bool, in_result: bool) -> None:
        own = self._own
        value = _decode(part.json)
        if _is_fields(own.wire, part):
            self._json.stored({"role": self._role, **value}, path)
            value = self._json.renamed(value, path)
            if isinstance(value.get("audio"), dict) and "id" in value["audio"]:
                self.found.counts["audio"] += 1  # the audio of an earlier answer
            self._json.loose(value, path)
            return
        self._json.stored(value, path)
        value = self._json.renamed(value, path)
        if in_result and (result := _RESULTS.get(own.wire)) is not None:
            shows = own.blocks[result].shows
            shown = shown and (shows is None or self._json.kind(value) in shows)
        if own.items and not value.get("type") and not value.get("role"):
            self.found.stored += stored_item(value, "item_reference", path)
        self._json.block(value, path, shown=shown)

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
        self._json.stored(named, path)
        members = self._json.renamed(members, path)
        if own.one_member:
            if members.keys() - {_MEMBERS.get(kind)}:
                raise request_error("a block has one member", f"$.{path}")
        elif own.other.members is not None and not members.keys() <= own.other.members:
            self.found.counts["documents"] += 1  # a new kind of part: it may be anything
        row = self._json.blocks.get(type_name, BlockType())
        self._json.members(members, type_name, path, row.opaque)


def _is_fields(wire: str, part: Part) -> bool:
    """Whether a part holds other members of its message, or a call that is no function's."""
    return isinstance(part, Opaque) and part.kind in _NO_BLOCKS.get(wire, ())


def _decode(text: str) -> Any:
    return msgspec.json.decode(text)
