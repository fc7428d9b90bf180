"""The rules of lint, its findings, and what they cost."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Literal, TypeAlias

import msgspec

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
    """It does not change at every call, so that its cost is an upper bound."""


_MOVE = "move it to the last message (the volatile tail), behind everything stable"
_LEAVE_OUT = f"leave it out, or {_MOVE}"
_REWRITES = "every call rewrites everything behind it"

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
        "what is new for every session or request is never read from a cache",
        _LEAVE_OUT,
    ),
    "volatile-nonce": LintRule(
        "warning",
        "an id or nonce in a stable block",
        "what is new for every request is never read from a cache",
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
        "its value rewrites everything behind it",
        f"move the placeholder: {_MOVE}",
    ),
    "unordered-list": LintRule(
        "error",
        "the same items in another order",
        "a cache compares bytes, and the order of a set or map varies",
        "sort the items before they become text",
    ),
    "changes-between-samples": LintRule(
        "error", "a block that should be stable changes", "everything behind it is rewritten", _MOVE
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
        "later it is unclear whether it still holds",
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
    """The tokens behind it, which are paid again."""
    cost_usd: Decimal | None = None
    """Their cost for 1,000 calls; None where the price is unknown."""
    suppressed: str | None = None
    suppressed_in: Literal["inSource", "external"] | None = None
    """Whether it is suppressed in the prompt itself, or in the configuration."""


def finding_of(rule: str, **fields: object) -> Finding:
    """A finding with the texts of its rule, unless they are given."""
    row = RULES[rule]
    defaults: dict[str, object] = {"severity": row.severity, "why": row.why, "fix": row.fix}
    return Finding(rule=rule, **(defaults | fields))  # type: ignore[arg-type]


def at_least(finding: Finding, threshold: Severity) -> bool:
    return SEVERITIES.index(finding.severity) >= SEVERITIES.index(threshold)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Prices and rules of the model; None where unknown."""

    rules: CacheRules | None = None
    price: Price | None = None
    marked: bool = False
    """The prompt has markers, so what is not read is written."""

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
        """The extra cost of writing these tokens in 1,000 calls, where they are never read."""
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
