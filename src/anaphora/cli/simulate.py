"""`anaphora simulate`"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import click
from msgspec.structs import replace

from anaphora import catalog
from anaphora.analysis.trace.log_lines import FoundTrace, Problem
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.predicted import CAUSE_TEXTS, Predicted
from anaphora.analysis.trace.verdicts import TraceVerdict, judge_calls
from anaphora.cache.read_history import BillRange
from anaphora.cache.simulator.chances import (
    CostRange,
    SimulatedCall,
    expected_usage,
)
from anaphora.cache.verdict import Verdict
from anaphora.catalog import Price
from anaphora.catalog.pricing import PriceBook
from anaphora.values import TTL_SECONDS, Ttl, Usage
from anaphora.wording import counted

from .explain import verdicts_of_requests
from .log_files import (
    gather,
    problems_of,
    stop_empty,
    stop_for,
)
from .parameters import ModelName, provider_option
from .simulate_output import CallRow, SimulatedTotals, SimulationReport, TokenCost, page_lines
from .terminal import print_report, tracked


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--as", "elsewhere", type=ModelName(), help="Simulate the calls on another model instead."
)
@click.option("--ttl", type=click.Choice(tuple(TTL_SECONDS)), help="Use this TTL for all markers.")
@provider_option
@click.option("--json", "as_json", is_flag=True, help="Print a row for every call, and the sums.")
def command(
    files: tuple[Path, ...],
    elsewhere: tuple[str, str] | None,
    ttl: Ttl | None,
    provider: str | None,
    as_json: bool,
) -> None:
    """Compare predicted cache usage with actual bills.

    FILES (JSON lines, gzipped or not; a folder stands for the logs in it) are recorded traces,
    sessions of Claude Code (~/.claude/projects), Codex (~/.codex/sessions), Gemini CLI
    (~/.gemini/tmp), opencode (~/.local/share/opencode), GitHub Copilot CLI
    (~/.copilot/session-state) or pi (~/.pi/agent/sessions), or request logs with the bodies of
    requests and responses. Every call is predicted from the calls before it and then compared with
    its bill: tokens read and written, dollars, and the most likely cause of each difference. An
    answer that several sessions contain, such as resumed ones, counts once. A predicted bill is a
    range, such as 0.30 to 2.02, if the errors of earlier predictions make it uncertain. --as
    simulates the same calls with another provider and model, --ttl with another lifetime.

    Invalid input is reported with file and line, skipped and counted. Exit code 1 when a file could
    not be read, 2 when there is no call to simulate or a provider is unknown (name it with
    --provider).
    """
    sources, problems = gather([*files], provider)
    if not any(source.trace.calls for source in sources):
        stop_empty(problems, "no calls to simulate")
    judged: dict[str, Verdict] = {}
    if (
        elsewhere is None
        and ttl is None
        and any(source.trace.source == "requests" for source in sources)
    ):
        judged = verdicts_of_requests(files, provider)
    report = _simulate(sources, problems, elsewhere, ttl, judged)
    print_report(report, page_lines(report), as_json=as_json)
    stop_for(problems, (source.place for source in sources), found=False)


def _simulate(
    sources: list[FoundTrace],
    problems: list[Problem],
    elsewhere: tuple[str, str] | None,
    ttl: Ttl | None,
    judged: dict[str, Verdict],
) -> SimulationReport:
    """`judged` are the verdicts on calls of request logs, by their places."""
    prices = PriceBook(time.time())
    by_id = {source.trace.id: source for source in sources}
    count = sum(len(source.trace.calls) for source in sources)
    traces = [source.trace for source in sources]
    predictor, changed = Predictor(elsewhere=elsewhere, ttl=ttl), bool(elsewhere or ttl)
    calls: Iterator[tuple[Predicted, TraceVerdict | None]]
    if not changed:
        calls = judge_calls(traces, predictor, prices.price)
    else:
        calls = ((call, None) for call in predictor.play(traces))
    rows, others = [], dict[str, str]()
    conversations: dict[tuple[str, str], _Conversation] = {}
    for call, found in tracked(calls, "simulating", total=count):
        source = by_id[call.trace]
        verdict = None if found is None else found.verdict
        verdict = judged.get(source.trace.calls[call.call].place or "", verdict)
        price = prices.price(call.provider, call.model, call.at, call.wire)
        rows.append(_row(call, source, prices, price, verdict, moved=changed))
        one = conversations.setdefault((source.place, call.trace), _Conversation(call.trace))
        one.add(rows[-1], call.conversation_range, price)
        rules = catalog.rules(call.provider, call.model, call.wire)
        if ttl is not None and ttl not in rules.ttls.value:
            default = rules.default_ttl
            instead = "its own" if default is None else default.value
            lacking = f"has no TTL of {ttl}: {instead} is used"
            others[f"{call.provider}/{call.model}"] = lacking
    problems += (Problem(name, text, "notice") for name, text in others.items())
    totals = tuple(_totals(one.name, one.rows, one.range_usd) for one in conversations.values())
    total = _totals("all", rows, None)
    return SimulationReport(
        elsewhere=None if elsewhere is None else "/".join(elsewhere),
        ttl=ttl,
        rows=tuple(rows),
        conversations=totals,
        total=replace(total, range_usd=_range_of(totals, total.expected_usage.median_usd)),
        causes=dict(Counter(row.cause for row in rows if row.cause is not None).most_common()),
        skipped=problems_of(problems, "skipped", "rejected"),
        not_compared=problems_of(problems, "not_compared"),
        notices=problems_of(problems, "notice"),
        unpriced=prices.unpriced,
        learned=predictor.steps.learned,
    )


def _row(
    call: Predicted,
    source: FoundTrace,
    prices: PriceBook,
    price: Price | None,
    verdict: Verdict | None,
    *,
    moved: bool,
) -> CallRow:
    """One prediction beside its bill; `moved`: the call is simulated on another model."""
    trace = source.trace
    recorded = None if call.billed is None else call.billed.usage()
    usage = call.outcome.usage(output=None if recorded is None else recorded.output)
    billed = original = None
    if recorded is not None and moved:
        provider = catalog.provider_named(trace.provider) or trace.provider
        original = _cost(prices.price(provider, call.recorded_model, call.at, trace.wire), recorded)
    elif recorded is not None:
        billed = _token_cost(recorded, price)
    real = recorded if recorded is not None and not moved else usage
    cause = None if moved else call.cause
    predicted = _token_cost(usage, price)
    chances = tuple(
        chance.priced(usage.output, lambda usage: _cost(price, usage)) for chance in call.chances
    )
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
        predicted=predicted,
        billed=billed,
        without_cache=_cost(price, Usage(uncached=real.input, output=real.output)),
        original_cost_usd=original,
        exact=None if billed is None else call.exact,
        expected=call.expected,
        happened=None if moved else call.happened,
        cause=cause,
        because=CAUSE_TEXTS[cause] if cause is not None else "",
        spans=call.outcome.spans,
        chances=chances,
        expected_usage=expected_usage([SimulatedCall(predicted.read, predicted.cost_usd, chances)]),
        verdict=verdict,
        range_usd=_range(call, price, usage),
    )


def _range(call: Predicted, price: Price | None, usage: Usage) -> CostRange | None:
    """The range of a call's bill; its output is known."""
    span, cost = call.bill_range, _cost(price, usage)
    if span is None or cost is None or not span.high:
        return None
    rules = catalog.rules(call.provider, call.model, call.wire)
    predicted, output = rules.input_cost(call.outcome.usage()), Usage(output=usage.output or 0)
    of_input = cost - (_cost(price, output) or Decimal(0))
    low, high = (of_input * Decimal(end / predicted - 1) for end in span)
    return CostRange(cost, cost + low, cost + high)


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


class _Conversation:
    """The calls of one conversation, and the range of its bill."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, list[CallRow]()
        self._span: BillRange | None = None
        self._output = Decimal(0)

    def add(self, row: CallRow, span: BillRange | None, price: Price | None) -> None:
        self.rows.append(row)
        if row.billed is not None:
            self._span = span
            self._output += _cost(price, Usage(output=row.billed.output or 0)) or 0

    @property
    def range_usd(self) -> CostRange | None:
        """By the errors of earlier conversations; before there are enough of those, the sum of the
        ranges of its calls, since their errors are alike."""
        compared = _compared(self.rows)
        cost = expected_usage([_simulated(row) for row in compared]).median_usd
        likeliest = _sum_known([row.predicted.cost_usd for row in compared])
        known = [row.range_usd for row in compared if row.range_usd is not None]
        if cost is None or likeliest is None:
            return None
        if self._span is not None and len(compared) > 1:
            low, high = (self._output + (cost - self._output) * Decimal(end) for end in self._span)
            return CostRange(cost, low, high)
        low = sum((one.low - one.expected for one in known), likeliest)
        high = sum((one.high - one.expected for one in known), likeliest)
        return CostRange(cost, low, high) if known else None


def _compared(rows: list[CallRow]) -> list[CallRow]:
    """Predictions are compared with bills, so only calls that have both are summed."""
    return [row for row in rows if row.billed is not None] or rows


def _simulated(row: CallRow) -> SimulatedCall:
    return SimulatedCall(row.predicted.read, row.predicted.cost_usd, row.chances)


def _totals(name: str, rows: list[CallRow], range_usd: CostRange | None) -> SimulatedTotals:
    billed, compared = [row for row in rows if row.billed is not None], _compared(rows)
    pairs = [row for row in rows if row.pair]
    return SimulatedTotals(
        conversation=name,
        provider=_only({row.provider for row in rows}, "provider"),
        model=_only({row.model for row in rows}, "model"),
        calls=len(rows),
        billed_calls=len(billed),
        exact=sum(bool(row.exact) for row in billed),
        pairs=len(pairs),
        right=sum(row.expected == row.happened for row in pairs),
        predicted=_sum([row.predicted for row in compared]),
        expected_usage=expected_usage([_simulated(row) for row in compared]),
        range_usd=range_usd,
        billed=_sum([row.billed for row in billed if row.billed is not None]) if billed else None,
        without_cache=_sum_known([row.without_cache for row in compared]),
        original_cost_usd=_sum_known([row.original_cost_usd for row in rows]),
    )


def _range_of(totals: tuple[SimulatedTotals, ...], cost: Decimal | None) -> CostRange | None:
    """Of the sum of bills whose errors are independent of each other, around the middles of their
    ranges."""
    known = [one.range_usd for one in totals if one.range_usd is not None]
    if not known or cost is None:
        return None
    middle = sum(((one.low + one.high) / 2 - one.expected for one in known), cost)
    half = sum((((one.high - one.low) / 2) ** 2 for one in known), Decimal(0)).sqrt()
    return CostRange(cost, middle - half, middle + half)


def _only(names: set[str], noun: str) -> str:
    return names.pop() if len(names) == 1 else counted(len(names), noun) if names else ""


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
