"""Sizes of chunks: bytes of text, and tokens of everything else.

Text is counted by its bytes. Images, documents and audio are billed by content, so their base64 is
not counted as text; neither is encrypted reasoning.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from anaphora.rendered import ChunkLog, Kind

#: One image, document or sound, or a built-in tool of a provider with its instructions. A stand-in:
#: images are billed by their area, from 85 tokens to some 5,000.
_MEDIA = 1200

#: Encrypted reasoning on api.openai.com: six recorded items had 5.2 to 22 characters a token.
_ENCRYPTED = 8

#: Kinds whose chunks are all text. A tuple, searched by identity.
_TEXT = (Kind.TEXT, Kind.TOOL_CALL, Kind.SYSTEM, Kind.OTHER)
_SHOWN = (Kind.IMAGE, Kind.AUDIO, Kind.DOCUMENT)
_SCHEMAS = (b'"input_schema"', b'"parameters"', b'"parametersJsonSchema"', b'"function"')

#: Every wire writes one of these beside binary content; a long base64 run is the content.
_CARRIERS = (b"base64", b"inlineData")
_LONG = 2000
_CARRIED = re.compile(rb"[A-Za-z0-9+/=_-]{%d,}+" % _LONG)
_ENCRYPTED_TEXT = re.compile(rb'"encrypted_content"\s*:\s*"([^"\\]*+)"')
_PLAIN = re.compile(rb'"(?:text/[a-z-]+|data:text/[a-z-]+[^"]*+)"|"type"\s*:\s*"(?:text|content)"')


class Size(NamedTuple):
    """The size of some chunks."""

    text: int = 0
    """Bytes of text."""
    other: int = 0
    """Tokens of everything else."""

    def tokens(self, per_token: float) -> int:
        return tokens_in(self.text, per_token) + self.other


class Odd:
    """The chunks of a log that are not all text."""

    __slots__ = ("before", "done", "ends", "totals")

    def __init__(
        self, done: int = 0, ends: Sequence[int] = (), totals: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.done = done
        """The number of chunks examined."""
        self.ends = ends
        """The end of each, in chunks."""
        self.totals = totals
        """Totals up to there: the bytes that are not text, and their tokens."""
        self.before: Any = None
        """The size of all runs of a prompt but the last, as last computed (see `Counts`)."""

    def upto(self, chunks: int) -> tuple[int, int]:
        """The totals of the first chunks."""
        index = bisect_right(self.ends, chunks)
        return self.totals[index - 1] if index else (0, 0)


def tokens_in(size: int, per_token: float) -> int:
    """Tokens of `size` bytes of text, rounded up."""
    return math.ceil(size / per_token)


def bytes_in(tokens: int, per_token: float) -> int:
    """The bytes of the longest text of so many tokens."""
    return int(tokens * per_token)


def ends(sizes: Iterable[Size], per_token: float) -> list[int]:
    """The tokens up to the end of each block, rounded once."""
    totals = accumulate(sizes, lambda one, two: Size(one.text + two.text, one.other + two.other))
    return [size.tokens(per_token) for size in totals]


def measured(data: bytes, kind: Kind | None = None) -> Size:
    """The size of one block; without a kind, of any JSON that may contain images."""
    away, tokens = _odd(Kind.TOOL_RESULT if kind is None else kind, len(data), lambda: data)
    return Size(len(data) - away, tokens)


def odd_chunks(log: ChunkLog, count: int) -> Odd:
    """The chunks of a log that are not all text, at least among its first `count`. A log only
    grows, so each chunk is examined once."""
    known: Odd = log.odd or Odd()
    if known.done >= count:
        return known
    kinds, ends = log.kinds, log.ends
    found: list[int] = []
    totals: list[tuple[int, int]] = []
    for index in range(known.done, count):
        kind = kinds[index]
        if kind in _TEXT:
            continue
        start, end = ends[index - 1] if index else 0, ends[index]
        if kind is Kind.TOOL_RESULT and end - start < _LONG:
            continue
        away, tokens = _odd(kind, end - start, partial(log.slice, start, end))
        if away or tokens:
            before = totals[-1] if totals else known.upto(index)
            found.append(index + 1)
            totals.append((before[0] + away, before[1] + tokens))
    if found:
        # A new object, since another thread may be reading this one.
        known = Odd(count, (*known.ends, *found), (*known.totals, *totals))
    else:
        known.done = count
    log.odd = known
    return known


def _odd(kind: Kind, size: int, data: Callable[[], bytes]) -> tuple[int, int]:
    """The bytes of a chunk that are not text, and their tokens. Chunks that can only be text are
    not examined."""
    if kind in _TEXT or (kind is Kind.TOOL_RESULT and size < _LONG):
        return 0, 0
    if kind is Kind.TOOL:
        return (0, 0) if _is_function(data()) else (size, _MEDIA)
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


def _is_function(data: bytes) -> bool:
    """Whether a tool is a function: built-in tools have no schema. A Gemini function may have none
    either, but it has a name and no type."""
    return any(field in data for field in _SCHEMAS) or (b'"name"' in data and b'"type"' not in data)
