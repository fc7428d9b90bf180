"""The price that an answered call is billed at: of the model and the service tier that the reply
names, which may be others than the request asked for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

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


def billed_model(facts: RequestFacts | None, target: Target, reply: Reply | None) -> str:
    """The model that a call is charged to: the one that answered, where it is known or the request
    names it."""
    if reply is None or reply.model in ("", target.model):
        return target.model
    others = () if facts is None else [model for _, model in facts.models[1:]]
    return reply.model if reply.model in others else answering_model(target, reply.model)


def _prices_of(
    facts: RequestFacts | None, target: Target, reply: Reply, at: float
) -> Callable[[str], Price | None]:
    """Prices by tier. Where a request names several models, and none of them is known to have
    answered, the dearest counts."""
    model = billed_model(facts, target, reply)
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
