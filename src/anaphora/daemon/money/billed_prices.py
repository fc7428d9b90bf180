"""The price that an answered call is billed at: of the model and the service tier that the reply
names, which may be others than the request asked for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora import catalog
from anaphora.catalog import Price
from anaphora.client.prices import answering_model, price_of_model, served_tier
from anaphora.client.target import Target
from anaphora.daemon.facts.request import RequestFacts
from anaphora.values import Reply
from anaphora.wire.reading import DECODE_ERRORS


class _ServedUsage(msgspec.Struct):
    speed: str | None = None


_decode_usage = msgspec.json.Decoder(_ServedUsage).decode


def billed_price(
    facts: RequestFacts | None, target: Target, reply: Reply | None, *, at: float, tier: str
) -> Price | None:
    """`tier` is the one that was asked for; its price counts where that of the reply's is not
    known."""
    if reply is None:
        return target.price(at, tier)
    served = served_tier(reply, tier)
    prices = _prices_of(facts, target, reply, at)
    found = prices(served)
    return prices(tier) if found is None and served != tier else found


def served_speed(reply: Reply) -> str | None:
    """The speed that Anthropic billed; None where it does not say."""
    raw = reply.usage.raw
    if raw is None or '"speed"' not in raw:
        return None
    try:
        return _decode_usage(raw).speed
    except DECODE_ERRORS:
        return None


def booked_model(facts: RequestFacts | None, target: Target, reply: Reply | None) -> str:
    """The model that a call is booked under: the one that answered, where it is known or the
    request names it. By its name in the catalog, as in the audit log, whatever its price is."""
    if reply is None:
        return target.model
    model = catalog.answering_model(target.endpoint.system, target.model, reply.model)
    return reply.model if model == target.model and _is_named(facts, reply) else model


def _is_named(facts: RequestFacts | None, reply: Reply) -> bool:
    """Whether the request names the model that answered beside the one that it asks for."""
    return facts is not None and any(model == reply.model for _, model in facts.models[1:])


def _prices_of(
    facts: RequestFacts | None, target: Target, reply: Reply, at: float
) -> Callable[[str], Price | None]:
    """Prices by tier. Where a request names several models, and none of them is known to have
    answered, the dearest counts."""
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
