"""Markers that cache nothing."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS

from .costs import Costs
from .values import RULES, Finding, Severity, found

_FIX = RULES["wasted-marker"].fix


class Waste(msgspec.Struct, frozen=True):
    why: str
    severity: Severity = "warning"
    fix: str = _FIX
    written: bool = False
    """It costs a write that nobody reads."""


def lint_markers(
    rendered: Rendered, plan: Plan, costs: Costs, file: str, volatile: set[int]
) -> Iterator[Finding]:
    """`volatile` are the chunks in which something changes from call to call."""
    rules = costs.rules
    if rules is None:
        return
    counts = Counts(rendered)
    written = 0
    for index, mark in enumerate(plan.marks):
        before, written = written, counts.tokens(mark.chunk + 1)
        waste = _waste(rendered, plan, rules, index, written, volatile)
        if waste is None:
            continue
        run, at = rendered.locate(mark.chunk)
        nothing = Decimal(0)
        yield found(
            "wasted-marker",
            file=file,
            path=run.path(at),
            severity=waste.severity,
            why=waste.why,
            fix=waste.fix,
            cost_usd=costs.premium(written - before, counts.total, mark.ttl)
            if waste.written
            else nothing,
        )


def _waste(
    rendered: Rendered, plan: Plan, rules: CacheRules, index: int, tokens: int, volatile: set[int]
) -> Waste | None:
    """Why a marker is wasted; None when it is not."""
    mark = plan.marks[index]
    if not rules.slots.value:
        why = f"{rules.provider} takes no notice of markers for this model"
        return Waste(why, "note", "nothing: it caches by itself, or not at all")
    minimum = rules.minimum_tokens.value
    if tokens < minimum:
        return Waste(f"about {tokens:,} tokens stand before it; below {minimum:,} it is ignored")
    changing = [chunk for chunk in volatile if chunk <= mark.chunk]
    if changing:
        run, at = rendered.locate(min(changing))
        why = f"it stands behind what changes ({run.path(at)}): written each time, and never read"
        fix = "put one before what changes, and what changes behind the last marker"
        return Waste(why, "warning", fix, written=True)
    slots = rules.slots.value
    if plan.automatic is not None:
        slots -= rules.automatic_slots.value
    more = rules.reads_beyond_slots is not None and rules.reads_beyond_slots.value
    if index >= slots and not more:
        return Waste(f"only {slots} markers are allowed: the request is refused", "error")
    if rules.longer_ttl_first.value and _rises(plan.marks[: index + 1]):
        why = f"{mark.ttl} may not follow a shorter one: the request is refused"
        return Waste(why, "error", "let the longer one come first")
    return None


def _rises(marks: tuple[Mark, ...]) -> bool:
    """Whether the last lives longer than one before it."""
    lives = [TTL_SECONDS[mark.ttl] for mark in marks]
    return lives[-1] > min(lives)
