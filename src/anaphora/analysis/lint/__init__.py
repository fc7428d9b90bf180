"""Find what will break a cached prefix, before it does.

    lint_text(text, "system.md")                 volatile content of a prompt or template
    lint_request(rendered, "call.json", costs)   the same in a request's tools and system prompt,
                                                 and markers that cache nothing
    lint_samples([("a", one), ("b", two)])       differences between samples

These are in `checks`. Here are the rules and their findings: what they cost, which are suppressed
and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, localcontext
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.catalog import CacheRules, Price
from anaphora.values import Ttl

Severity: TypeAlias = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")


class LintRule(msgspec.Struct, frozen=True):
    severity: Severity
    title: str
    why: str
    fix: str
    seldom: bool = False
    """It does not change at every call, so its cost is an upper bound."""


_MOVE = "move it to the last message (the volatile tail), behind everything stable"
_LEAVE_OUT = f"leave it out, or {_MOVE}"
_REWRITES = "every call rewrites everything after it"

RULES: dict[str, LintRule] = {
    "volatile-date": LintRule(
        "warning",
        "a date in a stable block",
        "at midnight every cached prompt is rewritten",
        _MOVE,
        seldom=True,
    ),
    "volatile-clock": LintRule("warning", "a clock time in a stable block", _REWRITES, _MOVE),
    "volatile-uuid": LintRule(
        "warning",
        "a UUID in a stable block",
        "content that is new for every session or request is never read from a cache",
        _LEAVE_OUT,
    ),
    "volatile-nonce": LintRule(
        "warning",
        "an id or nonce in a stable block",
        "content that is new for every request is never read from a cache",
        _LEAVE_OUT,
    ),
    "volatile-counter": LintRule("warning", "a counter in a stable block", _REWRITES, _MOVE),
    "volatile-path": LintRule(
        "warning",
        "a temporary path in a stable block",
        "the next run has another one",
        f"use a fixed path, or {_MOVE}",
        seldom=True,
    ),
    "volatile-host": LintRule(
        "warning",
        "a host name in a stable block",
        "every machine writes its own cache",
        _LEAVE_OUT,
        seldom=True,
    ),
    "volatile-placeholder": LintRule(
        "warning",
        "a placeholder for a volatile value",
        "its value rewrites everything after it",
        f"move the placeholder: {_MOVE}",
    ),
    "unordered-list": LintRule(
        "error",
        "the same items in another order",
        "a cache compares bytes, and the order of a set or map varies",
        "sort the items before they become text",
    ),
    "changes-between-samples": LintRule(
        "error", "a block that should be stable changes", "everything after it is rewritten", _MOVE
    ),
    "cache-key-changes": LintRule(
        "error",
        "a cache key that is new at every call",
        "requests with different keys do not share a cache",
        "use one key for each conversation, or for all prompts with the same beginning",
    ),
    "too-short": LintRule(
        "note",
        "too short to be cached",
        "providers silently cache nothing below their minimum",
        "nothing, unless more stable content can go in front",
    ),
    "wasted-marker": LintRule(
        "warning",
        "a marker that caches nothing",
        "it takes one of few slots, and may cost a write that is never read",
        "remove it, or put it at the end of the stable part",
    ),
    "ignore-without-reason": LintRule(
        "error",
        "a suppression without a reason",
        "without one, it is unclear later whether it is still needed",
        "give one: `anaphora: ignore[rule] reason`",
    ),
    "unused-ignore": LintRule(
        "note", "a suppression that suppresses nothing", "its finding is gone", "remove it"
    ),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    """A key of `RULES`."""
    severity: Severity
    file: str = ""
    path: str = ""
    """The JSON path in a request; empty in a text."""
    line: int | None = None
    column: int | None = None
    """The place in a text, counted from 1."""
    excerpt: str = ""
    why: str
    fix: str
    tokens: int | None = None
    """The tokens after it, which are billed again."""
    cost_usd: Decimal | None = None
    """Their cost for 1,000 calls; None if the price is unknown."""
    suppressed: str | None = None
    """The reason that the text gives for its suppression."""


def finding_of(rule: str, **fields: object) -> Finding:
    """A finding with the texts of its rule, unless they are given."""
    row = RULES[rule]
    defaults: dict[str, object] = {"severity": row.severity, "why": row.why, "fix": row.fix}
    return Finding(rule=rule, **(defaults | fields))  # type: ignore[arg-type]


def counts(finding: Finding) -> bool:
    """Whether it is a warning or an error that nothing suppresses."""
    return finding.suppressed is None and finding.severity != "note"


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Prices and rules of the model; None if unknown."""

    rules: CacheRules | None = None
    price: Price | None = None
    marked: bool = False
    """The prompt has markers, so tokens that are not read are written."""

    @property
    def minimum(self) -> int:
        return 0 if self.rules is None else self.rules.minimum_tokens.value

    def per_thousand(self, tokens: int, total: int) -> Decimal | None:
        """The cost of not reading these tokens, in 1,000 calls of that length."""
        if self.price is None or self.rules is None:
            return None
        rates = self.price.at(total)
        paid, default = rates.input, self.rules.default_ttl
        if self.marked and self.rules.slots.value and default is not None:
            paid = rates.writing(default.value)
        return _per_thousand(tokens, paid, rates.read)

    def premium(self, tokens: int, total: int, ttl: Ttl) -> Decimal | None:
        """The extra cost of writing these tokens in 1,000 calls if they are never read."""
        if self.price is None:
            return None
        rates = self.price.at(total)
        return _per_thousand(tokens, rates.writing(ttl), rates.input)


def _per_thousand(tokens: int, paid: Decimal | None, instead: Decimal | None) -> Decimal | None:
    """From rates per million tokens."""
    if paid is None or instead is None:
        return None
    with localcontext(prec=60):
        return (tokens * 1000 * (paid - instead)).scaleb(-6)


_INLINE = re.compile(r"anaphora:\s*ignore\[([\w*,\s-]+)\][ \t]*([^\n]*)")
_COMMENT_END = re.compile(r"(?:-->|\*/|#\}|%>)$")


class InlineIgnore(msgspec.Struct, frozen=True):
    """A suppression in a text: for its own line and the next."""

    line: int
    rules: tuple[str, ...]
    reason: str

    def covers(self, finding: Finding) -> bool:
        return any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def _inline_ignores(text: str) -> list[InlineIgnore]:
    ignores: list[InlineIgnore] = []
    line, last = 1, 0
    for match in _INLINE.finditer(text):
        line, last = line + text.count("\n", last, match.start()), match.start()
        rules = tuple(name.strip() for name in match.group(1).split(",") if name.strip())
        reason = _COMMENT_END.sub("", match.group(2).rstrip()).strip(" :-–—")
        ignores.append(InlineIgnore(line, rules, reason))
    return ignores


def suppressed(findings: Iterable[Finding], file: str, text: str) -> Iterator[Finding]:
    """The findings of a file, suppressed ones with their reason. A suppression without a reason
    suppresses nothing and is a finding itself; an unused one is a note."""
    inline = _inline_ignores(text)
    by_line: dict[int, list[int]] = {}
    for index, one in enumerate(inline):
        for line in (one.line, one.line + 1):
            by_line.setdefault(line, []).append(index)
    used: set[int] = set()
    for finding in findings:
        reason = None
        for index in by_line.get(finding.line or 0, ()):
            one = inline[index]
            if one.reason and one.covers(finding):
                used.add(index)
                reason = one.reason
        yield replace(finding, suppressed=reason)
    for index, one in enumerate(inline):
        if not one.reason:
            yield finding_of("ignore-without-reason", file=file, line=one.line, column=1)
        elif index not in used:
            yield finding_of("unused-ignore", file=file, line=one.line, column=1)
        for rule in one.rules:
            if "*" not in rule and rule not in RULES:
                why = f"there is no rule {rule!r}"
                yield finding_of("unused-ignore", file=file, line=one.line, column=1, why=why)
