"""`anaphora simulate`"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.table import Table

from anaphora import catalog
from anaphora.analysis.trace.format import unsupported
from anaphora.analysis.trace.predict import CAUSE_TEXTS, Predictor

from .common import completions, log_format_option, print_json
from .log_files import LogFormat, PriceBook, gather, refuse, unpriced_note
from .simulate_plot import draw
from .simulate_report import CallRow, CallTotals, SimulationReport, report_of, row_of
from .terminal import Line, print_page, problem_lines, table, tracked

#: Rows that are shown before the rest becomes a number; --json has all of them.
_CONVERSATIONS, _DIFFERENCES = 30, 12


class ModelName(click.ParamType[tuple[str, str]]):
    """PROVIDER/MODEL, both known."""

    name = "provider/model"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, model = value.partition("/")
        if not model:
            self.fail(f"{value!r} is not of the form provider/model", param, ctx)
        if (reason := unsupported(name, model)) is not None:
            self.fail(f"{reason}; `anaphora models` lists the known ones", param, ctx)
        return catalog.provider_named(name) or name, model

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = (f"{profile.provider}/{profile.id}" for profile in catalog.models())
        return completions(names, incomplete)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder whose files are read besides FILES.",
)
@click.option(
    "--as", "elsewhere", type=ModelName(), help="Simulate the calls on another model instead."
)
@log_format_option
@click.option("--json", "as_json", is_flag=True, help="Print a row for every call, and the sums.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG chart.")
@click.option("--strict", is_flag=True, help="Fail on input that would be skipped.")
def command(
    files: tuple[Path, ...],
    traces: Path | None,
    elsewhere: tuple[str, str] | None,
    format_: LogFormat | None,
    as_json: bool,
    plot: Path | None,
    strict: bool,
) -> None:
    """Compare predicted cache usage with actual bills.

    FILES (JSON lines, gzipped or not; a folder stands for the logs in it) are recorded traces,
    sessions of Claude Code (~/.claude/projects) or Codex (~/.codex/sessions), or request logs with
    the bodies of requests and responses. Every call is predicted from the calls before it and then
    compared with its bill: tokens read and written, dollars, and the most likely cause of each
    difference. --as simulates the same calls with another provider and model.

    Invalid input is reported with file and line, skipped and counted; with --strict the exit code
    is 2.
    """
    places = [*files, *([traces] if traces is not None else [])]
    if not places:
        raise click.UsageError("pass a file, or a folder with --traces")
    report = _simulate(places, format_, elsewhere, strict)
    if plot is not None:
        plot.write_text(draw(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        print_page(_lines(report))


def _simulate(
    places: list[Path],
    format_: LogFormat | None,
    elsewhere: tuple[str, str] | None,
    strict: bool,
) -> SimulationReport:
    sources, problems = gather(places, format_)
    if strict:
        refuse(problems)
    prices = PriceBook()
    by_id = {source.trace.id: source for source in sources}
    count = sum(len(source.trace.calls) for source in sources)
    calls = Predictor(elsewhere=elsewhere).play(source.trace for source in sources)
    rows = [
        row_of(call, by_id[call.trace], prices, moved=elsewhere is not None)
        for call in tracked(calls, "simulating", total=count)
    ]
    return report_of(rows, problems, prices, None if elsewhere is None else "/".join(elsewhere))


# ── Output ───────────────────────────────────────────────────────────────────────────────────────


def _lines(report: SimulationReport) -> Iterator[Line]:
    if not report.rows:
        yield "no calls to simulate"
    elif report.elsewhere is None:
        yield _compared(report)
        yield (
            "\nexact: calls whose predicted tokens read equal the bill; class: calls, after the"
            " first, whose hit, partial or miss was predicted",
            "dim",
        )
        yield from _differences(report)
    else:
        yield f"The same calls on {report.elsewhere}\n", "bold"
        yield _moved(report)
    if report.rows and report.total.predicted.cost_usd is None:
        reason = "some calls did not report their tokens"
        if report.unpriced:
            reason = unpriced_note(report.unpriced)
        yield f"\ncost unknown: {reason}", "dim"
    yield from problem_lines("Skipped", report.skipped)
    yield from problem_lines("Not compared", report.not_compared)


def _compared(report: SimulationReport) -> Table:
    figures = ("calls", "exact", "class", "read", "billed", "written", "billed", "$", "billed")
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
            _amount(one.predicted.cost_usd),
            "" if billed is None else _amount(billed.cost_usd),
            style="bold" if one is report.total else "",
        )
    return rows


def _moved(report: SimulationReport) -> Table:
    tokens = ("calls", "input", "read", "written", "uncached")
    rows = _table("conversation", *tokens, "$", "$ uncached", "$ originally billed")
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


def _table(*titles: str) -> Table:
    return table(*titles, right=[title for title in titles[1:] if title != "model"])


def _shown(report: SimulationReport) -> Iterator[CallTotals]:
    """The longest conversations, and the sum of all."""
    by_size = sorted(report.conversations, key=lambda one: -one.predicted.input)
    kept = {id(one) for one in by_size[:_CONVERSATIONS]}
    yield from (one for one in report.conversations if id(one) in kept)
    yield report.total


def _differences(report: SimulationReport) -> Iterator[Line]:
    left = len(report.conversations) - _CONVERSATIONS
    if left > 0:
        yield f"and {left:,} shorter conversations; --json has them all", "dim"
    if not report.causes:
        return
    yield "\nMost likely causes of differences", "bold"
    for cause, count in report.causes.items():
        yield f"  {count:6,}  {CAUSE_TEXTS[cause]}"
    wrong = sorted((row for row in report.rows if row.cause is not None), key=_error, reverse=True)
    yield "\nThe largest differences", "bold"
    for row in wrong[:_DIFFERENCES]:
        billed = 0 if row.billed is None else row.billed.read
        gap = "" if row.gap is None else f", {row.gap:,.0f} s after the call before"
        cause_name = str(row.cause).replace("_", " ")
        yield (
            f"  {row.conversation} call {row.call}: {row.predicted.read:,} read expected,"
            f" {billed:,} billed{gap} ({cause_name})"
        )
    if len(wrong) > _DIFFERENCES:
        yield f"  and {len(wrong) - _DIFFERENCES:,} more; --json has them all", "dim"


def _error(row: CallRow) -> int:
    return abs(row.predicted.read - row.billed.read) if row.billed is not None else 0


def _share(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}" if whole else ""


def _amount(amount: Decimal | None) -> str:
    if amount is None:
        return "unknown"
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"
