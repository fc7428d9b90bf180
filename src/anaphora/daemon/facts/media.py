"""Inline media of a request: where each wire shows base64 to the model, and which bytes that is.

Text is billed by its bytes, media by what they show. So the bytes of a medium are excepted from the
text of a request, but only where this wire shows it to the model: anywhere else its data may be
billed as text. Excepted bytes are spans of the body that do not overlap.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Places in the content of a request, by wire and field, that may hold media. All others are "".
_FIRST: dict[tuple[str, str], str] = {
    ("anthropic", "messages"): "message",
    ("openai_chat", "messages"): "message",
    ("openai_responses", "input"): "item",
    ("gemini", "contents"): "content",
    ("ollama", "messages"): "message",
}
#: From the place of an object, its type and a member to the place of what that holds. `*` stands
#: for any type.
_NEXT: dict[str, dict[tuple[str, str, str], str]] = {
    "anthropic": {
        ("message", "*", "content"): "block",
        ("block", "tool_result", "content"): "result",
        ("block", "document", "source"): "source",
        ("block", "web_fetch_tool_result", "content"): "fetched",
        ("fetched", "web_fetch_result", "content"): "result",
        ("result", "document", "source"): "source",
        ("source", "content", "content"): "inner",
    },
    "openai_chat": {("message", "*", "content"): "part"},
    "openai_responses": {
        ("item", "", "content"): "part",
        ("item", "message", "content"): "part",
        ("item", "function_call_output", "output"): "part",
        ("item", "custom_tool_call_output", "output"): "part",
        ("item", "computer_call_output", "output"): "screen",
    },
    "gemini": {
        ("content", "*", "parts"): "part",
        ("part", "*", "inlineData"): "data",
        ("part", "*", "functionResponse"): "response",
        ("response", "*", "parts"): "response part",
        ("response part", "*", "inlineData"): "data",
    },
    "ollama": {},
}
#: The members that lead to the data of a medium, by its place and type.
_DATA: dict[str, dict[tuple[str, str], tuple[tuple[str, ...], ...]]] = {
    "anthropic": {
        ("block", "image"): (("source", "data"),),
        ("block", "document"): (("source", "data"),),
        ("result", "image"): (("source", "data"),),
        ("result", "document"): (("source", "data"),),
        ("inner", "image"): (("source", "data"),),
    },
    "openai_chat": {
        ("part", "image_url"): (("image_url", "url"), ("image_url",)),
        ("part", "input_audio"): (("input_audio", "data"),),
        ("part", "file"): (("file", "file_data"),),
        ("part", "video_url"): (("video_url", "url"), ("video_url",)),
    },
    "openai_responses": {
        ("part", "input_image"): (("image_url",),),
        ("part", "input_file"): (("file_data",),),
        ("part", "input_audio"): (("input_audio", "data"),),
        ("screen", "computer_screenshot"): (("image_url",),),
        ("item", "image_generation_call"): (("result",),),
    },
    "gemini": {("data", "*"): (("data",),)},
}
#: Roles of Chat whose content may hold media.
_CHAT_ROLES = frozenset({"user", "tool"})
#: Members that hold an address, or the medium itself as a data URL.
_ADDRESSES = frozenset({"url", "image_url", "video_url"})
#: How much of a text is looked for; what follows is compared. Shorter texts are not excepted.
_BEGIN = 64


_encode = msgspec.json.Encoder().encode


class InlineSpan(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a medium: from `start` up to `end` in the value of a field of the body."""

    field: str
    start: int
    end: int


class MediaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The media of a request."""

    images: int = 0
    documents: int = 0
    """Files of any other kind, such as PDFs."""
    audio: int = 0
    """Also videos whose sound is billed by itself."""
    spans: tuple[InlineSpan, ...] = ()
    """Where their base64 stands, which is no text; they do not overlap."""

    @property
    def inline(self) -> int:
        """Bytes of the body that are their base64, not text."""
        return sum(span.end - span.start for span in self.spans)


def first_place(wire: str, field: str) -> str:
    """The place of the messages in a field; empty where no media are shown."""
    return _FIRST.get((wire, field), "")


def next_place(wire: str, place: str, kind: str, item: dict[str, Any], key: str) -> str:
    """The place of a member's value, by the place and type of its object."""
    if not place:
        return ""
    if wire == "openai_chat" and place == "message" and item.get("role") not in _CHAT_ROLES:
        return ""
    steps = _NEXT[wire]
    return steps.get((place, kind, key)) or steps.get((place, "*", key)) or ""


def shown_data(wire: str, place: str, kind: str, item: dict[str, Any]) -> list[str]:
    """The base64 or data URLs of an object, where its place shows them to the model."""
    if not place:
        return []
    if wire == "ollama":
        images = item.get("images")
        return (
            [each for each in images if isinstance(each, str)] if isinstance(images, list) else []
        )
    rows = _DATA[wire]
    for path in rows.get((place, kind)) or rows.get((place, "*")) or ():
        value: Any = item
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if not isinstance(value, str):
            continue
        if wire == "anthropic" and item["source"].get("type") != "base64":
            continue
        if path[-1] not in _ADDRESSES or value.startswith("data:"):
            return [value]
    return []


class SpanFinder:
    """Finds the texts of a field in its bytes, each behind the one before it."""

    def __init__(self, field: str, raw: msgspec.Raw) -> None:
        self._field = field
        self._source = raw
        self._raw: bytes | None = None
        self._position = 0

    def find(self, text: str) -> InlineSpan | None:
        """The next place of this text, behind the last one that was found; None for a short text,
        or one that is written in another way: it may be billed as text."""
        if len(text) < _BEGIN:
            return None
        if self._raw is None:
            self._raw = bytes(self._source)
        # Base64 is written as it is, and copied faster so.
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
