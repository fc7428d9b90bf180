"""The price of a model, why a cost is unknown, and what it costs to move a conversation."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import msgspec

from anaphora import catalog
from anaphora.catalog import Price
from anaphora.catalog.prices import cost_of
from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.rendered import Plan
from anaphora.values import Notice, Reply, Ttl, Usage
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wording import counted, format_usd

from .target import Target, find_price


def answering_model(target: Target, answered: str) -> str:
    """The model that a call is billed for: that of the target, or the one that answered."""
    if not answered or answered == target.model:
        return target.model
    model = catalog.answering_model(target.endpoint.system, target.model, answered)
    # A name that only the app knows, with a price for it: a deployment, for example.
    own = not target.profile.known and target.model in target.endpoint.config.prices
    return target.model if own else model


def price_of_model(
    target: Target, model: str, at: float, tier: str, *, batch: bool = False
) -> Price | None:
    """The price of a model that answered at a target; of the requested one, if the
    other has none."""
    found = None
    if model != target.model:
        rules = catalog.rules(target.endpoint.system, model, target.endpoint.base_wire)
        other = msgspec.structs.replace(target, model=model, rules=rules)
        found = find_price(other, at, tier, batch=batch)
    return target.price(at, tier, batch=batch) if found is None else found


class _ServedReply(msgspec.Struct):
    service_tier: str | None = None


_decode_reply = msgspec.json.Decoder(_ServedReply).decode


def served_tier(reply: Reply, asked: str) -> str:
    """The service tier that a reply names, else the requested one."""
    for text in (reply.extras or {}).values():
        if '"service_tier"' not in text:
            continue
        try:
            tier = (_decode_reply(text).service_tier or "").lower()
        except DECODE_ERRORS:
            continue
        if tier and not (tier in STANDARD_TIERS and asked in STANDARD_TIERS):
            return tier
    return asked


class _Iteration(msgspec.Struct):
    model: str | None = None


class _Iterations(msgspec.Struct):
    iterations: list[msgspec.Raw] | None = None


_decode_iteration = msgspec.json.Decoder(_Iteration).decode
_decode_iterations = msgspec.json.Decoder(_Iterations).decode


def iterations_usd(
    usage: Usage, price: Price | None, plan: Plan, price_of: Callable[[str], Price | None]
) -> Decimal:
    """The cost that Anthropic bills beyond the usage of a whole reply: compaction, advisors, and
    attempts of models that declined, which the reply lists as iterations. `price_of` gives a
    model's price."""
    from anaphora.wire.anthropic.reply import read_usage

    whole = cost_of(usage, price, plan)
    if whole is None or usage.raw is None or '"iterations"' not in usage.raw:
        return Decimal(0)
    total = Decimal(0)
    try:
        for raw in _decode_iterations(usage.raw).iterations or ():
            model = _decode_iteration(raw).model
            own = price if model is None else price_of(model) or price
            total += cost_of(read_usage(bytes(raw)), own, plan) or 0
    except DECODE_ERRORS:
        return Decimal(0)
    return max(Decimal(0), total - whole)


def cost_unknown(target: Target, tier: str, usage: Usage, price: Price | None) -> Notice:
    """Why the cost of a call is unknown, and what to do about it."""
    name = f"{target.model} at {target.endpoint.id}"
    if price is not None and (usage.uncached is None or usage.output is None):
        return Notice("usage_unknown", f"the cost is unknown: {name} did not report its tokens")
    advice = "set one under `prices` of the provider in llm.yaml"
    if tier not in STANDARD_TIERS:
        name += f" on the service tier {tier!r}"
        advice = "a newer release may have one"
    if price is None:
        message = f"no price is known for {name}: the cost is unknown; {advice}"
    else:
        message = f"the price of {name} lacks a rate that this call needs: the cost is unknown"
    return Notice("price_unknown", message)


def price_of_moving(
    tokens_cached: int, from_price: Price | None, to_price: Price | None, *, ttl: Ttl | None = None
) -> Decimal | None:
    """The extra dollars that a conversation pays for its prefix because it moved: written at the
    new provider (or plain input, if writes have no price) instead of read at the old one. Negative
    if the new one is cheaper; None if a price is unknown.

    `ttl` is that of the writes; without it, the cheapest is used.
    """
    if from_price is None or to_price is None:
        return None
    there = to_price.at(tokens_cached)
    read = from_price.at(tokens_cached).read
    again = there.writing(ttl) if ttl is not None else min(there.write.values(), default=None)
    if again is None:
        again = there.input
    if read is None or again is None:
        return None
    return (tokens_cached * (again - read)).scaleb(-6)


def moving_message(left: str, reached: str, tokens_cached: int, cost_usd: Decimal | None) -> str:
    """The cost of moving as a sentence."""
    tokens = counted(tokens_cached, "token")
    message = f"moving from {left} to {reached} pays {tokens} of prefix again"
    if cost_usd is None:
        return f"{message}: dollars unknown"
    if cost_usd < 0:
        return f"{message}, and {format_usd(-cost_usd)} less for them"
    return f"{message}: {format_usd(cost_usd)}"


class _Modality(msgspec.Struct):
    modality: str = ""
    tokenCount: int = 0


class _Modalities(msgspec.Struct):
    promptTokensDetails: list[_Modality] = []
    cacheTokensDetails: list[_Modality] = []


def audio_usd(raw: str, price: Price, factor: Decimal | None) -> Decimal:
    """What audio tokens cost above the price of text, by Gemini's counts."""
    rates = price.at(0)
    if factor in (None, 1) or rates.input is None:
        return Decimal(0)
    try:
        counts = msgspec.json.decode(raw, type=_Modalities)
    except DECODE_ERRORS:
        return Decimal(0)
    audio, cached = (
        sum(each.tokenCount for each in details if each.modality == "AUDIO")
        for details in (counts.promptTokensDetails, counts.cacheTokensDetails)
    )
    read = rates.input if rates.read is None else rates.read
    return ((audio - cached) * rates.input + cached * read).scaleb(-6) * (factor - 1)
