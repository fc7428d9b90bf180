"""What in a chunk is not text: images, documents, audio, built-in tools, encrypted reasoning. They
are billed by content, so their base64 is not counted as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.values.stability import Kind

#: One image, document or sound, or a built-in tool of a provider with its instructions. A stand-in:
#: images are billed by their area, from 85 tokens to some 5,000.
_MEDIA = 1200

#: Encrypted reasoning on api.openai.com: six recorded items had 5.2 to 22 characters a token.
_ENCRYPTED = 8

#: Kinds whose chunks are all text. A tuple, searched by identity.
TEXT = (Kind.TEXT, Kind.TOOL_CALL, Kind.SYSTEM, Kind.OTHER)
_SHOWN = (Kind.IMAGE, Kind.AUDIO, Kind.DOCUMENT)
_SCHEMAS = (b'"input_schema"', b'"parameters"', b'"parametersJsonSchema"', b'"function"')

#: Every wire writes one of these beside binary content; a long base64 run is the content.
_CARRIERS = (b"base64", b"inlineData")
LONG = 2000
_CARRIED = re.compile(rb"[A-Za-z0-9+/=_-]{%d,}+" % LONG)
_ENCRYPTED_TEXT = re.compile(rb'"encrypted_content"\s*:\s*"([^"\\]*+)"')
_PLAIN = re.compile(rb'"(?:text/[a-z-]+|data:text/[a-z-][^"]*+)"|"type"\s*:\s*"(?:text|content)"')


def not_text(kind: Kind, size: int, data: Callable[[], bytes]) -> tuple[int, int]:
    """The bytes of a chunk that are not text, and their tokens. Chunks that can only be text are
    not examined."""
    if kind in TEXT or (kind is Kind.TOOL_RESULT and size < LONG):
        return 0, 0
    if kind is Kind.TOOL:
        text = data()
        if not _is_function(text):
            return size, _MEDIA
        return (_deferred_bytes(text), 0) if b'"defer_loading"' in text else (0, 0)
    if kind is Kind.THINKING:
        hidden = _ENCRYPTED_TEXT.search(data())
        length = 0 if hidden is None else hidden.end(1) - hidden.start(1)
        return length, length // _ENCRYPTED
    text = data()
    if kind is Kind.DOCUMENT and b'"fileData"' not in text and _PLAIN.search(text) is not None:
        # A plain text document counts as text; base64 encodes three bytes in four.
        return (size // 4, 0) if any(carrier in text for carrier in _CARRIERS) else (0, 0)
    beside = b'"images"' in text  # Ollama puts them in a message beside its text
    if kind in _SHOWN and not beside:
        return size, _MEDIA
    if not beside and not any(carrier in text for carrier in _CARRIERS):
        return 0, 0
    runs = [found.end() - found.start() for found in _CARRIED.finditer(text)]
    return sum(runs), _MEDIA * (max(1, len(runs)) if kind in _SHOWN else len(runs))


def _deferred_bytes(data: bytes) -> int:
    """The bytes of a tool that OpenAI does not show to the model until a search finds them: the
    schema of a deferred function, and a deferred function of a namespace as a whole."""
    try:
        tool = _decode_tool(data[data.index(b"{") :])
        inner = [raw for raw in tool.tools if _decode_tool(raw).defer_loading is True]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 0
    return sum(map(len, map(bytes, inner))) + (
        len(bytes(tool.parameters)) if tool.defer_loading is True else 0
    )


class _ToolFields(msgspec.Struct):
    defer_loading: Any = None
    parameters: msgspec.Raw = msgspec.Raw(b"")
    tools: list[msgspec.Raw] = []


_decode_tool = msgspec.json.Decoder(_ToolFields).decode


def _is_function(data: bytes) -> bool:
    """Whether a tool is a function: built-in tools have no schema. A Gemini function may have none
    either, but it has a name and no type."""
    return any(field in data for field in _SCHEMAS) or (b'"name"' in data and b'"type"' not in data)
