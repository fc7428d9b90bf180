"""Parts of chunks that are not text: images, documents, audio, built-in tools, encrypted reasoning.
They are billed by content, so their base64 is not counted as text."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from anaphora.values.stability import Kind

from .chunks import ChunkRun
from .log import ChunkLog

#: One image, document or sound, or a built-in tool of a provider with its instructions. A stand-in:
#: images are billed by their area, from 85 tokens to some 5,000.
_MEDIA = 1200

#: Encrypted reasoning on api.openai.com: six recorded items had 5.2 to 22 characters a token.
_ENCRYPTED = 8

#: Kinds whose chunks may contain something other than text.
NOT_TEXT = frozenset(Kind) - {Kind.TEXT, Kind.TOOL_CALL, Kind.SYSTEM, Kind.OTHER}
_SHOWN = (Kind.IMAGE, Kind.AUDIO, Kind.DOCUMENT)
_SCHEMAS = (
    b'"input_schema"',
    b'"parameters"',
    b'"parametersJsonSchema"',
    b'"parameters_json_schema"',  # google-genai 3
    b'"function"',
    b'"inputSchema"',
)

#: Every wire writes one of these beside binary content; a long base64 run is the content.
_CARRIERS = (b"base64", b"inlineData")
LONG = 2000
_CARRIED = re.compile(rb"[A-Za-z0-9+/=_-]{%d,}+" % LONG)
_ENCRYPTED_TEXT = re.compile(rb'"encrypted_content"\s*:\s*"([^"\\]*+)"')
_PLAIN = re.compile(rb'"(?:text/[a-z-]+|data:text/[a-z-][^"]*+)"|"type"\s*:\s*"(?:text|content)"')

#: Blocks that may refer to deferred tools, and the field with the name.
_REFERRING = (Kind.TOOL_RESULT, Kind.OTHER)
_TOOL_NAME = re.compile(rb'"tool_name"\s*:\s*"([^"\\]*+)"')


class Size(NamedTuple):
    """The size of some chunks."""

    text: int = 0
    """Bytes of text."""
    other: int = 0
    """Tokens of everything else."""

    def tokens(self, per_token: float) -> int:
        return math.ceil(self.text / per_token) + self.other


class Odd:
    """The chunks of a log that are not all text."""

    __slots__ = ("done", "ends", "totals")

    def __init__(
        self, done: int = 0, ends: Sequence[int] = (), totals: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.done = done
        """The number of chunks examined."""
        self.ends = ends
        """The end of each, in chunks."""
        self.totals = totals
        """Totals up to there: the bytes that are not text, and their tokens."""

    def upto(self, chunks: int) -> tuple[int, int]:
        """The totals of the first chunks."""
        index = bisect_right(self.ends, chunks)
        return self.totals[index - 1] if index else (0, 0)


def not_text(kind: Kind, size: int, data: Callable[[], bytes]) -> tuple[int, int]:
    """The bytes of a chunk that are not text, and their tokens. Chunks that can only be text are
    not examined."""
    if kind not in NOT_TEXT or (kind is Kind.TOOL_RESULT and size < LONG):
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
    if kind in _SHOWN:
        return size, _MEDIA
    if not any(carrier in text for carrier in _CARRIERS):
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
    """Whether a tool is a function: built-in tools have no schema. A Gemini function may also lack
    one, but it has a name and no type."""
    return any(field in data for field in _SCHEMAS) or (b'"name"' in data and b'"type"' not in data)


def measured(data: bytes, kind: Kind | None = None) -> Size:
    """The size of one block; without a kind, of any JSON that may contain images."""
    away, tokens = not_text(Kind.TOOL_RESULT if kind is None else kind, len(data), lambda: data)
    return Size(len(data) - away, tokens)


def with_definitions(odd: Odd, log: ChunkLog, count: int, runs: Sequence[ChunkRun]) -> Odd:
    """The size with the deferred tools that the first `count` chunks refer to."""
    referring = _references(log, count)
    if not referring:
        return odd
    deferred = [tool for run in runs for tool in run.deferred]
    sizes = {tool.name: len(tool.data) for tool in deferred}
    added = {end: sum(sizes.get(name, 0) for name in names) for end, names in referring}
    ends = sorted({*odd.ends, *added})
    definitions = accumulate(added.get(end, 0) for end in ends)
    totals = [
        (odd.upto(end)[0] - bytes_, odd.upto(end)[1])
        for end, bytes_ in zip(ends, definitions, strict=True)
    ]
    return Odd(odd.done, ends, totals)


def _references(log: ChunkLog, count: int) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The chunks that refer to tools, by their ends, and the names. Each is searched once."""
    searched, found = log.tool_references
    if searched < count:
        ends, more = log.ends, []
        for index in range(searched, count):
            if log.kinds[index] not in _REFERRING:
                continue
            block = log.slice(ends[index - 1] if index else 0, ends[index])
            if b'"tool_reference"' in block:
                names = tuple(name.decode(errors="replace") for name in _TOOL_NAME.findall(block))
                more.append((index + 1, names))
        found = (*found, *more)
        log.tool_references = count, found
    return found
