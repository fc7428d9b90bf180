"""What the messages of a request hold besides text: media, files and other stored objects, tools.

Most requests hold only text and tool calls. A typed decoder of the blocks' types finds that out;
only other requests are decoded in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.wire.gemini.types import camel
from anaphora.wire.reading import DECODE_ERRORS, decode_reason, request_error

from .store import HandleKind
from .tool_facts import FoundTools, read_tool


class MediaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The media of a request."""

    images: int = 0
    documents: int = 0
    """Files of any other kind: PDFs, videos."""
    audio: int = 0
    inline: int = 0
    """Bytes of the body that are their base64, not text."""


class RequestContent:
    """What was found in the messages of one request."""

    __slots__ = ("_counts", "changes_tools", "handles", "shown", "tools")

    def __init__(self) -> None:
        self._counts = {"images": 0, "documents": 0, "audio": 0, "inline": 0}
        self.handles: list[tuple[str, HandleKind, str]] = []
        """Fields, kinds and ids."""
        self.tools = FoundTools()
        self.changes_tools = False
        self.shown = True
        """Whether the object at hand stands where the provider shows media to the model: elsewhere
        its data may be billed as text."""

    @property
    def media(self) -> MediaCounts:
        return MediaCounts(**self._counts)

    def add(self, kind: str, data: Any = None) -> None:
        """Counts one of that kind; `data` is its base64 or data URL, if it is in the body."""
        self._counts[kind] += 1
        if isinstance(data, str) and self.shown:
            self._counts["inline"] += len(data)


# ── Only text and tool calls? ────────────────────────────────────────────────────────────────────


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    content: str | list[_Block] | None = None
    """Of a tool result."""


class _BlockMessage(msgspec.Struct, gc=False):
    content: str | list[_Block] | None = None


class _Typed(msgspec.Struct, gc=False):
    type: str = ""


class _ChatMessage(msgspec.Struct, gc=False):
    content: str | list[_Typed] | None = None
    audio: Any = None


class _Item(msgspec.Struct, gc=False):
    type: str = "message"
    content: str | list[_Typed] | None = None
    output: str | list[_Typed] | None = None


class _Response(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    id: str | None = None
    response: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    text: str | None = None
    functionCall: msgspec.Raw = msgspec.Raw(b"null")
    functionResponse: _Response | None = None
    thought: bool | None = None
    thoughtSignature: msgspec.Raw = msgspec.Raw(b"null")


class _Content(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str | None = None
    parts: list[_Part] | None = None


class _OllamaMessage(msgspec.Struct, gc=False):
    images: Any = None


_BLOCKS = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking"})
_CHAT_PARTS = frozenset({"text", "refusal", "thinking"})
_ITEMS = frozenset(
    """message function_call function_call_output reasoning custom_tool_call
    custom_tool_call_output""".split()
)
_ITEM_PARTS = frozenset({"input_text", "output_text", "refusal", "reasoning_text", "summary_text"})

_decode_messages = msgspec.json.Decoder(list[_BlockMessage]).decode
_decode_system = msgspec.json.Decoder(str | list[_Block]).decode
_decode_chat = msgspec.json.Decoder(list[_ChatMessage]).decode
_decode_items = msgspec.json.Decoder(str | list[_Item]).decode
_decode_contents = msgspec.json.Decoder(list[_Content] | _Content).decode
_decode_ollama = msgspec.json.Decoder(list[_OllamaMessage]).decode


def _plain_blocks(blocks: str | list[_Block] | None) -> bool:
    return not isinstance(blocks, list) or all(
        block.type in _BLOCKS and _plain_blocks(block.content) for block in blocks
    )


def _plain_parts(parts: str | list[_Typed] | None, known: frozenset[str]) -> bool:
    return not isinstance(parts, list) or all(part.type in known for part in parts)


def _plain_messages(raw: msgspec.Raw) -> bool:
    return all(_plain_blocks(message.content) for message in _decode_messages(raw))


def _plain_chat(raw: msgspec.Raw) -> bool:
    return all(
        message.audio is None and _plain_parts(message.content, _CHAT_PARTS)
        for message in _decode_chat(raw)
    )


def _plain_items(raw: msgspec.Raw) -> bool:
    items = _decode_items(raw)
    return isinstance(items, str) or all(
        item.type in _ITEMS
        and _plain_parts(item.content, _ITEM_PARTS)
        and _plain_parts(item.output, _ITEM_PARTS)
        for item in items
    )


def _plain_contents(raw: msgspec.Raw) -> bool:
    _decode_contents(raw)  # takes no other fields
    return True


def _plain_ollama(raw: msgspec.Raw) -> bool:
    return all(message.images is None for message in _decode_ollama(raw))


#: Whether a field with content holds only text and tool calls, by wire and field. They raise what
#: decoding raises where it has another form.
_PLAIN: dict[tuple[str, str], Callable[[msgspec.Raw], bool]] = {
    ("anthropic", "messages"): _plain_messages,
    ("anthropic", "system"): lambda raw: _plain_blocks(_decode_system(raw)),
    ("openai_chat", "messages"): _plain_chat,
    ("openai_responses", "input"): _plain_items,
    ("openai_responses", "instructions"): _plain_items,
    ("gemini", "contents"): _plain_contents,
    ("gemini", "systemInstruction"): _plain_contents,
    ("ollama", "messages"): _plain_ollama,
}


# ── Everything else ──────────────────────────────────────────────────────────────────────────────

#: Data of the app's own tools, which providers do not interpret, by the type or field around it.
_OPAQUE = {
    "tool_use": "input",
    "server_tool_use": "input",
    "mcp_tool_use": "input",
    "custom_tool_call": "input",
    "functionCall": "args",
    "functionResponse": "response",
    "function": "arguments",
}
#: Fields through which media are reached.
_SHOWN = frozenset({"content", "output", "parts", "source", "functionResponse", "inlineData"})
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal", "additional_tools"})
_IMAGES = frozenset({"image", "image_url", "input_image", "computer_screenshot", "screenshot"})
_AUDIO = frozenset({"input_audio", "audio", "audio_url"})
_FILES = frozenset({"document", "file", "input_file", "video", "video_url", "input_video"})
#: Where the base64 or data URL of a medium may stand in it.
_DATA = ("data", "url", "image_url", "video_url", "audio_url", "file_data", "input_audio")
_INSIDE = ("source", "image_url", "input_audio", "file", "video_url", "audio_url")


def holds_content(wire: str, name: str) -> bool:
    """Whether a field of a request holds messages or system text."""
    return (wire, name) in _PLAIN


def scan_content(wire: str, name: str, raw: msgspec.Raw, found: RequestContent) -> None:
    """Adds what a field with content holds besides text and tool calls."""
    try:
        if _PLAIN[wire, name](raw):
            return
    except DECODE_ERRORS:
        pass  # in another form, which is examined below
    try:
        value = msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), f"$.{name}") from None
    stack: list[tuple[str, str, Any, bool]] = [(name, "", value, True)]
    while stack:
        path, field, item, shown = stack.pop()
        if isinstance(item, list):
            stack += [(f"{path}[{index}]", field, each, shown) for index, each in enumerate(item)]
        elif isinstance(item, dict):
            if wire == "gemini":
                item = {camel(key): each for key, each in item.items()}
            kind = item.get("type")
            kind = kind if isinstance(kind, str) else ""
            found.shown = shown
            _note(wire, path, field, kind, item, found)
            opaque = _OPAQUE.get(kind or field)
            stack += [
                (f"{path}.{key}", key, each, shown and key in _SHOWN)
                for key, each in item.items()
                if key != opaque and isinstance(each, (dict, list))
            ]


def _note(
    wire: str, path: str, field: str, kind: str, item: dict[str, Any], found: RequestContent
) -> None:
    """Notes what one object is."""
    if wire == "gemini":
        if field in ("inlineData", "fileData"):
            _note_gemini(path, item, found)
    elif wire == "ollama":
        for image in item.get("images") or ():
            found.add("images", image)
    elif kind in _IMAGES:
        found.add("images", _inline(item))
    elif kind in _AUDIO:
        found.add("audio", _inline(item))
    elif kind in _FILES:
        _note_file(item, found)
    elif kind == "image_generation_call":
        found.add("images", item.get("result"))
    elif kind in _TOOL_CHANGES:
        found.changes_tools = True
    elif kind == "item_reference":
        found.handles.append((f"{path}.id", "response", str(item.get("id"))))
    if kind in ("tool_addition", "additional_tools", "tool_search_output"):
        tools = item.get("tools") or item.get("tool") or []
        for tool in tools if isinstance(tools, list) else [tools]:
            read_tool(wire, path, tool, found.tools)
    _note_ids(path, item, found)


def _note_ids(path: str, item: dict[str, Any], found: RequestContent) -> None:
    for key, object_kind in _IDS.items():
        value = item.get(key)
        for id in value if isinstance(value, list) else [value]:
            if isinstance(id, str):
                found.handles.append((f"{path}.{key}", object_kind, id))
    if path.endswith(".audio") and "id" in item:
        # The sound of an earlier answer.
        found.handles.append((f"{path}.id", "response", str(item["id"])))
        found.add("audio")


_IDS: dict[str, HandleKind] = {
    "file_id": "file",
    "file_ids": "file",
    "container_id": "container",
}


def _inline(item: dict[str, Any]) -> str | None:
    """The base64 or data URL of a medium; None where it is only referred to."""
    holders = [item, *(item[key] for key in _INSIDE if isinstance(item.get(key), dict))]
    for holder in holders:
        for key in _DATA:
            value = holder.get(key)
            if not isinstance(value, str):
                continue
            if key in ("data", "file_data") or value.startswith("data:"):
                return value
    return None


def _note_file(item: dict[str, Any], found: RequestContent) -> None:
    source = item.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        return  # text in the body; the images in it are counted by themselves
    if isinstance(source, str):
        return  # the origin of a search result
    found.add("documents", _inline(item))


def _note_gemini(path: str, item: dict[str, Any], found: RequestContent) -> None:
    """Bytes in the request, or a file: of Google's file store, of a bucket, or at a public
    address."""
    kind = str(item.get("mimeType") or "")
    medium = kind.partition("/")[0]
    name = {"image": "images", "audio": "audio"}.get(medium, "documents")
    found.add(name, item.get("data"))
    uri = item.get("fileUri")
    if isinstance(uri, str) and (not uri.startswith("http") or "/files/" in uri):
        found.handles.append((f"{path}.fileUri", "file", uri))
