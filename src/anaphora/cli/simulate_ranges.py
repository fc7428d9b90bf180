"""Tables of expected tokens and dollars, with the range that chance leaves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anaphora.cache.simulator.chances import ChanceReason, ExpectedUsage
from anaphora.cache.verdict import format_usd

from .terminal import Rows, table

_REASONS: dict[ChanceReason, str] = {
    "missed": "of reads find nothing",
    "cut_short": "find a part",
    "late_writes": "of reads right after a write find an older entry",
    "thinking_dropped": "of reads at a user turn after thinking find only what is before it",
}


def range_table(named: Iterable[tuple[str, ExpectedUsage]]) -> Rows:
    titles = ("tokens read", "from", "to", "$", "from", "to")
    rows = table("expected", *titles, right=titles)
    for name, usage in named:
        read, cost = usage.read, usage.cost_usd
        tokens = [f"{figure:,}" for figure in (read.expected, read.low, read.high)]
        dollars = ["", "", ""]
        if cost is not None:
            dollars = [format_usd(figure) for figure in (cost.expected, cost.low, cost.high)]
        rows.add_row(name, *tokens, *dollars)
    return rows


def reasons(chances: Iterable[tuple[str, ChanceReason, float]]) -> Iterator[str]:
    """One line for each model: which share of its reads goes wrong, and how."""
    by_model: dict[str, dict[ChanceReason, float]] = {}
    for model, reason, share in chances:
        by_model.setdefault(model, {})[reason] = share
    for model, shares in by_model.items():
        stated = (f"{share:.0%} {_REASONS[reason]}" for reason, share in shares.items())
        yield f"{model}: {', '.join(stated)}"
