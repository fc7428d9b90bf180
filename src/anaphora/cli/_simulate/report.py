"""What `anaphora simulate` found, as data: a row for every call, sums of conversations and all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from anaphora.analysis.trace import MEANING, Cause, Predicted, Verdict, provider_named
from anaphora.analysis.trace.sources import Problem, Source
from anaphora.values import Usage

from .money import Till, cost, uncached


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and dollars of one call, or of many."""

    read: int
    written: int
    uncached: int
    output: int | None = None
    cost_usd: Decimal | None = None

    @property
    def input(self) -> int:
        return self.read + self.written + self.uncached


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the prompt that shares a fate, and the reason for it."""

    tokens: int
    fate: str
    reason: str
    detail: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
    """There is a bill, and a billed call before it that left something to read."""
    predicted: Bill
    billed: Bill | None
    without_cache: Decimal | None
    """Dollars of the same call where nothing is cached."""
    at_home: Decimal | None
    """Dollars that were billed where it was had, when it is played elsewhere."""
    exact: bool | None
    expected: Verdict | None
    happened: Verdict | None
    cause: Cause | None
    because: str
    spans: tuple[Why, ...]


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, or all of them."""

    conversation: str
    provider: str
    model: str
    calls: int
    billed_calls: int
    exact: int
    pairs: int
    right: int
    """Pairs of which hit, partial or miss was foreseen."""
    predicted: Bill
    billed: Bill | None
    without_cache: Decimal | None
    at_home: Decimal | None


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    elsewhere: str | None
    """The provider and model that everything was played on, when not where it was had."""
    rows: tuple[Row, ...]
    conversations: tuple[Sum, ...]
    total: Sum
    causes: dict[Cause, int]
    skipped: tuple[Trouble, ...]
    passed_over: tuple[Trouble, ...]
    """Nothing wrong, and nothing to compare."""
    unpriced: tuple[str, ...] = ()
    """Models without a known price."""


def row_of(call: Predicted, source: Source, till: Till, *, moved: bool) -> Row:
    price = till.price(call.provider, call.model, call.at, call.wire)
    told, trace = call.billed, source.trace
    usage = call.outcome.usage(output=None if told is None else told.output)
    billed = None
    if told is not None and not moved:
        billed = _bill(told.usage(), cost(price, told.usage()))
    at_home = None
    if told is not None and moved:
        where = provider_named(trace.provider) or trace.provider
        home = till.price(where, trace.model, call.at, trace.wire)
        at_home = cost(home, told.usage())
    reference = told.usage() if told is not None and not moved else usage
    cause = None if moved else call.cause
    return Row(
        conversation=call.trace,
        place=source.place,
        call=call.call,
        provider=call.provider,
        model=call.model,
        at=call.at,
        gap=call.gap,
        in_loop=call.in_loop,
        pair=call.is_pair and not moved,
        predicted=_bill(usage, cost(price, usage)),
        billed=billed,
        without_cache=cost(price, uncached(reference)),
        at_home=at_home,
        exact=None if billed is None else call.exact,
        expected=call.expected,
        happened=None if moved else call.happened,
        cause=cause,
        because=MEANING[cause] if cause is not None else "",
        spans=tuple(
            Why(tokens=span.tokens, fate=span.fate, reason=span.reason, detail=span.detail)
            for span in call.outcome.spans
        ),
    )


def report_of(
    rows: Iterable[Row], problems: list[Problem], till: Till, elsewhere: str | None
) -> Report:
    every = tuple(rows)
    by_conversation: dict[tuple[str, str], list[Row]] = {}
    for row in every:
        by_conversation.setdefault((row.place, row.conversation), []).append(row)
    return Report(
        elsewhere=elsewhere,
        rows=every,
        conversations=tuple(_sum(name, some) for (_, name), some in by_conversation.items()),
        total=_sum("all", list(every)),
        causes=dict(Counter(row.cause for row in every if row.cause is not None).most_common()),
        skipped=tuple(_trouble(one) for one in problems if not one.harmless),
        passed_over=tuple(_trouble(one) for one in problems if one.harmless),
        unpriced=till.unpriced,
    )


def _trouble(problem: Problem) -> Trouble:
    return Trouble(place=problem.place, reason=problem.reason)


def _bill(usage: Usage, cost_usd: Decimal | None) -> Bill:
    return Bill(
        read=usage.read or 0,
        written=usage.written_total or 0,
        uncached=usage.uncached or 0,
        output=usage.output,
        cost_usd=cost_usd,
    )


def _sum(name: str, rows: list[Row]) -> Sum:
    told = [row for row in rows if row.billed is not None]
    # Side by side are only calls that have both.
    compared = told or rows
    pairs = [row for row in rows if row.pair]
    return Sum(
        conversation=name,
        provider=_only({row.provider for row in rows}),
        model=_only({row.model for row in rows}),
        calls=len(rows),
        billed_calls=len(told),
        exact=sum(bool(row.exact) for row in told),
        pairs=len(pairs),
        right=sum(row.expected == row.happened for row in pairs),
        predicted=_added([row.predicted for row in compared]),
        billed=_added([row.billed for row in told if row.billed is not None]) if told else None,
        without_cache=_usd([row.without_cache for row in compared]),
        at_home=_usd([row.at_home for row in rows]),
    )


def _only(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else f"{len(names)} of them" if names else ""


def _added(bills: list[Bill]) -> Bill:
    outputs = [bill.output for bill in bills if bill.output is not None]
    return Bill(
        read=sum(bill.read for bill in bills),
        written=sum(bill.written for bill in bills),
        uncached=sum(bill.uncached for bill in bills),
        output=sum(outputs) if outputs else None,
        cost_usd=_usd([bill.cost_usd for bill in bills]),
    )


def _usd(some: list[Decimal | None]) -> Decimal | None:
    """A sum with an unknown in it is unknown."""
    known = [one for one in some if one is not None]
    return sum(known, Decimal(0)) if some and len(known) == len(some) else None
