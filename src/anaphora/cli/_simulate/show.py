"""The report for people: predicted beside billed, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anaphora.analysis.trace import MEANING
from anaphora.cli._console import Terminal

from .money import unknown_said
from .report import Bill, Report, Row, Sum, Trouble

#: How much is shown before the rest becomes a number; --json has all of it.
_CONVERSATIONS, _DIFFERENCES, _TROUBLES = 30, 12, 10


def page(report: Report) -> None:
    Terminal().page(Group(*_parts(report)))


def _parts(report: Report) -> Iterator[RenderableType]:
    if not report.rows:
        yield Text("no calls to play")
    elif report.elsewhere is None:
        yield _compared(report)
        yield Text(
            "\nexact: read to the token, of the billed calls; class: hit, partial or miss foreseen,"
            " of those that follow one",
            style="dim",
        )
        yield from _differences(report)
    else:
        yield Text(f"The same calls on {report.elsewhere}\n", style="bold")
        yield _elsewhere(report)
    if report.rows and report.total.predicted.cost_usd is None:
        reason = "some calls did not report their tokens"
        if report.unpriced:
            reason = unknown_said(report.unpriced)
        yield Text(f"\ndollars unknown: {reason}", style="dim")
    yield from _troubles("Skipped", report.skipped)
    yield from _troubles("Passed over", report.passed_over)


def _compared(report: Report) -> Table:
    table = _table("conversation", "model", "calls", "exact", "class")
    for title in ("read", "billed", "written", "billed", "$", "billed"):
        table.add_column(title, justify="right")
    for one in _shown(report):
        billed = one.billed
        table.add_row(
            one.conversation,
            one.model,
            f"{one.calls:,}",
            _share(one.exact, one.billed_calls),
            _share(one.right, one.pairs),
            f"{one.predicted.read:,}",
            "" if billed is None else f"{billed.read:,}",
            f"{one.predicted.written:,}",
            "" if billed is None else f"{billed.written:,}",
            _usd(one.predicted.cost_usd),
            "" if billed is None else _usd(billed.cost_usd),
            style="bold" if one is report.total else "",
        )
    return table


def _elsewhere(report: Report) -> Table:
    table = _table("conversation", "calls", "input", "read", "written", "uncached", "$")
    for title in ("$ uncached", "$ billed at home"):
        table.add_column(title, justify="right")
    for one in _shown(report):
        bill = one.predicted
        table.add_row(
            one.conversation,
            f"{one.calls:,}",
            f"{bill.input:,}",
            f"{bill.read:,}",
            f"{bill.written:,}",
            f"{bill.uncached:,}",
            _usd(bill.cost_usd),
            _usd(one.without_cache),
            _usd(one.at_home),
            style="bold" if one is report.total else "",
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, title in enumerate(titles):
        left = at == 0 or title == "model"
        table.add_column(
            title, justify="left" if left else "right", overflow="fold" if at == 0 else "ellipsis"
        )
    return table


def _shown(report: Report) -> Iterator[Sum]:
    """The longest conversations, what the others come to, and all."""
    by_size = sorted(report.conversations, key=lambda one: -one.predicted.input)
    kept = {id(one) for one in by_size[:_CONVERSATIONS]}
    yield from (one for one in report.conversations if id(one) in kept)
    yield report.total


def _differences(report: Report) -> Iterator[RenderableType]:
    left = len(report.conversations) - _CONVERSATIONS
    if left > 0:
        yield Text(f"and {left:,} shorter conversations; --json has them all", style="dim")
    if not report.causes:
        return
    yield Text("\nWhy bills differ, most likely", style="bold")
    for cause, count in report.causes.items():
        yield Text(f"  {count:6,}  {MEANING[cause]}")
    wrong = sorted((row for row in report.rows if row.cause is not None), key=_apart, reverse=True)
    yield Text("\nThe largest differences", style="bold")
    for row in wrong[:_DIFFERENCES]:
        yield Text(f"  {_named(row)}: {_said(row)}")
    if len(wrong) > _DIFFERENCES:
        yield Text(f"  and {len(wrong) - _DIFFERENCES:,} more; --json has them all", style="dim")


def _apart(row: Row) -> int:
    return abs(row.predicted.read - row.billed.read) if row.billed is not None else 0


def _named(row: Row) -> str:
    return f"{row.conversation} call {row.call}"


def _said(row: Row) -> str:
    billed = row.billed or Bill(read=0, written=0, uncached=0)
    gap = "" if row.gap is None else f", {row.gap:,.0f} s after the call before"
    return (
        f"{row.predicted.read:,} read expected, {billed.read:,} billed{gap}"
        f" ({str(row.cause).replace('_', ' ')})"
    )


def _troubles(title: str, troubles: tuple[Trouble, ...]) -> Iterator[RenderableType]:
    if not troubles:
        return
    yield Text(f"\n{title}: {len(troubles):,}", style="bold")
    for trouble in troubles[:_TROUBLES]:
        yield Text(f"  {trouble.place}: {trouble.reason}")
    if len(troubles) > _TROUBLES:
        yield Text(f"  and {len(troubles) - _TROUBLES:,} more; --json has them all", style="dim")


def _share(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}" if whole else ""


def _usd(amount: Decimal | None) -> str:
    if amount is None:
        return "unknown"
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"
