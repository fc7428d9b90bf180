"""A call as one provider is told it: rendered and planned, not sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.catalog import Price
from anaphora.catalog.prices import STANDARD_TIERS
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered
from anaphora.values import Notice, Usage

from .after import AfterAnswer
from .endpoint import Stop


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
    cost_usd: Decimal | None = None
    saved: Decimal | None = None


def cost_of(usage: Usage, price: Price | None, plan: Plan) -> Decimal | None:
    """What a call cost. Where a provider does not say for how long it wrote, the plan knows."""
    if price is None:
        return None
    unsplit = None
    if usage.written and "unsplit" in usage.written:
        ttls = {mark.ttl for mark in plan.marks}
        unsplit = ttls.pop() if len(ttls) == 1 else None
    return price.of(usage, unsplit=unsplit, marked=bool(plan.marks))


def cost(
    stop: Stop, written: Written, usage: Usage, at: float, after: AfterAnswer
) -> tuple[Price | None, Decimal | None]:
    """The price of a call that was answered, and what it cost. `after` gets a notice where either
    is unknown."""
    tier = tier_of(written)
    try:
        price = stop.endpoint.price(stop.model.name, at, tier)
        cost_usd = cost_of(usage, price, written.plan)
    except Exception as problem:
        after.failed("price_failed", problem)
        return None, None
    if cost_usd is None:
        after.add(cost_unknown(stop, tier, usage, price))
    return price, cost_usd


def tier_of(written: Written) -> str:
    """The service tier that was asked for; none where the wire had to leave it out."""
    for notice in written.rendered.notices:
        if notice.path == "params.service_tier":
            return ""
    return written.call.params.service_tier or ""


def cost_unknown(stop: Stop, tier: str, usage: Usage, price: Price | None) -> Notice:
    """Why the cost of a call is unknown, and what to do about it."""
    name = f"{stop.model.name} at {stop.endpoint.id}"
    if price is not None and (usage.uncached is None or usage.output is None):
        said = f"the cost is unknown: {name} did not report its tokens"
        return Notice("usage_unknown", said)
    advice = "set one under `prices` of the provider in llm.yaml"
    if tier not in STANDARD_TIERS:
        name += f" on the service tier {tier!r}"
        advice = "a newer release may have one"
    if price is None:
        said = f"no price is known for {name}: the cost is unknown; {advice}"
    else:
        said = f"the price of {name} lacks a rate that this call needs: the cost is unknown"
    return Notice("price_unknown", said)
