"""Several samples of one prompt: what differs between them is volatile, whatever it looks like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anaphora.cache.prefix import first_difference
from anaphora.cache.verdict.changes import change_at
from anaphora.cache.verdict.json_blocks import volatile_change
from anaphora.cache.verdict.values import Change
from anaphora.rendered import Rendered
from anaphora.tokens import Counts

from .costs import Costs
from .texts import PER_TOKEN, around, place, text_tokens
from .values import Finding, RuleId, found

_RULES: dict[str, RuleId] = {
    "date": "volatile-date",
    "clock": "volatile-clock",
    "uuid": "volatile-uuid",
    "nonce": "volatile-nonce",
    "counter": "volatile-counter",
    "order": "unordered-list",
    "key_order": "unordered-list",
    "tool_moved": "unordered-list",
    "block_moved": "unordered-list",
}


def lint_samples(
    samples: Sequence[tuple[str, Rendered]], costs: Costs | None = None
) -> Iterator[Finding]:
    """Each sample against the first: the first place of its tools and system prompt that differs,
    and a cache key that is another one."""
    costs = costs or Costs()
    (first_file, first), *others = samples
    stable = sum(run.count for run in first.runs if run.section != "messages")
    told: set[tuple[str, str]] = set()
    for file, other in others:
        offset = first_difference(first, other, stable)
        if offset is not None:
            change = change_at(first, other, offset)
            rule = _RULES.get(change.kind, "changes-between-samples")
            if (rule, change.path) not in told:
                told.add((rule, change.path))
                yield _changed(change, rule, first, first_file, file, costs)
        if _key(first) != _key(other) and ("key", "") not in told:
            told.add(("key", ""))
            yield found("cache-key-changes", file=file, path="$.prompt_cache_key")


def _changed(
    change: Change, rule: RuleId, first: Rendered, first_file: str, file: str, costs: Costs
) -> Finding:
    counts = Counts(first)
    behind = counts.total - counts.before(change.offset)
    named = f" ({change.detail})" if change.detail else ""
    return found(
        rule,
        severity="error",
        file=file,
        path=change.path,
        excerpt=f"{change.before} / {change.after}",
        why=f"it is not what it was in {first_file}{named}",
        tokens=behind,
        cost_usd=costs.per_thousand(behind, counts.total),
    )


def _key(rendered: Rendered) -> bytes | None:
    return dict(rendered.envelope.cache_params).get("cache_key")


def lint_text_samples(
    samples: Sequence[tuple[str, str]], costs: Costs | None = None, ratio: float = PER_TOKEN
) -> Iterator[Finding]:
    """The same for texts."""
    costs = costs or Costs()
    (first_file, first), *others = samples
    told: set[tuple[str, int]] = set()
    for file, other in others:
        if other == first:
            continue
        at = _parting(first, other)
        kind = volatile_change(first, other)
        if kind is None and sorted(first.splitlines()) == sorted(other.splitlines()):
            kind = "order"
        rule = _RULES.get(kind or "", "changes-between-samples")
        if (rule, at) in told:
            continue
        told.add((rule, at))
        behind = text_tokens(first[at:], ratio)
        line, column = place(other, min(at, len(other)))
        yield found(
            rule,
            severity="error",
            file=file,
            line=line,
            column=column,
            excerpt=f"{around(first, at, at + 1)} / {around(other, at, at + 1)}",
            why=f"it is not what it was in {first_file}",
            tokens=behind,
            cost_usd=costs.per_thousand(behind, text_tokens(first, ratio)),
        )


def _parting(one: str, two: str) -> int:
    at = 0
    for at, (mine, theirs) in enumerate(zip(one, two, strict=False)):
        if mine != theirs:
            return at
    return min(len(one), len(two))
