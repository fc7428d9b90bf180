"""Rows and figures for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anaphora.analysis.rules_check import Other, Row
from anaphora.catalog import CacheRules, Figure
from anaphora.cli._console import Terminal

from .report import Report, Trouble, name

_TROUBLES = 10


def page(report: Report) -> None:
    Terminal().page(Group(*_parts(report)))


def figures_page(rules: CacheRules, figures: list[tuple[str, Figure[Any]]], known: bool) -> None:
    Terminal().page(Group(*_figures(rules, figures, known)))


# ── Check ────────────────────────────────────────────────────────────────────────────────────────


def _parts(report: Report) -> Iterator[RenderableType]:
    stated = [row for row in report.rows if row.value is not None]
    if not stated:
        yield Text(f"nothing in {report.calls:,} billed calls speaks of any row")
    else:
        yield _table(stated)
        yield Text(
            "\ncalls: those that could tell; ~ a careful stand-in, which no source states",
            style="dim",
        )
    for row in stated:
        if row.contradicting:
            yield from _said(row)
    yield from _unstated([row for row in report.rows if row.value is None])
    yield from _troubles("Skipped", report.skipped)
    yield from _troubles("Passed over", report.passed_over)
    yield Text(_verdict(report), style="bold")


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("", "row", "value", "models"):
        table.add_column(title, overflow="fold")
    for title in ("calls", "support", "contradict"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            "✗" if row.contradicted else "·" if row.contradicting else "✓",
            name(row),
            _value(row),
            _models(row),
            f"{row.looked_at:,}",
            f"{row.supporting:,}",
            f"{row.contradicting:,}",
            style="bold" if row.contradicted else "",
        )
    return table


def _said(row: Row) -> Iterator[RenderableType]:
    """Row X contradicted by 14 of 230 calls, e.g. …"""
    calls = f"{row.contradicting:,} of {row.looked_at:,} calls"
    fewer = "" if row.contradicted else f", no more than {row.tolerance:.0%}"
    title = f"\nrow {name(row)} = {_value(row)} contradicted by {calls}{fewer}, e.g."
    yield Text(title, style="bold")
    yield from _examples(row)
    yield Text(f"  source: {row.source} ({row.date})", style="dim")
    for other in row.disputed:
        yield Text(f"  disputed: {spelled(other.value)} {_fares(other)} ({other.source})")


def _examples(row: Row) -> Iterator[Text]:
    for one in row.examples:
        where = f" ({one.place})" if one.place else ""
        yield Text(f"  {one.trace} call {one.call}{where}: {one.billed}; the rule: {one.says}")


def _fares(other: Other) -> str:
    return "would fit" if other.fits else f"is contradicted by {other.contradicting:,} calls"


def _unstated(rows: list[Row]) -> Iterator[RenderableType]:
    """Counts of what no row speaks of: no contradiction, but good to know."""
    if not rows:
        return
    yield Text("\nWithin the lifetime, by the recording the same beginning; no row states a share")
    for row in rows:
        calls = f"{row.contradicting:,} of {row.looked_at:,} calls"
        yield Text(f"  {name(row)} ({_models(row)}): {calls}")


def _verdict(report: Report) -> str:
    asked = f"{report.calls:,} billed calls of {report.conversations:,} conversations"
    if not report.failed:
        return f"\n{asked}: no verified row is contradicted by more than {report.threshold:.0%}"
    rows = ", ".join(dict.fromkeys(report.failed))
    return f"\n{asked}: contradicted by more than {report.threshold:.0%}: {rows}"


def _troubles(title: str, troubles: tuple[Trouble, ...]) -> Iterator[RenderableType]:
    if not troubles:
        return
    yield Text(f"\n{title}: {len(troubles):,}", style="bold")
    for trouble in troubles[:_TROUBLES]:
        yield Text(f"  {trouble.place}: {trouble.reason}")
    if len(troubles) > _TROUBLES:
        yield Text(f"  and {len(troubles) - _TROUBLES:,} more; --json has them all", style="dim")


def _models(row: Row) -> str:
    more = len(row.models) - 3
    return ", ".join(row.models[:3]) + (f" and {more} more" if more > 0 else "")


def _value(row: Row) -> str:
    return spelled(row.value) if row.verified else f"~{spelled(row.value)}"


# ── Show ─────────────────────────────────────────────────────────────────────────────────────────


def _figures(
    rules: CacheRules, figures: list[tuple[str, Figure[Any]]], known: bool
) -> Iterator[RenderableType]:
    yield Text(f"{rules.provider}/{rules.model}", style="bold")
    if not known:
        yield Text("not a model that is known here: its provider's careful defaults", style="dim")
    table = Table(box=None, pad_edge=False)
    for title in ("figure", "value", "date", "source"):
        table.add_column(title, overflow="fold")
    for label, figure in figures:
        sure = "" if figure.verified else "~"
        table.add_row(label, sure + spelled(figure.value), str(figure.date), figure.source)
        for other in figure.disputed:
            table.add_row("", f"or {spelled(other.value)}", "", other.source, style="dim")
    yield table
    yield Text("\n~ a careful stand-in: no source states it; or: what another source says")


def spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
