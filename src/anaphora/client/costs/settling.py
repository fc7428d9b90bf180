"""The cost of an attempt in whole nano-dollars, from its bill, or estimated without one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

import msgspec
from msgspec.structs import replace

from anaphora.catalog import Price, Profile
from anaphora.catalog.api_limits import fastest_tokens, stops_when_cut
from anaphora.catalog.prices import cost_of
from anaphora.client.observe.export import known_block_label
from anaphora.client.response import BlockShare
from anaphora.client.target import Target
from anaphora.errors import AnaphoraError, Timeout, Transport, Upstream
from anaphora.rendered import Plan
from anaphora.values import Opaque, Reply, Text, Thinking, ToolCall, Usage
from anaphora.wire import features
from anaphora.wire.permissions.facts import CallFacts

from . import NANO, Settled
from .billed_prices import NO_SURCHARGE, Surcharge
from .bounds import CostBound

#: Maximum number of block labels in a settlement; the smallest are summed by section.
_MOST_LABELS = 16


#: Charged for cut output beyond what arrived: a fifth more, plus this many tokens.
_MORE_OUTPUT, _MORE_TOKENS = 1.2, 64


class AttemptCost(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt is settled."""

    nano_usd: int
    kind: Settled
    usage: Usage = Usage()
    usd: Decimal | None = None
    """By the bill."""


class FailedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of an attempt that was sent and has no complete answer."""

    most: int
    """Maximum number of tokens."""
    stops: bool
    """The provider stops generating and billing when the connection is closed."""
    unseen: int = 0
    """Tokens may be billed that are not shown."""
    reads_again: bool = False
    """Server tools may run: after each call the model reads the prompt again."""


def nano_usd_up(amount: Decimal) -> int:
    """Dollars as whole nano-dollars, rounded up."""
    return int((amount * NANO).to_integral_value(ROUND_CEILING))


def cost_of_reply(
    usage: Usage,
    price: Price | None,
    plan: Plan,
    bound: int,
    surcharge: Surcharge | None = NO_SURCHARGE,
) -> AttemptCost:
    """The cost of an answered attempt; the bound if the provider reports no usage, and nothing if
    the model has no price."""
    if price is None:
        return AttemptCost(nano_usd=0, kind="estimated", usage=usage)
    cost = cost_of(usage, price, plan)
    if cost is None:
        return AttemptCost(nano_usd=bound, kind="bound", usage=usage)
    if surcharge is None:  # unknown, so only the tokens are charged
        return AttemptCost(nano_usd=nano_usd_up(cost), kind="estimated", usage=usage, usd=cost)
    cost = surcharge.applied(cost)
    return AttemptCost(nano_usd=nano_usd_up(cost), kind="billed", usage=usage, usd=cost)


def cost_of_failure(
    error: BaseException | None,
    partial: Reply | None,
    *,
    price: Price | None,
    plan: Plan,
    bound: int,
    input_tokens: int,
    output: FailedOutput,
    answers: int = 1,
    bytes_per_token: float,
    surcharge: Surcharge | None = NO_SURCHARGE,
) -> AttemptCost:
    """The cost of an attempt that was sent and has no complete answer: its input as reported, or
    `input_tokens`; its output by `_failed_output`. `answers` is the number of requested answers, of
    which `partial` is the first."""
    received = 0 if partial is None else answers * _received(partial, bytes_per_token)
    usage = Usage() if partial is None else partial.usage
    if not received and isinstance(error, Upstream):
        return AttemptCost(nano_usd=0, kind="free")
    if isinstance(error, Transport) and error.phase == "connect":
        return AttemptCost(nano_usd=0, kind="free")
    if not received and usage.input is None and not _is_cut(error):
        return AttemptCost(nano_usd=bound, kind="bound")
    ended_by_provider = isinstance(error, Upstream)
    all_billed = not output.stops and not ended_by_provider
    if all_billed and (usage.input is None or output.reads_again):
        known = Usage(uncached=usage.input or input_tokens, output=output.most)
        return AttemptCost(nano_usd=bound, kind="estimated", usage=known)
    if price is None:
        return AttemptCost(nano_usd=0, kind="estimated", usage=usage)
    tokens = _failed_output(usage, received, output, ended_by_provider)
    if partial is not None and usage.input is not None:
        again = _read_again(partial)
        known = replace(usage, uncached=(usage.uncached or 0) + again, output=tokens)
        cost = cost_of(known, price, plan)
    else:
        known = Usage(uncached=input_tokens, output=tokens)
        cost = dearest_usd(known, price)
    if cost is None:
        return AttemptCost(nano_usd=bound, kind="bound", usage=known)
    cost = (surcharge or NO_SURCHARGE).applied(cost)
    # Without a bill, never more than the hold.
    return AttemptCost(nano_usd=min(bound, nano_usd_up(cost)), kind="estimated", usage=known)


def _is_cut(error: BaseException | None) -> bool:
    """Whether the daemon ended the attempt, not the provider or the connection."""
    return isinstance(error, Timeout) or not isinstance(error, AnaphoraError)


def _failed_output(
    usage: Usage, received: int, output: FailedOutput, ended_by_provider: bool
) -> int:
    """Output tokens to charge. A provider that ended the answer itself bills what it wrote. One
    that continues generating bills everything; one that stops bills a little more than arrived, and
    hidden thinking."""
    reported = usage.output or 0
    if ended_by_provider:
        return max(reported, received, output.unseen)
    if not output.stops:
        return max(reported, output.most)
    more = math.ceil(received * _MORE_OUTPUT) + _MORE_TOKENS + output.unseen
    return max(reported, min(more, output.most))


def dearest_usd(usage: Usage, price: Price) -> Decimal | None:
    """As if all input were written to the cache at the highest price."""
    rates = price.at(usage.uncached or 0)
    if rates.input is None or rates.output is None:
        return None
    highest = max(rates.input, *rates.write.values()) if rates.write else rates.input
    cost = highest * (usage.uncached or 0) + rates.output * (usage.output or 0)
    return cost.scaleb(-6)


def _received(partial: Reply, bytes_per_token: float) -> int:
    """Approximate number of output tokens that arrived."""
    size = 0
    for part in partial.message.parts:
        if isinstance(part, Text | Thinking):
            size += len(part.text.encode(errors="replace"))
        elif isinstance(part, ToolCall):
            size += len(part.name) + len(part.arguments.encode(errors="replace"))
        elif isinstance(part, Opaque) and not part.kind.endswith("_tool_result"):
            size += len(part.json.encode(errors="replace"))
        else:
            size += 1
    return math.ceil(size / bytes_per_token)


def _read_again(partial: Reply) -> int:
    """The maximum number of tokens read again after server tool calls: the whole prompt each time
    with the results, which the usage at the start of a stream does not include."""
    tools = [part for part in partial.message.parts if isinstance(part, Opaque)]
    calls = sum(part.kind.endswith(("_tool_result", "_call")) for part in tools)
    size = sum(len(part.json.encode(errors="replace")) for part in tools)
    return calls * ((partial.usage.input or 0) + size)


def thinks_unseen(wire: str, profile: Profile, partial: Reply | None) -> bool:
    """Whether an incomplete reply may be billed for thinking that did not arrive."""
    parts = () if partial is None else partial.message.parts
    shown = any(isinstance(part, Thinking) for part in parts)
    reasons = profile.capabilities is None or profile.can("reasoning")
    counted = partial is not None and partial.usage.reasoning is not None
    match features(wire).unseen_thinking:
        case "shown":  # a summary
            return shown
        case "unshown" if shown:
            return False
    return reasons and not counted


def failed_output(
    target: Target,
    facts: CallFacts | None,
    error: BaseException | None,
    partial: Reply | None,
    *,
    most: int,
    seconds: float,
    stream: bool,
) -> FailedOutput:
    """The output of an attempt that ended after these seconds; `most` is its limit."""
    unseen = 0
    if thinks_unseen(target.endpoint.base_wire, target.profile, partial):
        speed = fastest_tokens(target.endpoint.system, target.model)
        unseen = most if isinstance(error, Upstream) else math.ceil(seconds * speed)
    return FailedOutput(
        most=most,
        stops=stops_billing(target, stream=stream),
        unseen=unseen,
        reads_again=facts is not None and bool(facts.server_tools or facts.remote_mcp),
    )


def label_costs(
    shares: tuple[BlockShare, ...], cost: AttemptCost, price: Price | None
) -> Mapping[str, int]:
    """Nano-dollars of the prompt by block label: its cost in proportion to the tokens."""
    total, usage = 0, cost.usage
    for share in shares:
        total += share.tokens
    if price is None or cost.usd is None or not total:
        return {}
    rates = price.at(usage.input or 0) if price.tiers else price
    output = (rates.output or Decimal(0)) * (usage.output or 0)
    nano, costs = nano_usd_up(cost.usd - output.scaleb(-6)), dict[str, int]()
    if len(shares) > _MOST_LABELS:
        shares = tuple(sorted(shares, key=lambda share: -share.tokens))
    for position, share in enumerate(shares):
        name = known_block_label(share.label, share.section)
        if position >= _MOST_LABELS and name not in costs:
            name = share.section
        costs[name] = costs.get(name, 0) + nano * share.tokens // total
    return costs


def checked_cost(cost: AttemptCost, bound: int, most: CostBound, profile: Profile) -> AttemptCost:
    """The cost of an answered attempt with a hold of `bound` nano-dollars for at most `most`.

    A bill above the bound is charged in full, up to the model's context window plus its longest
    output: the bound was wrong, and the error is logged. No call can have more tokens: then the
    bound is charged, and the entry is disputed. If the context window is unknown, the tokens of the
    bound are used instead: a text has at most one token per byte.
    """
    if cost.nano_usd < bound:
        return cost
    usage, believed = cost.usage, most_tokens(most, profile)
    if believed is None or (usage.input or 0) + (usage.output or 0) <= believed:
        return cost
    return AttemptCost(nano_usd=bound, kind="disputed", usage=usage)


def most_tokens(most: CostBound, profile: Profile) -> int | None:
    """The maximum number of tokens of a call, input plus output; None if unknown."""
    held, window = most.input_tokens + most.output_tokens, profile.context_tokens
    if window is None:
        return None if most.nano_usd is None else held
    output = profile.output_tokens
    longest = max((most.output_tokens, *(() if output is None else output.published)))
    return max(held, max(window.published) + longest)


# ── Calls that are cut ────────────────────────────────────────────────────────────────────────────
#
# What happens at the provider if the connection is closed before the bill. The catalog says which
# providers stop generating and billing when a stream is cut; `on_abort` in llm.yaml overrides that.
# Every provider bills a request without stream in full.


def stops_billing(target: Target, *, stream: bool) -> bool:
    """Whether closing the connection stops billing."""
    return stream and _is_cancelled(target)


def reads_on(target: Target, *, stream: bool) -> bool:
    """Whether an answer is read on to its usage if the app leaves."""
    if target.endpoint.config.on_abort == "cancel":
        return False
    return not stops_billing(target, stream=stream)


def _is_cancelled(target: Target) -> bool:
    endpoint = target.endpoint
    if endpoint.config.on_abort is not None:
        return endpoint.config.on_abort == "cancel"
    return stops_when_cut(endpoint.system)
