"""The result of `anaphora simulate`: a row for every call, sums of conversations and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.lines import FoundTrace, Problem
from anaphora.analysis.trace.predict import CAUSE_TEXTS, HitClass, Predicted
from anaphora.cache.simulator.outcome import Span
from anaphora.catalog import Price
from anaphora.values import Usage

from .log_files import PriceBook, SkippedInput, skipped


class TokenCost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and cost of one call, or of many."""

    read: int
    written: int
    uncached: int
    output: int | None = None
    cost_usd: Decimal | None = None

    @property
    def input(self) -> int:
        return self.read + self.written + self.uncached


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One call."""

    conversation: str
    place: str
    call: int
    provider: str
    model: str
    at: float | None
    gap: float | None
    in_loop: bool
    pair: bool
    """There is a bill, and an earlier billed call that cached something."""
    predicted: TokenCost
    billed: TokenCost | None
    without_cache: Decimal | None
    """Cost of the same call without a cache."""
    original_cost_usd: Decimal | None
    """The bill of the recorded call, when it is simulated on another model."""
    exact: bool | None
    expected: HitClass | None
    happened: HitClass | None
    cause: str | None
    because: str
    spans: tuple[Span, ...]


class CallTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a conversation, or of all."""

    conversation: str
    provider: str
    model: str
    calls: int
    billed_calls: int
    exact: int
    pairs: int
    right: int
    """Pairs whose hit, partial or miss was predicted."""
    predicted: TokenCost
    billed: TokenCost | None
    without_cache: Decimal | None
    original_cost_usd: Decimal | None


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    elsewhere: str | None
    """The provider and model of `--as`."""
    rows: tuple[CallRow, ...]
    conversations: tuple[CallTotals, ...]
    total: CallTotals
    causes: dict[str, int]
    skipped: tuple[SkippedInput, ...]
    not_compared: tuple[SkippedInput, ...]
    """Valid input without a bill to compare with."""
    unpriced: tuple[str, ...] = ()
    """Models without a known price."""


def row_of(call: Predicted, source: FoundTrace, prices: PriceBook, *, moved: bool) -> CallRow:
    """One prediction beside its bill; `moved`: the call is simulated on another model."""
    price = prices.price(call.provider, call.model, call.at, call.wire)
    trace = source.trace
    recorded = None if call.billed is None else call.billed.usage()
    usage = call.outcome.usage(output=None if recorded is None else recorded.output)
    billed = original = None
    if recorded is not None and moved:
        provider = catalog.provider_named(trace.provider) or trace.provider
        original = _cost(prices.price(provider, trace.model, call.at, trace.wire), recorded)
    elif recorded is not None:
        billed = _token_cost(recorded, price)
    real = recorded if recorded is not None and not moved else usage
    cause = None if moved else call.cause
    return CallRow(
        conversation=call.trace,
        place=source.place,
        call=call.call,
        provider=call.provider,
        model=call.model,
        at=call.at,
        gap=call.gap,
        in_loop=call.in_loop,
        pair=call.is_pair and not moved,
        predicted=_token_cost(usage, price),
        billed=billed,
        without_cache=_cost(price, Usage(uncached=real.input, output=real.output)),
        original_cost_usd=original,
        exact=None if billed is None else call.exact,
        expected=call.expected,
        happened=None if moved else call.happened,
        cause=cause,
        because=CAUSE_TEXTS[cause] if cause is not None else "",
        spans=call.outcome.spans,
    )


def report_of(
    rows: Iterable[CallRow], problems: list[Problem], prices: PriceBook, elsewhere: str | None
) -> SimulationReport:
    every = tuple(rows)
    by_conversation: dict[tuple[str, str], list[CallRow]] = {}
    for row in every:
        by_conversation.setdefault((row.place, row.conversation), []).append(row)
    return SimulationReport(
        elsewhere=elsewhere,
        rows=every,
        conversations=tuple(_totals(name, some) for (_, name), some in by_conversation.items()),
        total=_totals("all", list(every)),
        causes=dict(Counter(row.cause for row in every if row.cause is not None).most_common()),
        skipped=skipped(problems),
        not_compared=skipped(problems, harmless=True),
        unpriced=prices.unpriced,
    )


def _token_cost(usage: Usage, price: Price | None) -> TokenCost:
    return TokenCost(
        read=usage.read or 0,
        written=usage.written_total or 0,
        uncached=usage.uncached or 0,
        output=usage.output,
        cost_usd=_cost(price, usage),
    )


def _cost(price: Price | None, usage: Usage) -> Decimal | None:
    """The cost of a call; without output tokens, of its input."""
    if price is None:
        return None
    if usage.output is None:
        usage = Usage(uncached=usage.uncached, read=usage.read, written=usage.written, output=0)
    rules = catalog.rules(price.provider, price.model)
    default = rules.default_ttl.value if rules.default_ttl is not None else None
    return price.of(usage, unsplit=default)


def _totals(name: str, rows: list[CallRow]) -> CallTotals:
    billed = [row for row in rows if row.billed is not None]
    # Predictions are compared with bills, so only calls that have both are summed.
    compared = billed or rows
    pairs = [row for row in rows if row.pair]
    return CallTotals(
        conversation=name,
        provider=_only({row.provider for row in rows}),
        model=_only({row.model for row in rows}),
        calls=len(rows),
        billed_calls=len(billed),
        exact=sum(bool(row.exact) for row in billed),
        pairs=len(pairs),
        right=sum(row.expected == row.happened for row in pairs),
        predicted=_sum([row.predicted for row in compared]),
        billed=_sum([row.billed for row in billed if row.billed is not None]) if billed else None,
        without_cache=_sum_known([row.without_cache for row in compared]),
        original_cost_usd=_sum_known([row.original_cost_usd for row in rows]),
    )


def _only(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else f"{len(names)} of them" if names else ""


def _sum(costs: list[TokenCost]) -> TokenCost:
    outputs = [cost.output for cost in costs if cost.output is not None]
    return TokenCost(
        read=sum(cost.read for cost in costs),
        written=sum(cost.written for cost in costs),
        uncached=sum(cost.uncached for cost in costs),
        output=sum(outputs) if outputs else None,
        cost_usd=_sum_known([cost.cost_usd for cost in costs]),
    )


def _sum_known(amounts: list[Decimal | None]) -> Decimal | None:
    """The sum; None when one of them is unknown, or there are none."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if amounts and len(known) == len(amounts) else None
