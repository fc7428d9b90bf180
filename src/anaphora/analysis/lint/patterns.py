"""Patterns of volatile content in a single sample of a text.

Prose is full of dates and numbers that never change, and examples contain ids. So a pattern alone
is not enough: the words before it must refer to the present, or to this run.

Repetitions that may begin anywhere are bounded, so that the time is proportional to the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from anaphora.cache.verdict.json_blocks import redacted, secrets_in

from . import Severity

#: Characters shown around a finding.
_CONTEXT = 24


class Hit(NamedTuple):
    rule: str
    severity: Severity
    start: int
    end: int


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_DATE = (
    rf"(?:{_WEEKDAY}\.?,?\s+)?(?:\d{{4}}-\d{{2}}-\d{{2}}(?!\d)|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}(?!\d)"
    rf"|{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?\s+{_MONTH}\.?,?\s+\d{{4}})"
)
_CLOCK = (
    r"(?:\d{4}-\d{2}-\d{2}[T ])?\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b)?"
    r"(?:\s?(?:z|utc|gmt)\b|[+-]\d{2}:?\d{2})?"
)
_UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_HEX = r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}\b"
_TOKEN = r"\b(?=\w*[0-9])(?:req|sess|session|run|trace|conv|thread|resp)_[A-Za-z0-9]{8,}\b"
_RANDOM = r"(?=[\w.-]{0,99}?[0-9])(?=[\w.-]{0,99}?[a-zA-Z])[\w.-]{6,}"

#: Words that refer to the present.
_NOW = re.compile(
    r"(?:\b(?:today|now|currently)\b|\btoday's\b|\bit(?:'s| is)(?: now)?|"
    r"\bcurrent[ _-](?:local[ _-]|utc[ _-])?(?:date|time|day|datetime|timestamp|year)\b"
    r"(?:[ _-](?:and|/)[ _-]time)?|\b(?:date|time) (?:now|today)\b|"
    r"\b(?:session|conversation|run) (?:started|began|start(?:ed)? (?:at|on|time)?)\b)"
    r"(?:[ _-](?:date|time|datetime))?(?:\s+(?:is|was|at|on|it is|in utc))*[^\w\n]{0,8}$",
    re.IGNORECASE,
)
#: A label at the beginning of a line: for the present, or for an example.
_LABEL = re.compile(r"(?:^|\n)[\s>*_#-]*(?:date|time|timestamp)[*_]*\s*[:=][\s*_]*$", re.IGNORECASE)
#: Words for ids of this run.
_THIS_RUN = re.compile(
    r"\b(?:session|request|req|conversation|trace|span|run|nonce|correlation|invocation|call|"
    r"message|turn|chat|execution)(?:[ _-]?(?:id|uuid|key|token|nonce))?"
    r"(?:\s+(?:is|was))?[^\w\n]{0,4}$",
    re.IGNORECASE,
)
_SOME_ID = re.compile(
    r"\b(?:id|uuid|build|commit|sha|hash|revision|version|digest|checksum)"
    r"(?:\s+(?:is|was))?[^\w\n]{0,4}$",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"(?:\bexamples?\b|\be\.g\.|\bfor instance\b|\bsuch as\b|\blike\b|\bformat\b|\bi\.e\."
    r"|\bsample\b|\bcutoff\b|\bcut-off\b|\bknowledge\b)[^\n]{0,60}$",
    re.IGNORECASE,
)
#: A field of a JSON example: `"date": "` is a template, not the current time.
_MEMBER = re.compile(r"[\"'`]\w+[\"'`]\s*:\s*[\"'`]?$")

#: UUIDs that documentation uses.
_KNOWN_UUIDS = frozenset(
    (
        "123e4567-e89b-12d3-a456-426614174000",
        "550e8400-e29b-41d4-a716-446655440000",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    )
)

_BEFORE = 80


def hits(text: str, *, template: bool = False) -> Iterator[Hit]:
    """Content that is likely to change, in the order of the text. `template`: also placeholders."""
    matches = [*_dates(text), *_ids(text), *_paths(text)]
    plain: list[tuple[re.Pattern[str], str]] = [
        (_COUNTERS, "volatile-counter"),
        (_HOSTS, "volatile-host"),
    ]
    if template:
        plain.append((_PLACEHOLDER, "volatile-placeholder"))
    for pattern, rule in plain:
        matches += [Hit(rule, "warning", *match.span()) for match in pattern.finditer(text)]
    matches += _hosts(text)
    done = 0
    for hit in sorted(matches, key=lambda hit: (hit.start, -hit.end)):
        if hit.start >= done:
            yield hit
            done = hit.end


def _before(text: str, match: re.Match[str]) -> str:
    return text[max(0, match.start() - _BEFORE) : match.start()]


def _dates(text: str) -> Iterator[Hit]:
    patterns: tuple[tuple[re.Pattern[str], str], ...] = (
        (_DATE_ALONE, "volatile-date"),
        (_CLOCK_ALONE, "volatile-clock"),
    )
    for pattern, rule in patterns:
        for match in pattern.finditer(text):
            before = _before(text, match)
            if _EXAMPLE.search(before) or _MEMBER.search(before):
                continue
            if _NOW.search(before):
                yield Hit(rule, "warning", *match.span())
            elif _LABEL.search(before):
                yield Hit(rule, "note", *match.span())


def _ids(text: str) -> Iterator[Hit]:
    for match in _UUIDS.finditer(text):
        before = _before(text, match)
        uuid = match.group().lower()
        if uuid in _KNOWN_UUIDS or len(set(uuid)) <= 3 or _EXAMPLE.search(before):
            continue
        yield Hit("volatile-uuid", "warning" if _THIS_RUN.search(before) else "note", *match.span())
    for match in _NONCES.finditer(text):
        before = _before(text, match)
        if _EXAMPLE.search(before) or _MEMBER.search(before):
            continue
        if _THIS_RUN.search(before) or "_" in match.group():
            yield Hit("volatile-nonce", "warning", *match.span())
        elif _SOME_ID.search(before):
            yield Hit("volatile-nonce", "note", *match.span())


def _paths(text: str) -> Iterator[Hit]:
    for match in _PATHS.finditer(text):
        before = _before(text, match)
        if not _EXAMPLE.search(before):
            yield Hit("volatile-path", "warning", *match.span())


def _hosts(text: str) -> Iterator[Hit]:
    for match in _HOST_ENDS.finditer(text):
        begin = _NAME_BEGIN.search(text, max(0, match.start() - 63), match.start())
        start = match.start() if begin is None else begin.start()
        if text[start].isalpha():
            yield Hit("volatile-host", "warning", start, match.end())


_DATE_ALONE = re.compile(rf"\b{_DATE}", re.IGNORECASE)
_CLOCK_ALONE = re.compile(rf"\b{_CLOCK}|\b1[6-9]\d{{8}}(?:\d{{3}})?\b", re.IGNORECASE)
_UUIDS = re.compile(_UUID, re.IGNORECASE)
_NONCES = re.compile(rf"{_HEX}(?!-[0-9a-f]{{4}}-)|{_TOKEN}")
_COUNTERS = re.compile(
    r"\b(?:this is|current|now on|you are on)\s{1,9}(?:the\s{1,9})?"
    r"(?:request|message|turn|call|attempt|iteration|run)\s{0,9}(?:#|no\.?|number)?\s{0,9}\d+\b"
    r"|\b(?:request|message|turn|call|attempt|iteration|run)[ _-](?:count|counter|number)"
    r"\s*[:=]\s*\d+\b"
    r"|\b\d[\d,]{0,19} (?:tokens|messages|requests|turns|credits) (?:remaining|left|used so far)\b"
    r"|\buptime\s*[:=]\s*\d+",
    re.IGNORECASE,
)
_PATHS = re.compile(
    r"(?:/(?:private/)?(?:var/)?tmp|/(?:private/)?var/folders)(?:/[\w.-]{1,99}){0,9}?/"
    rf"(?:tmp[a-z0-9_]{{6,}}|{_RANDOM})(?:/[\w.-]+)*"
    r"|\b[A-Z]:\\(?:[^\\\s\"]{1,99}\\){0,9}Temp\\[^\s\"\d]{0,199}\d[^\s\"]*"
    r"|/proc/\d+\b"
)
_HOSTS = re.compile(
    r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[\w.-]+)?"
    r"|\b(?:hostname|host name|machine name|node name|pod name)\s{0,9}(?:is|[:=])\s{0,9}"
    r"(?=[\w.-]{0,99}?\d)[A-Za-z][\w.-]{3,}",
    re.IGNORECASE,
)
#: Suffixes in the names of pods and of personal computers; the name begins with a letter.
_HOST_ENDS = re.compile(
    r"-[0-9a-f]{8,10}-[a-z0-9]{5}\b(?!-)"
    r"|(?:macbook|imac|desktop|laptop|workstation|thinkpad)[\w-]{0,63}\.(?:local|lan|home)\b",
    re.IGNORECASE,
)
_NAME_BEGIN = re.compile(r"[\w-]{0,63}\Z")
_WORDS = (
    r"(?:current_?|today_?|now_?|utc_?|local_?){0,9}(?:date|time|datetime|timestamp|today|now|uuid4?|nonce|"
    r"request_?id|session_?id|trace_?id|run_?id|random(?:_\w+)?)"
)
_PLACEHOLDER = re.compile(
    rf"\{{\{{-?\s*(?:\w+\.)*{_WORDS}(?:\([^)]{{0,99}}\))?\s*(?:\|[^}}]{{0,99}})?-?\}}\}}"
    rf"|(?<!\{{)\{{\s*(?:\w+\.)*{_WORDS}(?:\([^)]{{0,99}}\))?(?:[:!][^}}]{{0,99}})?\}}(?!\}})"
    rf"|\$\{{\s*(?:\w+\.)*{_WORDS}(?:\([^)]{{0,99}}\))?\s*\}}"
    rf"|<%=?\s*[\w.]{{0,99}}{_WORDS}[^%]*%>|\$\(date[^)]{{0,99}}\)|%(?:DATE|TIME)%",
    re.IGNORECASE,
)


class LocatedText:
    """A text with its lines, byte offsets and secrets, which are computed once for all findings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode(errors="replace")
        self._ascii = text.isascii()
        self._last = (0, 0)
        """The last place that was converted, in characters and in bytes."""
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._secrets = secrets_in(self.data)

    def byte(self, offset: int) -> int:
        """The byte of a character."""
        if self._ascii:
            return offset
        character, byte = self._last
        if offset < character:
            return byte - len(self.text[offset:character].encode(errors="replace"))
        byte += len(self.text[character:offset].encode(errors="replace"))
        self._last = offset, byte
        return byte

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Counted from 1."""
        line = bisect_left(self._line_ends, offset)
        return line + 1, offset - (self._line_ends[line - 1] if line else -1)

    def excerpt(self, start: int, end: int) -> str:
        """A part of the text with a little of the line around it."""
        begin = max(self.text.rfind("\n", max(0, start - _CONTEXT), start) + 1, start - _CONTEXT, 0)
        stop = self.text.find("\n", end, end + _CONTEXT)
        first = self.byte(begin)
        last = self.byte(min(len(self.text), end + _CONTEXT) if stop < 0 else stop)
        return redacted(self.data, first, last, self._secrets)
