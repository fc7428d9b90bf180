"""The price of an answered call, for the model and service tier named in the reply, which may
differ from the requested ones; and surcharges: fees of server tools, and price factors of fast mode
and data residency."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import msgspec

from anaphora import catalog
from anaphora.catalog import Price
from anaphora.catalog.api_limits import price_multiple, server_tool_of
from anaphora.client.in_flight import InFlight, service_tier
from anaphora.client.prices import (
    answering_model,
    audio_usd,
    iterations_usd,
    price_of_model,
    served_tier,
)
from anaphora.client.target import Target
from anaphora.rendered import Plan
from anaphora.values import Opaque, Reply
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.reading import DECODE_ERRORS

_ONE = Decimal(1)
_CHAT_SEARCH = "web_search_options"
#: The version of a tool at the end of its type.
_VERSION = re.compile(r"(_preview)?(_\d{4}_?\d{2}_?\d{2})?\Z")


class Surcharge(NamedTuple):
    """The cost of tokens times `factor`, plus `usd`."""

    factor: Decimal = _ONE
    usd: Decimal = Decimal(0)

    def applied(self, usd: Decimal) -> Decimal:
        return usd * self.factor + self.usd


NO_SURCHARGE = Surcharge()


def billed_rates(
    facts: CallFacts | None, flight: InFlight, reply: Reply | None
) -> tuple[Price | None, Surcharge | None]:
    """The price of a reply, of a part of it, or of the request; and the surcharge, None if
    unknown."""
    prepared = flight.prepared[flight.index]
    at, tier = flight.sent_at, service_tier(prepared)
    return rates_of(facts, flight.target, prepared.plan, reply, at=at, tier=tier)


def rates_of(
    facts: CallFacts | None,
    target: Target,
    plan: Plan,
    reply: Reply | None,
    *,
    at: float,
    tier: str,
) -> tuple[Price | None, Surcharge | None]:
    """The same. `tier` is the requested one, `at` the time of the request."""
    price = billed_price(facts, target, reply, at=at, tier=tier)
    if facts is None or reply is None or price is None:
        return price, NO_SURCHARGE
    surcharge, raw = surcharge_of(facts, target, reply), reply.usage.raw
    if surcharge is not None and facts.media.audio and raw is not None:
        more = audio_usd(raw, price, target.bounds.media.audio_factor)
        surcharge = Surcharge(surcharge.factor, surcharge.usd + surcharge.factor * more)
    if surcharge is not None and raw is not None and '"iterations"' in raw:
        more = iterations_usd(
            reply.usage,
            price,
            plan,
            lambda name: price if name == reply.model else price_of_model(target, name, at, tier),
        )
        surcharge = Surcharge(surcharge.factor, surcharge.usd + surcharge.factor * more)
    return price, surcharge


def surcharge_of(facts: CallFacts, target: Target, reply: Reply) -> Surcharge | None:
    """The surcharge of an answered request, by the server tool calls in the reply; None if
    unknown."""
    if not (facts.server_tools or facts.tiers or facts.geo):
        return NO_SURCHARGE
    factor = price_factor(facts, target.endpoint.system, served_speed(reply))
    if factor is None:
        return None
    if factor is _ONE and not facts.server_tools:
        return NO_SURCHARGE
    usd = Decimal(0)
    kinds = [part.kind for part in reply.message.parts if isinstance(part, Opaque)]
    for tool in facts.server_tools:
        row = server_tool_of(target.endpoint.system, tool.type, target.model)
        if row is None:
            return None
        name = _VERSION.sub("", tool.type)
        # Code execution has several kinds of results, such as `bash_code_execution_tool_result`.
        calls = sum(
            kind == f"{name}_call" or kind.endswith(f"{name}_tool_result") for kind in kinds
        )
        if tool.type == _CHAT_SEARCH:  # a reply of Chat does not list its searches
            calls = 1
        usd += row.usd_per_call * calls
        if calls or not tool.type.islower():  # Gemini's tools leave no part in a reply
            usd += row.usd_per_request
    return Surcharge(factor, usd) if usd or factor != 1 else NO_SURCHARGE


def price_factor(
    facts: CallFacts, provider: str, served_speed: str | None = None
) -> Decimal | None:
    """The factor of fast mode and data residency on the price of a request, in bill and bound; None
    if unknown. If a request allows several speeds and the reply does not name the served one, the
    most expensive counts."""
    if not facts.tiers and not facts.geo:
        return _ONE
    speeds = {value for param, value in facts.tiers if param.endswith("speed")}
    if speeds and served_speed is not None:
        speeds = {served_speed} - {"standard"}
    factors = [price_multiple(provider, "speed", value) for value in speeds]
    if facts.geo:
        geo = price_multiple(provider, "inference_geo", facts.geo)
    else:
        geo = _ONE
    if geo is None or None in factors:
        return None
    return geo * max((factor for factor in factors if factor is not None), default=_ONE)


# ── Prices ────────────────────────────────────────────────────────────────────────────────────────


class _ServedUsage(msgspec.Struct):
    speed: str | None = None


_decode_usage = msgspec.json.Decoder(_ServedUsage).decode


def billed_price(
    facts: CallFacts | None, target: Target, reply: Reply | None, *, at: float, tier: str
) -> Price | None:
    """`tier` is the requested one; its price counts if that of the reply's tier is unknown."""
    if reply is None or (not reply.extras and reply.model in ("", target.model)):
        return target.price(at, tier)
    served = served_tier(reply, tier)
    prices = _prices_of(facts, target, reply, at)
    found = prices(served)
    return prices(tier) if found is None and served != tier else found


def served_speed(reply: Reply) -> str | None:
    """The speed that Anthropic billed; None if not reported."""
    raw = reply.usage.raw
    if raw is None or '"speed"' not in raw:
        return None
    try:
        return _decode_usage(raw).speed
    except DECODE_ERRORS:
        return None


def booked_model(facts: CallFacts | None, target: Target, reply: Reply | None) -> str:
    """The model under which a call is booked: the one that answered, if it is known or named in the
    request. Its catalog name, as in the audit log."""
    if reply is None or reply.model in ("", target.model):
        return target.model
    model = catalog.answering_model(target.endpoint.system, target.model, reply.model)
    return reply.model if model == target.model and _is_named(facts, reply) else model


def _is_named(facts: CallFacts | None, reply: Reply) -> bool:
    """Whether the request also names the model that answered, besides the requested one."""
    return facts is not None and any(model == reply.model for _, model in facts.models[1:])


def _prices_of(
    facts: CallFacts | None, target: Target, reply: Reply, at: float
) -> Callable[[str], Price | None]:
    """Prices by tier. If a request names several models and it is unknown which answered, the most
    expensive counts."""
    model = reply.model if _is_named(facts, reply) else answering_model(target, reply.model)
    others = [] if facts is None else [model for _, model in facts.models[1:]]
    if model != target.model or not others or reply.model in ("", target.model):
        return lambda tier: price_of_model(target, model, at, tier)

    def find(tier: str) -> Price | None:
        found = target.endpoint.target(reply.model).price(at, tier)
        if found is not None:
            return found
        named = [target.price(at, tier)]
        named += [target.endpoint.target(model).price(at, tier) for model in others]
        known = [price for price in named if price is not None]
        return max(known, key=lambda price: price.output or 0, default=None)

    return find
