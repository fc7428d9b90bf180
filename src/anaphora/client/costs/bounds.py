"""The maximum cost of a call, from its bytes and the catalog. It is held before the call is sent.

    bound = cost_bound(facts, rendered, target, at=now, stored_tokens=None)
    bound.nano_usd                      None without a bound; `reason` says why

Text has at most as many tokens as UTF-8 bytes. Media and server tools count by the catalog's
maxima, stored history by its last billed size, output by its limit. The price is the highest that
the request can incur. No tokenizer is used, and the provider is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

import msgspec

from anaphora.catalog import Price
from anaphora.catalog.api_limits import ModelBounds, server_tool_of
from anaphora.catalog.price_data import PRICE_SLOT
from anaphora.catalog.prices import EXACT, Rates
from anaphora.client.target import Target, find_price
from anaphora.rendered import Plan, Rendered
from anaphora.values import Ttl
from anaphora.wire import features
from anaphora.wire.dialect.addresses import from_path
from anaphora.wire.permissions.content import read_content
from anaphora.wire.permissions.facts import CallFacts, ServerTool
from anaphora.wire.permissions.fields import read_facts
from anaphora.wire.reading import decode_members

from . import LARGEST_AMOUNT, NANO
from .billed_prices import price_factor

_MILLION = 1_000_000
_FREE = Decimal(0)
#: Handles of history that is billed as input.
HISTORY_KINDS = frozenset({"response", "item", "conversation", "cached_content"})


class CostBound(msgspec.Struct, frozen=True):
    """The maximum cost of a call."""

    nano_usd: int | None
    """None: unknown."""
    input_tokens: int
    output_tokens: int
    reason: str = ""
    """Why the cost has no bound."""


class _NoBound(Exception):
    """The message is the reason."""


class _ToolCosts(NamedTuple):
    """Additional cost of server tools."""

    tokens: int = 0
    passes: int = 1
    """How often the model reads the prompt."""
    usd: Decimal = Decimal(0)


_NO_TOOLS = _ToolCosts()


def cost_bound(
    facts: CallFacts,
    rendered: Rendered,
    target: Target,
    *,
    at: float,
    stored_tokens: int | None = None,
    ttls: Collection[Ttl] | None = None,
) -> CostBound:
    """The bound of one attempt.

    `facts` and `rendered` describe the request sent to the target. `stored_tokens` is the last
    billed size of the history behind the request's handles. `ttls` are the TTLs of its possible
    cache writes; None: all that the model has.
    """
    input_tokens, output_tokens = 0, 0
    try:
        if facts.stored_prompt:
            raise _NoBound("a stored prompt hides its model and size")
        if facts.unbounded:
            raise _NoBound(f"the cost of {facts.unbounded[0]} cannot be foreseen")
        most = target.bounds
        input_tokens = _prompt_tokens(facts, rendered, target, most)
        output_tokens = _output_tokens(facts, target, most)
        if facts.handles or stored_tokens is not None:
            input_tokens += _stored(facts, stored_tokens)
        tools = _server_tools(facts, target, most)
        input_tokens += tools.tokens
        if tools.passes > 1:
            input_tokens = tools.passes * max(input_tokens, _context(target))
            output_tokens *= tools.passes
        attempts = 1
        for param, _ in facts.models:
            attempts += param.startswith("fallbacks")
        input_tokens, output_tokens = attempts * input_tokens, attempts * output_tokens
        rate_in, rate_out = _dearest(facts, target, at, input_tokens, ttls)
    except _NoBound as problem:
        return CostBound(None, input_tokens, output_tokens, str(problem))
    usd = (input_tokens * rate_in + output_tokens * rate_out) / _MILLION
    amount = nano_usd(usd + tools.usd)
    if amount > LARGEST_AMOUNT:
        return CostBound(None, input_tokens, output_tokens, "the cost exceeds every limit")
    return CostBound(amount, input_tokens, output_tokens)


def request_facts(
    target: Target, path: str, body: bytes, headers: Iterable[tuple[str, str]] = ()
) -> CallFacts:
    """The facts of a request as sent to a target."""
    endpoint, members = target.endpoint, decode_members(body)
    if (dialect := endpoint.resolved.dialect) is not None:
        members = from_path(members, dialect, path)
    content = read_content(endpoint.base_wire, endpoint.wire.parse(body, path))
    return read_facts(endpoint.wire_name, members, content, path, headers)


def written_ttls(facts: CallFacts, plan: Plan, target: Target) -> set[Ttl] | None:
    """The TTLs of possible cache writes; None: any."""
    if target.rules.mechanism.value != "explicit":
        return None
    ttls: set[Ttl] = set(facts.cache_ttls)
    for mark in plan.marks:
        ttls.add(mark.ttl)
    if plan.automatic is not None:
        ttls.add(plan.automatic)
    return ttls


def storage_bound(price: Price, tokens: int, seconds: float) -> int | None:
    """Nano-dollars for storing tokens in a cache billed by the hour; None if the price is
    unknown."""
    if price.storage is None:
        return None
    hours = Decimal(repr(seconds)) / 3600
    return nano_usd(price.storage * tokens * hours / _MILLION)


def nano_usd(usd: Decimal) -> int:
    """Dollars as whole nano-dollars, rounded up."""
    return int((usd * NANO).to_integral_value(ROUND_CEILING, context=EXACT))


# ── Tokens ────────────────────────────────────────────────────────────────────────────────────────


def _prompt_tokens(facts: CallFacts, rendered: Rendered, target: Target, most: ModelBounds) -> int:
    """Text by its bytes with its overhead, and media."""
    media, overhead = facts.media, most.overhead
    text = max(facts.size, rendered.size)
    tokens = max(0, text - media.inline) + overhead.request + overhead.block * len(rendered)
    count = len(facts.tools) + len(facts.server_tools) + len(facts.remote_mcp)
    if count:
        tokens += overhead.tools + overhead.tool * count
    if media.audio:
        factor, window = most.media.audio_factor, target.profile.context_tokens
        if factor is None or window is None:
            raise _NoBound("audio has its own prices, which are unknown")
        # A sound has at most one token per byte; a video, or a stored file, fills the window.
        all_sounds = media.sounds == media.audio
        audio = min(media.sound_bytes, window.value) if all_sounds else window.value
        tokens += math.ceil(audio * factor)
    if media.images or media.documents:
        tokens += media.images * most.media.image
        documents = media.documents * most.media.document
        window = target.profile.context_tokens
        tokens += documents if window is None else min(documents, window.value)
    return tokens


def _stored(facts: CallFacts, stored_tokens: int | None) -> int:
    if stored_tokens is not None:
        return stored_tokens
    for param, kind, _ in facts.handles:
        if kind in HISTORY_KINDS:
            reason = f"the size of the stored {kind.replace('_', ' ')} in {param} is unknown"
            if kind in ("response", "item"):
                reason += " until it is fetched, complete"
            raise _NoBound(reason)
    return 0


def _output_tokens(facts: CallFacts, target: Target, most: ModelBounds) -> int:
    if most.answers_with_media:
        raise _NoBound(f"{target.model} may answer with images or sounds of unknown prices")
    limit = facts.max_tokens
    if limit is None:
        known = target.profile.output_tokens
        if known is None:
            raise _NoBound(f"the output has no limit: set {facts.max_tokens_field}")
        limit = known.value
    return (limit + (facts.thinking_budget or most.thinking) + facts.predicted) * facts.n


def _context(target: Target) -> int:
    window = target.profile.context_tokens
    if window is None:
        raise _NoBound(f"the context window of {target.model} is unknown, and server tools fill it")
    return window.value


# ── Server tools ──────────────────────────────────────────────────────────────────────────────────


def _server_tools(facts: CallFacts, target: Target, most: ModelBounds) -> _ToolCosts:
    if most.calls_own_tools:
        raise _NoBound(f"{target.model} calls tools of its host, without a limit")
    tools = facts.server_tools
    if not tools and not facts.remote_mcp:
        return _NO_TOOLS
    if facts.remote_mcp:
        tools += (ServerTool(param=facts.remote_mcp[0], type="mcp"),)
    tokens, passes, usd = 0, 1, Decimal(0)
    for tool in tools:
        row = server_tool_of(target.endpoint.system, tool.type, target.model)
        if row is None:
            raise _NoBound(f"the cost of the server tool {tool.type!r} is unknown")
        tokens += row.tokens
        usd += row.usd_per_request
        if not row.loops and not row.usd_per_call:
            continue
        limits = [limit for limit in (tool.max_calls, facts.max_tool_calls) if limit is not None]
        calls = min(limits, default=row.most_calls)
        if calls is None:
            name = features(facts.wire).tool_limit_field
            raise _NoBound(f"the calls of the server tool {tool.type!r} have no limit: set {name}")
        usd += row.usd_per_call * calls
        if row.loops:
            passes += calls
    return _ToolCosts(tokens, passes, usd)


# ── Prices ────────────────────────────────────────────────────────────────────────────────────────


def _dearest(
    facts: CallFacts,
    target: Target,
    at: float,
    input_tokens: int,
    ttls: Collection[Ttl] | None,
) -> tuple[Decimal, Decimal]:
    """Dollars per million tokens of input and output: the highest of all models, prompt lengths and
    cache writes that the request may be billed for."""
    factor = price_factor(facts, target.endpoint.system)
    if factor is None:
        fields = ", ".join(f"{param} {value}" for param, value in facts.tiers)
        raise _NoBound(f"no price is known for {fields or facts.geo}")
    rate_in = rate_out = _FREE
    for price in _prices(facts, target, at):
        levels: list[Rates] = [price]
        if price.tiers:
            levels += [tier for tier in price.tiers if tier.above < input_tokens]
        for rates in levels:
            if rates.input is None or rates.output is None:
                raise _NoBound(f"the price of {price.model} lacks a rate")
            rate_in = max(rate_in, rates.input, rates.read or rate_in)
            for ttl, rate in rates.write.items():
                if ttls is None or ttl in ttls:
                    rate_in = max(rate_in, rate)
            rate_out = max(rate_out, rates.output)
    if factor == 1:
        return rate_in, rate_out
    return rate_in * factor, rate_out * factor


def _prices(facts: CallFacts, target: Target, at: float) -> list[Price]:
    """Current and upcoming prices of the target's model, and of others that may answer."""
    tier = facts.service_tier
    now, soon = target.price(at, tier), target.price(at + PRICE_SLOT, tier)
    if now is None or soon is None:
        raise _NoBound(_unpriced(target.model, target, tier))
    prices = [now] if soon is now else [now, soon]
    for _, model in facts.models[1:]:
        if model == target.model:
            continue
        other = find_price(msgspec.structs.replace(target, model=model), at, tier)
        if other is None:
            raise _NoBound(_unpriced(model, target, tier))
        prices.append(other)
    return prices


def _unpriced(model: str, target: Target, tier: str) -> str:
    on_tier = f" on the service tier {tier!r}" if tier else ""
    return f"no price is known for {model} at {target.endpoint.id}{on_tier}"
