"""The JSON in a chunk, excerpts without secrets, and texts that change by themselves."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from anaphora.cache.prefix_difference import common_length
from anaphora.rendered import Chunk, Rendered

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{}]', re.DOTALL)
_CLOSERS = {b"{": b"}", b"[": b"]"}

#: The end of a text in the message before, whose quote is in the next chunk.
_TEXT_END = re.compile(rb'"(?=[}\]])')

UNREADABLE: Any = object()


class JsonBlock(msgspec.Struct, frozen=True):
    raw: bytes
    """The block itself, without the message around it."""
    outer: bytes
    """The same with the opening of its message, if it has one."""

    @property
    def value(self) -> Any:
        return _decode(self.raw)

    @property
    def whole(self) -> Any:
        return _decode(self.outer)


def block_of(chunk: Chunk) -> JsonBlock:
    return cut_block(chunk.data)


def cut_block(data: bytes) -> JsonBlock:
    """Chunks begin with the closing of the message before, and end inside their own: the former is
    dropped, the latter closed."""
    start = len(lead.group()) if (lead := _TEXT_END.match(data)) else 0
    stack: list[tuple[bytes, int]] = []
    quote = b""
    for match in _TOKEN.finditer(data, start):
        token = match.group()
        if token in (b"{", b"["):
            stack.append((token, match.end()))
        elif token in (b"}", b"]"):
            if stack:
                stack.pop()
            else:
                start = match.end()
        elif not match.group(1):
            quote = b'"'
    closers = b"".join(_CLOSERS[token] for token, _ in reversed(stack))
    outer = data[start:].lstrip(b", \t\r\n") + quote + closers
    inside = data[stack[-1][1] :] if stack else data[start:]
    return JsonBlock(inside.lstrip(b", \t\r\n") + quote, outer)


def _decode(raw: bytes) -> Any:
    """A value; members without braces are an object, several values a list."""
    for text in (raw, b"{" + raw + b"}", b"[" + raw + b"]"):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return UNREADABLE


def without_whitespace(raw: bytes) -> bytes:
    """JSON without white space between its tokens."""
    return b"".join(
        piece if piece[:1] == b'"' else b"".join(piece.split())
        for piece in re.findall(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"]+', raw, re.DOTALL)
    )


_BEFORE, _AFTER = 16, 40

_SECRETS = re.compile(
    rb"(?i)\b(?:sk|pk|rk|xai|gsk|ghp|gho|glpat|hf|AIza|AKIA|xox[abp])[-_]?[A-Za-z0-9_\-]{12,}"
    rb"|\b(?:bearer|basic)\s+[^\s\"\\]{8,}"
    rb"|\beyJ[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]+)*"
    rb"|(?:api[-_ ]?key|authorization|password|secret|token)[\"'\\]*\s*[:=]\s*[\"'\\]*"
    rb"(?:bearer\s+|basic\s+)?[^\s\"'\\,}]{6,}"
)
#: No key is longer.
_LONGEST_SECRET = 4096


def chunk_at(rendered: Rendered, offset: int) -> Chunk:
    """The chunk that holds a byte; that of the text for the quote at its end."""
    chunk = rendered.chunk(rendered.at_offset(offset))
    ends = chunk.index and offset == rendered.offset(chunk.index) and _TEXT_END.match(chunk.data)
    return rendered.chunk(chunk.index - 1) if ends else chunk


#: A quote that begins or ends a text.
_QUOTE = re.compile(rb'(?<!\\)(?:\\\\)*+"')


def excerpt(rendered: Rendered, offset: int, *, in_text: bool = False) -> str:
    """A few characters around a byte, in the chunk that holds it; `in_text`: not beyond the JSON
    text that holds it."""
    if offset >= rendered.size:
        return ""
    chunk = chunk_at(rendered, offset)
    position, data = offset - rendered.offset(chunk.index), chunk.data
    begin, end = max(0, position - _BEFORE), position + _AFTER
    if in_text:
        quotes = list(_QUOTE.finditer(data, begin, position))
        begin = quotes[-1].end() if quotes else begin
        closing = _QUOTE.search(data, position, end)
        end = closing.end() - 1 if closing is not None else end
    while 0 < begin < position and data[begin] & 0xC0 == 0x80:
        begin += 1  # not in the middle of a character
    return redacted(data, begin, end)


def redacted(
    data: bytes, begin: int, end: int, secrets: Sequence[tuple[int, int]] | None = None
) -> str:
    """A part of a text, without anything that looks like a key: prompts may contain keys, and
    excerpts are logged. A key is recognised by its beginning, which may be before the excerpt.
    `secrets` are those of the whole text, if many parts of it are shown."""
    if secrets is None:
        secrets = secrets_in(data, begin - _LONGEST_SECRET, end + _LONGEST_SECRET)
    pieces, done = [], begin
    first = max(0, bisect_right(secrets, (begin,)) - 1)
    for start, stop in islice(secrets, first, None):
        if start >= end:
            break
        if stop > done:
            pieces += [data[done : max(done, start)], b"[redacted]"]
            done = stop
    return b"".join([*pieces, data[done:end]]).decode(errors="ignore")


def secrets_in(data: bytes, begin: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """The positions of texts that look like keys."""
    last = len(data) if end is None else min(len(data), end)
    return [match.span() for match in _SECRETS.finditer(data, max(0, begin), last)]


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"

#: Generous: they are used if two texts are known to differ.
_KINDS: tuple[tuple[str, str], ...] = (
    ("uuid", r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
    (
        "date",
        rf"{_DAY}(?:\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?!\d)"
        rf"|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b"
        rf"|\b{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.?\s+{_MONTH}\.?,?\s+\d{{4}}\b)",
    ),
    ("date", r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"),
    (
        "clock",
        r"(?:t|\b)\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?(?:z\b|[+-]\d{2}:?\d{2})?",
    ),
    ("clock", r"\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b"),
    (
        "nonce",
        # Bounded, so that a long text without a digit is not searched from each of its words.
        r"\b(?=[a-z_-]{0,63}+[0-9])(?=[0-9_-]{0,63}+[a-z])[0-9a-z]+(?:[_-][0-9a-z]+)*\b",
    ),
    ("counter", r"\b\d+(?:\.\d+)?\b"),
)
_ANY = re.compile("|".join(f"({pattern})" for _, pattern in _KINDS), re.IGNORECASE)
#: Characters before and after a difference that are searched with it: no date is longer.
_CONTEXT = 200
_LONGEST_CHANGE = 200_000
#: Shorter words with a digit are names (v2, gpt4) more often than nonces.
_SHORTEST_NONCE = 6


def volatile_change(before: str, after: str) -> str | None:
    """The kind of the difference, if two texts differ only in dates, times, ids or numbers. None
    also if the differing part is too long to be searched while a call waits."""
    begin = max(0, common_length(before, after) - _CONTEXT)
    end = max(0, common_length(before[:begin:-1], after[:begin:-1]) - _CONTEXT)
    before, after = before[begin : len(before) - end], after[begin : len(after) - end]
    if max(len(before), len(after)) > _LONGEST_CHANGE:
        return None
    one, two = list(_volatile(before)), list(_volatile(after))
    if len(one) != len(two) or _between(before, one) != _between(after, two):
        return None
    for (_, _, kind, text), (_, _, other_kind, other) in zip(one, two, strict=True):
        if text != other:
            return kind if kind == other_kind else "nonce"
    return None


def _volatile(text: str) -> Iterator[tuple[int, int, str, str]]:
    for match in _ANY.finditer(text):
        kind = _KINDS[(match.lastindex or 1) - 1][0]
        if kind != "nonce" or match.end() - match.start() >= _SHORTEST_NONCE:
            yield match.start(), match.end(), kind, match.group()


def _between(text: str, matches: list[tuple[int, int, str, str]]) -> list[str]:
    ends = [0, *(end for _, end, _, _ in matches)]
    starts = [*(start for start, _, _, _ in matches), len(text)]
    return [text[end:start] for end, start in zip(ends, starts, strict=True)]
