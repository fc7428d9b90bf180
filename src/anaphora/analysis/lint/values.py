"""What lint finds, and what it knows of each rule."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")

RuleId: TypeAlias = Literal[
    "volatile-date",
    "volatile-clock",
    "volatile-uuid",
    "volatile-nonce",
    "volatile-counter",
    "volatile-path",
    "volatile-host",
    "volatile-placeholder",
    "unordered-list",
    "changes-between-samples",
    "cache-key-changes",
    "too-short",
    "wasted-marker",
    "ignore-without-reason",
    "unused-ignore",
]


class Rule(msgspec.Struct, frozen=True):
    severity: Severity
    title: str
    why: str
    fix: str
    seldom: bool = False
    """What it names does not change at every call, so that its cost is the most it can be."""


_TAIL = "say it in the last message (the volatile tail), behind everything that stays the same"

RULES: dict[RuleId, Rule] = {
    "volatile-date": Rule(
        "warning",
        "a date in a stable block",
        "at midnight every cached prompt is rewritten",
        _TAIL,
        seldom=True,
    ),
    "volatile-clock": Rule(
        "warning",
        "a clock time in a stable block",
        "every call rewrites all that stands behind it",
        _TAIL,
    ),
    "volatile-uuid": Rule(
        "warning",
        "a UUID in a stable block",
        "what is new for every session or request is never read from a cache",
        f"leave it out, or {_TAIL}",
    ),
    "volatile-nonce": Rule(
        "warning",
        "an id or nonce in a stable block",
        "what is new for every request is never read from a cache",
        f"leave it out, or {_TAIL}",
    ),
    "volatile-counter": Rule(
        "warning",
        "a running number in a stable block",
        "every call rewrites all that stands behind it",
        _TAIL,
    ),
    "volatile-path": Rule(
        "warning",
        "a temporary path in a stable block",
        "the next run has another one",
        f"name a fixed place, or {_TAIL}",
        seldom=True,
    ),
    "volatile-host": Rule(
        "warning",
        "a host name in a stable block",
        "every machine writes a cache of its own",
        f"leave it out, or {_TAIL}",
        seldom=True,
    ),
    "volatile-placeholder": Rule(
        "warning",
        "a placeholder for something that changes",
        "whatever fills it in rewrites all that stands behind it",
        f"move the placeholder: {_TAIL}",
    ),
    "unordered-list": Rule(
        "error",
        "the same items in another order",
        "a cache compares bytes, and the order of a set or map is not one of them",
        "sort the items before they become text",
    ),
    "changes-between-samples": Rule(
        "error",
        "a block that should be stable is not",
        "all that stands behind it is rewritten",
        _TAIL,
    ),
    "cache-key-changes": Rule(
        "error",
        "a cache key that is new at every call",
        "requests with different keys do not share a cache",
        "use one key for each conversation, or for all that begins alike",
    ),
    "too-short": Rule(
        "note",
        "too short to be cached",
        "providers cache nothing below their minimum, and do not say so",
        "nothing, unless more that stays the same can go in front",
    ),
    "wasted-marker": Rule(
        "warning",
        "a marker that caches nothing",
        "it takes one of few slots, and may cost a write that nobody reads",
        "take it away, or put it at the end of what stays the same",
    ),
    "ignore-without-reason": Rule(
        "error",
        "a suppression without a reason",
        "nobody will know later whether it still holds",
        "say why: `anaphora: ignore[rule] reason`",
    ),
    "unused-ignore": Rule(
        "note",
        "a suppression that suppresses nothing",
        "what it was for is gone",
        "take it away",
    ),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One place, and what it costs."""

    rule: RuleId
    severity: Severity
    file: str = ""
    path: str = ""
    """The JSON path in a request; empty in a text."""
    line: int | None = None
    column: int | None = None
    """Where in a text, counted from 1."""
    excerpt: str = ""
    why: str
    fix: str
    tokens: int | None = None
    """What stands behind it, and is paid for again."""
    cost_usd: Decimal | None = None
    """That, for 1,000 calls; None where nobody knows the price."""
    suppressed: str | None = None
    """The reason why it is left alone,"""
    suppressed_in: Literal["inSource", "external"] | None = None
    """and whether that is said in the prompt itself, or in the configuration."""


def found(rule: RuleId, **known: object) -> Finding:
    """A finding with what its rule says of it, unless it is told otherwise."""
    row = RULES[rule]
    told: dict[str, object] = {"severity": row.severity, "why": row.why, "fix": row.fix, **known}
    return Finding(rule=rule, **told)  # type: ignore[arg-type]


def at_least(finding: Finding, threshold: Severity) -> bool:
    return SEVERITIES.index(finding.severity) >= SEVERITIES.index(threshold)
