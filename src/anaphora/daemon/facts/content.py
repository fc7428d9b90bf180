"""What the messages of a request hold besides text: media, files and other stored objects, tools.

Most requests hold only text and tool calls: a typed decoder finds that out, and only others are
decoded in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.daemon.store import HandleKind
from anaphora.values import Ttl
from anaphora.wire.body_memory import ListElements
from anaphora.wire.gemini.types import camel
from anaphora.wire.reading import DECODE_ERRORS, decode_reason, request_error

from .handles import is_stored_reasoning
from .media import InlineSpan, MediaCounts, SpanFinder, first_place, next_place, shown_data
from .tools import FoundTools, read_tool


class RequestContent:
    """What was found in the messages of one request."""

    __slots__ = ("_counts", "_spans", "cache_ttls", "changes_tools", "handles", "tools", "unknown")

    def __init__(self) -> None:
        self._counts = {"images": 0, "documents": 0, "audio": 0}
        self._spans: list[InlineSpan] = []
        self.handles: list[tuple[str, HandleKind, str]] = []
        """Fields, kinds and ids."""
        self.tools = FoundTools()
        self.unknown: list[str] = []
        """Names of fields with values that need an entry in the grant."""
        self.cache_ttls: set[Ttl] = set()
        self.changes_tools = False

    @property
    def media(self) -> MediaCounts:
        return MediaCounts(**self._counts, spans=tuple(self._spans))

    def add(self, kind: str) -> None:
        """Counts one of that kind."""
        self._counts[kind] += 1

    def except_span(self, span: InlineSpan | None) -> None:
        """Excepts the bytes of a medium from the text."""
        if span is not None:
            self._spans.append(span)


# ── Only text and tool calls? ────────────────────────────────────────────────────────────────────
#
# The types below take nothing else: content that they decode holds only text and tool calls.


class _Block(msgspec.Struct, gc=False):
    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    content: str | list[_Block] | None = None
    """Of a tool result."""


class _BlockMessage(msgspec.Struct, gc=False):
    content: str | list[_Block] | None = None


class _ChatPart(msgspec.Struct, gc=False):
    type: Literal["text", "refusal", "thinking"]


class _ChatMessage(msgspec.Struct, gc=False):
    content: str | list[_ChatPart] | None = None
    audio: None = None


class _ItemPart(msgspec.Struct, gc=False):
    type: Literal["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]


class _Item(msgspec.Struct, gc=False):
    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "custom_tool_call",
        "custom_tool_call_output",
    ] = "message"
    content: str | list[_ItemPart] | None = None
    output: str | list[_ItemPart] | None = None
    role: str | None = None
    encrypted_content: msgspec.Raw = msgspec.Raw(b"null")


class _FunctionResponse(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    id: str | None = None
    response: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    text: str | None = None
    functionCall: msgspec.Raw = msgspec.Raw(b"null")
    functionResponse: _FunctionResponse | None = None
    thought: bool | None = None
    thoughtSignature: msgspec.Raw = msgspec.Raw(b"null")


class _Content(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str | None = None
    parts: list[_Part] | None = None


class _OllamaMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: None = None


#: The decoders of plain content, by wire and field.
_PLAIN: dict[tuple[str, str], Callable[[bytes | msgspec.Raw], Any]] = {
    place: msgspec.json.Decoder(kind).decode
    for place, kind in {
        ("anthropic", "messages"): list[_BlockMessage],
        ("anthropic", "system"): str | list[_Block] | None,
        ("openai_chat", "messages"): list[_ChatMessage],
        ("openai_responses", "input"): str | list[_Item] | None,
        ("openai_responses", "instructions"): str | list[_Item] | None,
        ("gemini", "contents"): list[_Content] | _Content,
        ("gemini", "systemInstruction"): _Content | None,
        ("ollama", "messages"): list[_OllamaMessage],
    }.items()
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
#: Sources that an answer named: the provider does not open them again.
_CITED = frozenset({"annotations", "citations", "results", "logprobs"})
_RESULTS = frozenset({"code_execution_output", "bash_code_execution_output"})
#: Fields through which blocks are reached.
_BLOCKS = frozenset({"", "content", "output", "parts", "source"})
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal", "additional_tools"})
_IMAGES = frozenset({"image", "image_url", "input_image", "computer_screenshot", "screenshot"})
_AUDIO = frozenset({"input_audio", "audio", "audio_url"})
_FILES = frozenset({"document", "file", "input_file", "video", "video_url", "input_video"})
#: Blocks and items that are billed as the text that they hold, beside those above.
_TEXTS = frozenset(
    """text tool_use tool_result thinking redacted_thinking search_result server_tool_use
    web_search_tool_result web_search_result web_fetch_tool_result code_execution_tool_result
    bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result
    tool_reference container_upload mcp_tool_use mcp_tool_result mcp_tool_listing
    advisor_tool_result compaction fallback refusal input_text output_text reasoning_text
    summary_text message reasoning function_call function_call_output custom_tool_call
    custom_tool_call_output file_search_call computer_call computer_call_output web_search_call
    tool_search_call tool_search_output configuration_update image_generation_call
    code_interpreter_call local_shell_call local_shell_call_output shell_call shell_call_output
    apply_patch_call apply_patch_call_output mcp_list_tools mcp_approval_request
    mcp_approval_response mcp_call compaction_trigger item_reference program
    program_output""".split()
)
_KNOWN = _TEXTS | _RESULTS | _TOOL_CHANGES | _IMAGES | _AUDIO | _FILES
#: The members of Gemini's parts.
_PARTS = frozenset(
    """codeExecutionResult executableCode fileData functionCall functionResponse inlineData
    mediaResolution partMetadata text thought thoughtSignature toolCall toolResponse
    videoMetadata""".split()
)
_GEMINI_MEDIA = {"image": "images", "text": "documents", "application": "documents"}
#: A file of Google's file store, by its address or name.
_GEMINI_FILE = re.compile(r"(?:https?://[^/]+)?/?(?:v1(?:beta|alpha)/)?files/([\w-]+)")


def holds_content(wire: str, name: str) -> bool:
    """Whether a field of a request holds messages or system text."""
    return (wire, name) in _PLAIN


def scan_content(
    wire: str,
    name: str,
    raw: msgspec.Raw,
    found: RequestContent,
    elements: ListElements | None = None,
) -> None:
    """Adds what a field with content holds besides text and tool calls. `elements` are those of
    one of the fields: the ones that are known to be plain are not read again."""
    if elements is None or elements.name != name:
        if _is_plain(wire, name, raw):
            return
    elif are_plain(wire, elements):
        return
    try:
        value = msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), f"$.{name}") from None
    rename, note = _NAMES.get(wire), _NOTES.get(wire, _note_typed)
    finder = SpanFinder(name, raw)
    # Taken from the end: what stands first is read first.
    stack: list[tuple[str, str, Any, str]] = [(name, "", value, first_place(wire, name))]
    while stack:
        path, field, item, place = stack.pop()
        if isinstance(item, list):
            stack += [
                (
                    f"{path}[{index}]",
                    field,
                    item[index],
                    "" if isinstance(item[index], list) else place,
                )
                for index in range(len(item) - 1, -1, -1)
            ]
        elif isinstance(item, dict):
            if rename is not None:
                item = _renamed(item, rename, path)
            kind = item.get("type")
            kind = kind if isinstance(kind, str) else ""
            note(path, field, kind, item, found)
            for data in shown_data(wire, place, kind, item):
                found.except_span(finder.find(data))
            if isinstance(marker := item.get("cache_control"), dict):
                found.cache_ttls.add("1h" if marker.get("ttl") == "1h" else "5m")
            opaque = _OPAQUE.get(kind or field)
            children = [
                (f"{path}.{key}", key, each, next_place(wire, place, kind, item, key))
                for key, each in item.items()
                if key != opaque and key not in _CITED and isinstance(each, (dict, list))
            ]
            stack += reversed(children)


def are_plain(wire: str, elements: ListElements) -> bool:
    """Whether messages hold only text and tool calls; those that are known to are not read."""
    count = len(elements.raws)
    if elements.plain < count:
        if not _is_plain(wire, elements.name, elements.joined(elements.plain)):
            return False
        elements.plain = count
    return True


def _is_plain(wire: str, name: str, raw: bytes | msgspec.Raw) -> bool:
    """Whether there is only text and tool calls. A list is plain where each of its elements is."""
    try:
        plain = _PLAIN[wire, name](raw)
    except DECODE_ERRORS:
        return False
    is_whole = _WHOLE.get((wire, name))
    return is_whole is None or not isinstance(plain, list) or all(map(is_whole, plain))


def _is_whole(item: _Item) -> bool:
    """Whether an item is in the request, and not only its id."""
    if item.type == "message":
        return item.role is not None
    return item.type != "reasoning" or bytes(item.encrypted_content) not in (b"null", b'""')


#: What else the elements of plain content must be.
_WHOLE: dict[tuple[str, str], Callable[[_Item], bool]] = {
    ("openai_responses", "input"): _is_whole,
    ("openai_responses", "instructions"): _is_whole,
}


def _renamed(item: dict[str, Any], rename: Callable[[str], str], path: str) -> dict[str, Any]:
    """The members under the names that the provider reads them by."""
    renamed = {rename(key): each for key, each in item.items()}
    if len(renamed) < len(item):
        raise request_error("a member is given under two names", f"$.{path}")
    return renamed


def _is_item_id(field: str, kind: str, item: dict[str, Any]) -> bool:
    """Whether an item of Responses holds nothing but the id of a stored one."""
    if not item.get("id"):
        return False
    if kind == "reasoning":
        return is_stored_reasoning(item)
    return not kind and not field and not item.get("role")


def _note_typed(
    path: str, field: str, kind: str, item: dict[str, Any], found: RequestContent
) -> None:
    """Notes what an object with a `type` is."""
    if kind in _IMAGES:
        found.add("images")
    elif kind in _AUDIO:
        found.add("audio")
    elif kind in _FILES:
        _note_file(item, found)
    elif kind == "image_generation_call" and item.get("result"):
        found.add("images")
    elif _is_item_id(field, kind, item):
        found.handles.append((f"{path}.id", "item", str(item["id"])))
    elif kind in _TOOL_CHANGES:
        found.changes_tools = True
    elif kind in ("item_reference", "image_generation_call"):
        found.handles.append((f"{path}.id", "item", str(item.get("id"))))
    elif kind and kind not in _KNOWN and field in _BLOCKS and path.endswith("]"):
        found.add("documents")  # a new kind of block: it may be anything
    if kind in ("tool_addition", "additional_tools", "tool_search_output"):
        tools = item.get("tools") or item.get("tool") or []
        for tool in tools if isinstance(tools, list) else [tools]:
            read_tool(path, tool, found.tools)
    if kind not in _RESULTS:
        _note_ids(path, item, found)
    if field == "audio" and "id" in item:
        # The sound of an earlier answer.
        found.handles.append((f"{path}.id", "response", str(item["id"])))
        found.add("audio")


def _note_gemini(
    path: str, field: str, _: str, item: dict[str, Any], found: RequestContent
) -> None:
    """Bytes in the request, or a file: of Google's file store, of a bucket, or at a public
    address."""
    if field == "parts" and not _PARTS.issuperset(item):
        found.add("documents")  # a new kind of part: it may be anything
    if field not in ("inlineData", "fileData"):
        return
    medium = str(item.get("mimeType") or "").partition("/")[0].lower()
    # A video has a sound track; a file without a type may be one.
    found.add(_GEMINI_MEDIA.get(medium, "audio"))
    uri = item.get("fileUri")
    if not isinstance(uri, str):
        return
    if (stored := _GEMINI_FILE.fullmatch(uri)) is not None:
        found.handles.append((f"{path}.fileUri", "file", stored[1]))
    elif not uri.lower().startswith(("http://", "https://")):
        found.unknown.append("fileData.fileUri")  # a bucket that the operator's account can read


def _note_ollama(_: str, __: str, ___: str, item: dict[str, Any], found: RequestContent) -> None:
    images = item.get("images")
    for _image in images if isinstance(images, list) else [images] if images else ():
        found.add("images")


#: How a provider reads the names of members, where not as they are written: Gemini takes
#: snake_case, Ollama any case.
_NAMES: dict[str, Callable[[str], str]] = {"gemini": camel, "ollama": str.casefold}
_Note: TypeAlias = Callable[[str, str, str, dict[str, Any], RequestContent], None]
_NOTES: dict[str, _Note] = {"gemini": _note_gemini, "ollama": _note_ollama}


def _note_ids(path: str, item: dict[str, Any], found: RequestContent) -> None:
    for key, object_kind in _IDS.items():
        value = item.get(key)
        for id in value if isinstance(value, list) else [value]:
            if isinstance(id, str):
                found.handles.append((f"{path}.{key}", object_kind, id))


_IDS: dict[str, HandleKind] = {
    "file_id": "file",
    "file_ids": "file",
    "container_id": "container",
}


def _note_file(item: dict[str, Any], found: RequestContent) -> None:
    source = item.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        return  # text in the body; the images in it are counted by themselves
    if isinstance(source, str):
        return  # the origin of a search result
    found.add("documents")
