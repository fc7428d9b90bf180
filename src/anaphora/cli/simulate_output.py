"""The results of `anaphora simulate`, and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from anaphora.analysis.trace.predicted import CAUSE_TEXTS
from anaphora.cache.learned_steps import LearnedRow
from anaphora.cache.read_history import ReadClass
from anaphora.cache.simulator.chances import CallChance, ChanceReason, CostRange, ExpectedUsage
from anaphora.cache.simulator.outcome import Span
from anaphora.cache.verdict import Verdict
from anaphora.cache.verdict.advice import cause_name
from anaphora.values import Ttl
from anaphora.wording import counted, format_duration, format_share, format_usd

from .log_files import SkippedInput, unpriced_note
from .terminal import Line, Rows, learned_lines, problem_lines, table

#: Rows that are shown before the rest becomes a number; --json has all of them.
_CONVERSATIONS, _DIFFERENCES = 30, 12
#: A range above this share of a bill is shown instead of it.
_WIDE = Decimal("0.2")


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
    expected: ReadClass | None
    happened: ReadClass | None
    cause: str | None
    because: str
    spans: tuple[Span, ...]
    chances: tuple[CallChance, ...] = ()
    """Other possible outcomes, if the provider misses at random."""
    expected_usage: ExpectedUsage
    """All of its outcomes by their shares."""
    verdict: Verdict | None = None
    """As `anaphora explain` gives it; None without a bill and with `--as`."""
    range_usd: CostRange | None = None
    """Nine bills in ten are inside, by the errors of earlier predictions; None before there are
    enough of those."""


class SimulatedTotals(msgspec.Struct, frozen=True, kw_only=True):
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
    expected_usage: ExpectedUsage
    """The sums if providers miss at random, with their range; `median_usd` is the predicted
    bill."""
    range_usd: CostRange | None
    """Nine bills in ten are inside, by the errors of earlier conversations, or else of earlier
    calls; calls without a range count as predicted."""
    billed: TokenCost | None
    without_cache: Decimal | None
    original_cost_usd: Decimal | None


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    elsewhere: str | None
    """The provider and model of `--as`."""
    ttl: Ttl | None
    """That of `--ttl`."""
    rows: tuple[CallRow, ...]
    conversations: tuple[SimulatedTotals, ...]
    total: SimulatedTotals
    causes: dict[str, int]
    skipped: tuple[SkippedInput, ...]
    not_compared: tuple[SkippedInput, ...]
    """Valid input without a bill to compare with."""
    notices: tuple[SkippedInput, ...]
    """Notes about the input, such as a model without rows of its own."""
    unpriced: tuple[str, ...] = ()
    """Models without a known price."""
    learned: tuple[LearnedRow, ...] = ()
    """Rows of the catalog that the bills contradict."""


def page_lines(report: SimulationReport) -> Iterator[Line]:
    if report.elsewhere is None and report.ttl is None:
        yield _compared(report)
        yield (
            "\nexact: calls whose predicted tokens read equal the bill; class: calls, after the"
            " first, whose hit, partial or miss was predicted; $: input and output, and if that"
            " is uncertain, the range of nine bills in ten by the errors so far",
            "dim",
        )
        yield from _ranges(report)
        yield from _differences(report)
    else:
        on = f" on {report.elsewhere}" if report.elsewhere else ""
        ttl = f" with a TTL of {report.ttl}" if report.ttl else ""
        yield f"The same calls{on}{ttl}\n", "bold"
        yield _moved(report)
        yield from _ranges(report)
    if report.total.predicted.cost_usd is None:
        reason = "some calls did not report their tokens"
        if report.unpriced:
            reason = unpriced_note(report.unpriced)
        yield f"\ncost unknown: {reason}", "dim"
    yield from learned_lines(report.learned)
    yield from problem_lines("Skipped", report.skipped)
    yield from problem_lines("Not compared", report.not_compared)
    yield from problem_lines("Notices", report.notices)


def _compared(report: SimulationReport) -> Rows:
    figures = ("calls", "exact", "class", "read", "billed", "written", "billed", "cost", "billed")
    rows = _table("conversation", "model", *figures)
    for one in _shown(report):
        billed = one.billed
        rows.add_row(
            one.conversation,
            one.model,
            f"{one.calls:,}",
            _share(one.exact, one.billed_calls),
            _share(one.right, one.pairs),
            f"{one.predicted.read:,}",
            "" if billed is None else f"{billed.read:,}",
            f"{one.predicted.written:,}",
            "" if billed is None else f"{billed.written:,}",
            _bill(one),
            "" if billed is None else _amount(billed.cost_usd),
            style="bold" if one is report.total else "",
        )
    return rows


def _moved(report: SimulationReport) -> Rows:
    tokens = ("calls", "input", "read", "written", "uncached")
    rows = _table("conversation", *tokens, "cost", "without a cache", "originally billed")
    for one in _shown(report):
        predicted = one.predicted
        rows.add_row(
            one.conversation,
            f"{one.calls:,}",
            f"{predicted.input:,}",
            f"{predicted.read:,}",
            f"{predicted.written:,}",
            f"{predicted.uncached:,}",
            _amount(predicted.cost_usd),
            _amount(one.without_cache),
            _amount(one.original_cost_usd),
            style="bold" if one is report.total else "",
        )
    return rows


def _table(*titles: str) -> Rows:
    return table(*titles, right=[title for title in titles[1:] if title != "model"])


def _shown(report: SimulationReport) -> Iterator[SimulatedTotals]:
    """The longest conversations, and the sum of all."""
    by_size = sorted(report.conversations, key=lambda one: -one.predicted.input)
    kept = {id(one) for one in by_size[:_CONVERSATIONS]}
    yield from (one for one in report.conversations if id(one) in kept)
    yield report.total


def _ranges(report: SimulationReport) -> Iterator[Line]:
    """Expected losses from random misses of a provider; empty if there are none."""
    uncertain = [one for one in _shown(report) if not one.expected_usage.certain]
    if not uncertain:
        return
    yield "\nExpected if providers miss at random, and the range of nine cases in ten", "bold"
    yield "by chance alone; estimated lengths are taken as exact", "dim"
    yield _range_table((one.conversation, one.expected_usage) for one in uncertain)
    for line in _reasons(report.rows):
        yield f"  {line}", "dim"


def _differences(report: SimulationReport) -> Iterator[Line]:
    left = len(report.conversations) - _CONVERSATIONS
    if left > 0:
        yield f"and {counted(left, 'shorter conversation')}; --json has them all", "dim"
    if not report.causes:
        return
    yield "\nMost likely causes of differences", "bold"
    for cause, count in report.causes.items():
        yield f"  {count:6,}  {cause_name(cause)} ({CAUSE_TEXTS[cause]})"
    wrong = [
        (abs(row.predicted.read - row.billed.read), row.billed.read, row)
        for row in report.rows
        if row.cause is not None and row.billed is not None
    ]
    wrong.sort(key=lambda difference: difference[0], reverse=True)
    yield "\nThe largest differences", "bold"
    for _, billed, row in wrong[:_DIFFERENCES]:
        gap = "" if row.gap is None else f", {format_duration(row.gap)} after the call before"
        yield (
            f"  {row.conversation} turn {row.call + 1}: {row.predicted.read:,} read expected,"
            f" {billed:,} billed{gap} ({cause_name(str(row.cause))})"
        )
    if len(wrong) > _DIFFERENCES:
        yield f"  and {len(wrong) - _DIFFERENCES:,} more; --json has them all", "dim"


def _share(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}" if whole else ""


def _bill(one: SimulatedTotals) -> str:
    """The predicted bill, the median of its distribution; its range if that is wide."""
    span, cost = one.range_usd, one.expected_usage.median_usd
    if span is None or not cost or span.high - span.low < _WIDE * cost:
        return _amount(cost)
    return f"{_amount(span.low)} to {_amount(span.high)}"


def _amount(amount: Decimal | None) -> str:
    return "unknown" if amount is None else format_usd(amount)


_REASONS: dict[ChanceReason, str] = {
    "missed": "of reads find nothing",
    "cut_short": "find a part",
    "late_writes": "of reads right after a write find an older entry",
    "thinking_dropped": "of reads at a user turn after thinking find only what is before it",
}


def _range_table(named: Iterable[tuple[str, ExpectedUsage]]) -> Rows:
    titles = ("tokens read", "from", "to", "cost", "from", "to")
    rows = table("expected", *titles, right=titles)
    for name, usage in named:
        read, cost = usage.read, usage.cost_usd
        tokens = [f"{figure:,}" for figure in (read.expected, read.low, read.high)]
        dollars = ["", "", ""]
        if cost is not None and usage.median_usd is not None:
            dollars = [format_usd(figure) for figure in (usage.median_usd, cost.low, cost.high)]
        rows.add_row(name, *tokens, *dollars)
    return rows


def _reasons(rows: Iterable[CallRow]) -> Iterator[str]:
    """One line for each model: how often its reads fall short, on average, by kind. Reads right
    after a write, and at a user turn after thinking, are counted by themselves."""
    by_model: dict[str, dict[ChanceReason, list[float]]] = {}
    reads: Counter[str] = Counter()
    for row in rows:
        model = f"{row.provider}/{row.model}"
        reads[model] += row.predicted.read > 0
        for chance in row.chances:
            by_model.setdefault(model, {}).setdefault(chance.reason, []).append(chance.share)
    for model, shares in by_model.items():
        counts = {"missed": reads[model], "cut_short": reads[model]}
        stated = (
            f"{format_share(sum(some) / counts.get(reason, len(some)))} {_REASONS[reason]}"
            for reason, some in shares.items()
        )
        yield f"{model}: {', '.join(stated)}"
