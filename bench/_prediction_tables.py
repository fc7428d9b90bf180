"""The tables and figures of bench/simulator.py: how good predictions are, ours and the chain's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from _prediction import Compared, Family

from anaphora.analysis.trace.predicted import Predicted
from anaphora.cache.simulator.chances import Sum

#: Families with fewer pairs are printed, not judged.
LEAST_PAIRS = 30
#: A family whose ranges are judged, and one whose bills are judged by themselves.
LEAST_RANGED, LEAST_CONVERSATIONS = 100, 5
#: Conversations of a group whose ranges are judged, short reads of a family that are, and families
#: that must have as many conversations: else those of a provider are one group.
LEAST_SPANS, LEAST_SHORT, LEAST_FAMILIES = 20, 20, 3
#: A tool loop goes on while the shortest lifetime lasts.
LOOP = 300.0

Figures = dict[str, float | None]


def quantile(values: list[float], part: float) -> float | None:
    """Between two values, in proportion."""
    if not values:
        return None
    ordered = sorted(values)
    low, rest = divmod(part * (len(ordered) - 1), 1)
    high = min(int(low) + 1, len(ordered) - 1)
    return ordered[int(low)] * (1 - rest) + ordered[high] * rest


def median(values: list[float]) -> float | None:
    return quantile(values, 0.5)


def share(right: int, of: int) -> float | None:
    return right / of if of else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


class Score:
    """How often the reads of some calls were predicted right, by us and by the chain."""

    def __init__(self, calls: Iterable[Compared]) -> None:
        pairs = [one for one in calls if one.call.is_pair]
        self.pairs = len(pairs)
        self.exact = share(sum(one.call.exact for one in pairs), self.pairs)
        self.chain_exact = share(sum(one.chain == one.read for one in pairs), self.pairs)
        ours = sum(one.call.expected == one.call.happened for one in pairs)
        chain = sum(one.chain_class == one.call.happened for one in pairs)
        self.classes, self.chain_classes = share(ours, self.pairs), share(chain, self.pairs)


class Bills:
    """The errors of the bills of conversations of several calls, and of first prompts; the ranges
    of single bills."""

    def __init__(self, calls: list[Compared]) -> None:
        ours: dict[str, Sum] = defaultdict(Sum)
        chain: dict[str, float] = defaultdict(float)
        billed: dict[str, float] = defaultdict(float)
        several = {one.call.trace for one in calls if one.billed and one.call.previous}
        for one in calls:
            if one.billed and one.call.trace in several:
                ours[one.call.trace].add(one.outcomes)
                chain[one.call.trace] += one.chain_cost or 0.0
                billed[one.call.trace] += one.billed
        self.errors = [abs(ours[name].median / bill - 1) for name, bill in billed.items()]
        self.chain_errors = [abs(chain[name] / bill - 1) for name, bill in billed.items()]
        self.first = [
            abs(one.call.outcome.total / one.call.billed.total - 1)
            for one in calls
            if one.call.previous is None and one.call.billed is not None and one.call.billed.total
        ]
        ranged = [one for one in calls if one.ranged and one.billed]
        self.ranged = len(ranged)
        self.inside = share(sum(one.in_range for one in ranged), self.ranged)
        self.widths = [
            (one.call.bill_range.high - one.call.bill_range.low) / one.billed
            for one in ranged
            if one.call.bill_range is not None and one.billed
        ]


class Span(NamedTuple):
    """The range of the bill of a whole conversation, which has several calls with a bill."""

    family: Family
    inside: bool
    width: float
    """Over the bill."""


def spans(calls: list[Compared]) -> Iterator[Span]:
    """The ranges of conversations after ten earlier ones of the same entry."""
    found: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in calls:
        if one.billed:
            found[one.source, one.call.trace].append(one)
    for some in found.values():
        span, bill, predicted = some[-1].call.conversation_range, 0.0, Sum()
        for one in some:
            predicted.add(one.outcomes)
            bill += one.billed or 0.0
        if span is not None and len(some) > 1:
            low, high = (end * predicted.median for end in span)
            yield Span(some[-1].family, low <= bill <= high, (high - low) / bill)


def span_groups(found: list[Span]) -> dict[Hashable, list[Span]]:
    """By family, or by provider; groups that are large enough."""
    families: dict[Hashable, list[Span]] = defaultdict(list)
    providers: dict[Hashable, list[Span]] = defaultdict(list)
    for one in found:
        families[one.family].append(one)
        providers[one.family.entry.partition(" ")[0]].append(one)
    large = [
        {name: some for name, some in groups.items() if len(some) >= LEAST_SPANS}
        for groups in (families, providers)
    ]
    return large[len(large[0]) < LEAST_FAMILIES]


class FamilyScore:
    def __init__(self, family: Family, calls: list[Compared]) -> None:
        self.family = family
        self.reads, self.bills = Score(calls), Bills(calls)
        self.has_results = any(one.has_results for one in calls)
        self.short = sum(one.is_short for one in calls)
        self.said_short = sum(one.said_short for one in calls if one.call.billed is not None)

    @property
    def judged(self) -> bool:
        return self.reads.pairs >= LEAST_PAIRS

    @property
    def bills_judged(self) -> bool:
        enough = len(self.bills.errors) >= LEAST_CONVERSATIONS
        return self.judged and self.has_results and enough


def families(calls: Iterable[Compared]) -> list[FamilyScore]:
    """Those with any pair, the largest first."""
    found: dict[Family, list[Compared]] = defaultdict(list)
    for one in calls:
        found[one.family].append(one)
    scores = [FamilyScore(family, some) for family, some in found.items()]
    return sorted(
        (one for one in scores if one.reads.pairs), key=lambda one: (-one.reads.pairs, one.family)
    )


def figures(calls: list[Compared]) -> tuple[Figures, Figures]:
    """Ours, and those of the chain where it has them."""
    scores = families(calls)
    judged = [one for one in scores if one.judged]
    anthropic = [one for one in calls if one.call.provider == "anthropic"]
    loops = Score(one for one in anthropic if _in_loop(one.call))
    turns = Score(one for one in anthropic if not one.call.in_loop)
    codex = Score(
        one for one in calls if one.family.program == "codex" and one.family.model == "gpt-5.5"
    )
    errors = [error for one in judged for error in one.bills.errors]
    chain_errors = [error for one in judged for error in one.bills.chain_errors]
    worst = max((one for one in judged if one.bills_judged), key=_bill_error, default=None)
    ranged = (one for one in judged if one.bills.ranged >= LEAST_RANGED)
    narrow = min(ranged, key=lambda one: one.bills.inside or 0.0, default=None)
    ranges = list(spans(calls))
    groups = span_groups(ranges).values()
    short = [one.said_short / one.short for one in scores if one.short >= LEAST_SHORT]
    deepseek = [
        one
        for one in calls
        if one.call.provider == "deepseek" and one.call.billed is not None and one.append_only
    ]
    near = sum(abs(one.call.outcome.read - one.read) <= one.call.granule for one in deepseek)
    ours: Figures = {
        "worst_exact_gain": _worst(judged, lambda one: (one.exact, one.chain_exact)),
        "worst_class_gain": _worst(judged, lambda one: (one.classes, one.chain_classes)),
        "anthropic_loop_exact": loops.exact,
        "codex_exact": codex.exact,
        "user_turn_class": turns.classes,
        "bill_error_median": median(errors),
        "worst_bill_error_median": None if worst is None else _bill_error(worst),
        "range_share": None if narrow is None else narrow.bills.inside,
        "range_width_median": None if narrow is None else median(narrow.bills.widths),
        "conversation_range_share": min(
            (sum(one.inside for one in some) / len(some) for some in groups), default=None
        ),
        "conversation_range_width_median": median([one.width for one in ranges]),
        "said_short_over_real": max(short, key=lambda one: max(one, 1 / one), default=None),
        "unknown_share_of_lost_usd": _unknown_share(calls),
        "first_call_tokens_median": median(Bills(calls).first),
        "deepseek_within_granule": share(near, len(deepseek)),
    }
    chain: Figures = {
        "anthropic_loop_exact": loops.chain_exact,
        "codex_exact": codex.chain_exact,
        "user_turn_class": turns.chain_classes,
        "bill_error_median": median(chain_errors),
        "worst_bill_error_median": None if worst is None else median(worst.bills.chain_errors),
    }
    return ours, chain


def _unknown_share(calls: list[Compared]) -> float | None:
    """Dollars that Claude Code's sessions were billed again."""
    sessions = (one for one in calls if one.trace.source == "claude_code")
    lost = [loss for one in sessions for loss in one.losses if loss.nano_usd]
    unknown = sum(loss.nano_usd or 0 for loss in lost if loss.cause == "unknown")
    return share(unknown, sum(loss.nano_usd or 0 for loss in lost))


def _in_loop(call: Predicted) -> bool:
    return call.in_loop and call.gap is not None and call.gap < LOOP


def _bill_error(one: FamilyScore) -> float:
    return median(one.bills.errors) or 0.0


def _worst(
    scores: list[FamilyScore], of: Callable[[Score], tuple[float | None, float | None]]
) -> float | None:
    """The least that ours are better than the chain in any family."""
    pairs = [of(one.reads) for one in scores]
    return min(((ours or 0.0) - (chain or 0.0) for ours, chain in pairs), default=None)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────

#: What each figure is, and its limit.
MEANING = {
    "worst_exact_gain": ("reads right to the token, ours less the chain's, worst family", "≥ 0"),
    "worst_class_gain": ("hit, partial or miss right, ours less the chain's, worst family", "≥ 0"),
    "anthropic_loop_exact": ("Anthropic, tool loops under 5 minutes: exact", "≥ 99.5%"),
    "codex_exact": ("Codex on gpt-5.5: exact", "≥ 81%"),
    "user_turn_class": ("Anthropic, after a user's message: hit, partial or miss", "≥ 90%"),
    "bill_error_median": ("bill of a conversation: error, median", "≤ 4.5%"),
    "worst_bill_error_median": ("the same in the worst family", "≤ 9%"),
    "conversation_range_share": ("bills of conversations in their range, worst group", "≥ 88%"),
    "conversation_range_width_median": ("width of these ranges over the bill, median", "≤ 100%"),
    "range_share": ("bills of calls inside their range, worst family", "≥ 90%"),
    "range_width_median": ("width of these ranges over the bill, median", "≤ 50%"),
    "said_short_over_real": ("short reads that were said over real ones, worst family", "50–200%"),
    "unknown_share_of_lost_usd": ("Claude Code: dollars billed again, cause unknown", "≤ 20%"),
    "first_call_tokens_median": ("tokens of a first prompt: error, median", "≤ 3%"),
    "wrong_loss_verdicts": ("losses named that were none, or by another cause", "0"),
    "missed_losses": ("planted losses that no verdict names", "≤ 2%"),
    "deepseek_within_granule": ("DeepSeek, append-only: within one granule", "≥ 95%"),
}


def summary_table(ours: Figures, chain: Figures) -> None:
    rows = []
    for name, (what, limit) in MEANING.items():
        if name in ours:
            count = name == "wrong_loss_verdicts"
            shown = str(ours[name]) if count else percent(ours[name])
            rows.append([f"`{name}`", what, shown, percent(chain.get(name)), limit])
    table(["figure", "what", "ours", "chain", "limit"], rows)


def read_table(scores: list[FamilyScore]) -> None:
    """Families that are too small to be judged are in brackets."""
    rows = [
        [
            str(one.family) if one.judged else f"({one.family})",
            f"{one.reads.pairs:,}",
            percent(one.reads.exact),
            percent(one.reads.chain_exact),
            percent(one.reads.classes),
            percent(one.reads.chain_classes),
        ]
        for one in scores
    ]
    table(["program · entry · model", "pairs", "exact", "chain", "class", "chain"], rows)


def bill_table(scores: list[FamilyScore]) -> None:
    rows = []
    for one in scores:
        bills = one.bills
        width = median(bills.widths)
        rows.append(
            [
                str(one.family) if one.bills_judged else f"({one.family})",
                f"{len(bills.errors):,}",
                percent(median(bills.errors)),
                percent(median(bills.chain_errors)),
                percent(median(bills.first)),
                f"{bills.ranged:,}",
                percent(bills.inside),
                percent(width),
            ]
        )
    titles = ["bills", "error", "chain", "first prompt", "calls", "in range", "width"]
    table(["program · entry · model", *titles], rows)


def table(titles: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    for row in [titles, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
