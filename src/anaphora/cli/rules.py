"""`anaphora rules`"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.analysis import rules_check
from anaphora.analysis.rules_check import CheckedFigure
from anaphora.analysis.rules_check.billed_calls import billed_calls
from anaphora.catalog import CacheRules, Figure
from anaphora.usage.log_files import LogFormat
from anaphora.wording import counted

from .common import CommandGroup
from .log_files import (
    SkippedInput,
    gather,
    problems_of,
    refuse,
    stop_empty,
    stop_for,
)
from .parameters import NumberRange, ProviderName, WireName, log_format_option
from .terminal import Line, print_report, problem_lines, table, tracked


class RulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `anaphora rules check`."""

    calls: int
    """Billed calls that were checked."""
    conversations: int
    threshold: float
    rows: tuple[CheckedFigure, ...]
    """The contradicted ones first."""
    failed: tuple[str, ...]
    """Rows that are contradicted; any of them makes the exit code 1."""
    skipped: tuple[SkippedInput, ...]
    not_compared: tuple[SkippedInput, ...]
    """Valid input without a bill to compare with."""
    notices: tuple[SkippedInput, ...]
    """Notes about the input, such as a model without rows of its own."""


@click.group(cls=CommandGroup)
def command() -> None:
    """Print a model's cache rules, or check them against bills."""


@command.command()
@click.argument("provider", shell_complete=ProviderName().shell_complete)
@click.argument("model", required=False)
@click.option("--wire", "on", type=WireName(), help="Show the rules on this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@click.pass_context
def show(
    context: click.Context, provider: str, model: str | None, on: str | None, as_json: bool
) -> None:
    """Print the cache rules of a model, with sources and dates.

    PROVIDER/MODEL may be one argument, or a MODEL alone whose name shows its maker.

    A ~ marks a conservative default: no source states the figure. If sources disagree, the value in
    use comes first.
    """
    if model is None:
        provider, model = _provider_and_model(provider)
    provider = ProviderName().convert(provider, context.command.params[0], context)
    rules = catalog.rules(provider, model, on)
    known = catalog.profile(provider, model).known
    figures = dict(_figures(rules))
    fields = {"provider": provider, "model": rules.model, "wire": on, "known": known}
    page = _figure_lines(rules, figures, known)
    print_report(fields | {"figures": figures}, page, as_json=as_json)


def _provider_and_model(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    provider = catalog.provider_named(first)
    if provider is not None and slash and rest:
        return provider, rest
    if provider is not None:
        raise click.UsageError("Missing argument 'MODEL'.")
    maker = catalog.maker_of(name)
    if maker is None:
        raise click.UsageError(f"no provider is known to have {name}; write PROVIDER {name}")
    return maker, name


@command.command()
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="LOG..."
)
@click.option(
    "--provider",
    type=ProviderName(),
    help="Only this provider's rules; also the provider of calls that do not name one.",
)
@click.option("--model", help="Only rules of this model; may contain *.")
@click.option(
    "--threshold",
    type=NumberRange(0, 1),
    default=rules_check.THRESHOLD,
    show_default=True,
    help="Share of calls that may contradict a rule.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Calls to show for each rule.",
)
@log_format_option
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@click.option("--strict", is_flag=True, help="Fail on input that would be skipped.")
def check(
    logs: tuple[Path, ...],
    provider: str | None,
    model: str | None,
    threshold: float,
    examples: int,
    format_: LogFormat | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Check the cache rules against billed calls, one by one.

    LOGs are the files that `anaphora simulate` reads: traces, sessions of Claude Code, Codex and
    other programs, request logs, or folders of them. Every billed call supports or contradicts the
    figures it can be compared with, whatever was predicted for it.

    Exit code 1 when a rule, a conservative default included, is contradicted by more than the
    threshold. A rule that states its own failure rate (missed, cut_short) may fail that often,
    chance included; a TTL is contradicted when more than half of the calls within it missed. Exit
    code 1 also when a file could not be read, 2 when there is no billed call to check; with
    --strict, 2 for any invalid input.
    """
    sources, problems = gather([*logs], format_, provider, override=False)
    if strict:
        refuse(problems)
    billed = [
        call
        for call in billed_calls(source.trace for source in sources)
        if (provider is None or call.provider == provider)
        and (model is None or fnmatchcase(call.model.lower(), model.lower()))
    ]
    if not billed:
        asked = "/".join(name for name in (provider, model) if name is not None)
        stop_empty(problems, f"no billed calls{f' of {asked}' if asked else ''} to check")
    calls = tracked(billed, "checking", total=len(billed))
    places = {source.trace.id: source.place for source in sources}
    rows = [
        replace(
            row, examples=tuple(replace(e, place=places.get(e.trace, "")) for e in row.examples)
        )
        for row in rules_check.check_rules(calls, threshold=threshold, examples=examples)
    ]
    report = RulesReport(
        calls=len(billed),
        conversations=len({call.trace for call in billed}),
        threshold=threshold,
        rows=tuple(rows),
        failed=tuple(_name(row) for row in rows if row.contradicted),
        skipped=problems_of(problems, "skipped", "rejected"),
        not_compared=problems_of(problems, "not_compared"),
        notices=problems_of(problems, "notice"),
    )
    print_report(report, _report_lines(report), as_json=as_json)
    stop_for(problems, (source.place for source in sources), found=bool(report.failed))


def _figures(rules: CacheRules) -> Iterator[tuple[str, Figure[Any]]]:
    """Every stated figure of the rules, by its name."""
    for field in msgspec.structs.fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, Figure):
            yield field.name, value
        elif isinstance(value, dict):
            yield from ((f"{field.name}.{key}", figure) for key, figure in value.items())


def _name(row: CheckedFigure) -> str:
    return f"{row.provider} {row.figure}"


def _report_lines(report: RulesReport) -> Iterator[Line]:
    stated = [row for row in report.rows if row.value is not None]
    if not stated:
        yield f"no rule to compare {counted(report.calls, 'billed call')} with"
    else:
        yield _table(stated)
        yield "\ncalls: those that can be compared; ~ conservative default without a source", "dim"
    for row in stated:
        if row.contradicting:
            yield from _contradiction(row)
    unstated = [row for row in report.rows if row.value is None]
    if unstated:
        yield "\nMisses within the TTL with an unchanged prefix; no rule states how many are normal"
    for row in unstated:
        calls = f"{row.contradicting:,} of {counted(row.looked_at, 'call')}"
        yield f"  {_name(row)} ({_models(row)}): {calls}"
    yield from problem_lines("Skipped", report.skipped)
    yield from problem_lines("Not compared", report.not_compared)
    yield from problem_lines("Notices", report.notices)
    conversations = counted(report.conversations, "conversation")
    checked = f"{counted(report.calls, 'billed call')} of {conversations}"
    result = f"contradicted by more than {report.threshold:.0%}"
    if report.failed:
        result += f": {', '.join(dict.fromkeys(report.failed))}"
    else:
        result = f"no rule is {result}"
    yield f"\n{checked}: {result}", "bold"


def _table(rows: list[CheckedFigure]) -> Line:
    counts = ("calls", "support", "contradict")
    listed = table("", "rule", "value", "models", *counts, right=counts)
    for row in rows:
        listed.add_row(
            "✗" if row.contradicted else "·" if row.contradicting else "✓",
            _name(row),
            _value(row),
            _models(row),
            f"{row.looked_at:,}",
            f"{row.supporting:,}",
            f"{row.contradicting:,}",
            style="bold" if row.contradicted else "",
        )
    return listed


def _contradiction(row: CheckedFigure) -> Iterator[Line]:
    """Rule X contradicted by 14 of 230 calls, e.g. …"""
    calls = f"{row.contradicting:,} of {counted(row.looked_at, 'call')}"
    fewer = "" if row.contradicted else f", no more than {row.tolerance:.0%}"
    yield f"\nrule {_name(row)} = {_value(row)} contradicted by {calls}{fewer}, e.g.", "bold"
    for one in row.examples:
        place = f" ({one.place})" if one.place else ""
        yield f"  {one.trace} turn {one.call + 1}{place}: {one.billed}; the rule: {one.says}"
    yield f"  row: {row.row}; source: {row.source} ({row.date})", "dim"
    for other in row.disputed:
        count = f"is contradicted by {counted(other.contradicting, 'call')}"
        fit = "would fit" if other.fits else count
        yield f"  disputed: {_spelled(other.value)} {fit} ({other.source})"


def _models(row: CheckedFigure) -> str:
    more = len(row.models) - 3
    return ", ".join(row.models[:3]) + (f" and {more} more" if more > 0 else "")


def _value(row: CheckedFigure) -> str:
    return _spelled(row.value) if row.verified else f"~{_spelled(row.value)}"


def _figure_lines(
    rules: CacheRules, figures: dict[str, Figure[Any]], known: bool
) -> Iterator[Line]:
    yield f"{rules.provider}/{rules.model}", "bold"
    if not known:
        near = catalog.similar_model(rules.provider, rules.model)
        hint = f" Did you mean {near}?" if near else ""
        yield f"not a known model: the provider's conservative defaults.{hint}", "dim"
    listed = table("figure", "value", "date", "source")
    for name, figure in figures.items():
        sure = "" if figure.verified else "~"
        listed.add_row(name, sure + _spelled(figure.value), str(figure.date), figure.source)
        for other in figure.disputed:
            listed.add_row("", f"or {_spelled(other.value)}", "", other.source, style="dim")
    yield listed
    yield "\n~ conservative default without a source; or: another source's value"


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
