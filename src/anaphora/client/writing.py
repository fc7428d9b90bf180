"""A call as one provider is told it: rendered and planned, not sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.catalog import Price
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered
from anaphora.values import Usage


class Written(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    call: Call
    rendered: Rendered
    plan: Plan
    at: float


class Account(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What became of a call."""

    verdict: Verdict | None = None
    predicted: int | None = None
    """Tokens to be read, by the rules and what was billed before."""
    dollars: Decimal | None = None
    saved: Decimal | None = None


def dollars_of(usage: Usage, price: Price | None, plan: Plan) -> Decimal | None:
    """What a call cost. Where a provider does not say for how long it wrote, the plan knows."""
    if price is None:
        return None
    unsplit = None
    if usage.written and "unsplit" in usage.written:
        ttls = {mark.ttl for mark in plan.marks}
        unsplit = ttls.pop() if len(ttls) == 1 else None
    return price.of(usage, unsplit=unsplit, marked=bool(plan.marks))
