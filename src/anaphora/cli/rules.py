"""`anaphora rules`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._wires import WireName
from .models import ProviderName

if TYPE_CHECKING:
    from anaphora.analysis.rules_check import Seen
    from anaphora.catalog import CacheRules, Figure

    from ._rules.report import Report
    from ._simulate.files import Format

_FORMATS = ("trace", "claude_code", "codex", "requests")

#: The same as the library's, which is imported when it is needed.
_THRESHOLD = 0.05

#: Calls from which on one may want to see that something happens.
_LONG = 500


@click.group()
def command() -> None:
    """Print a model's cache rules, or hold them against bills."""


@command.command()
@click.argument("provider", type=ProviderName())
@click.argument("model")
@click.option("--wire", "on", type=WireName(), help="The rules on this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def show(provider: str, model: str, on: str | None, as_json: bool) -> None:
    """Print the rules of one model, each figure with its source and date.

    A figure with a ~ is a careful stand-in: no source states it. Where sources disagree, the value
    to act on comes first, and the others stand below it.
    """
    from anaphora import catalog

    rules = catalog.rules(provider, model, on)
    known = catalog.profile(provider, model).known
    figures = list(_figures(rules))
    if as_json:
        import msgspec

        told = {
            "provider": provider,
            "model": rules.model,
            "wire": on,
            "known": known,
            "figures": dict(figures),
        }
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        from ._rules.show import figures_page

        figures_page(rules, figures, known)


@command.command()
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="LOG..."
)
@click.option("--provider", type=ProviderName(), help="Only this provider's rows.")
@click.option("--model", help="Only rows of this model, or of all that match it with a * in it.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=_THRESHOLD,
    show_default=True,
    help="The share of calls that may contradict a row before it counts as contradicted.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Calls that are shown for each row.",
)
@click.option("--format", "format_", type=click.Choice(_FORMATS), help="When it is not recognised.")
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@click.option("--strict", is_flag=True, help="Refuse input that would be skipped.")
def check(
    logs: tuple[Path, ...],
    provider: str | None,
    model: str | None,
    threshold: float,
    examples: int,
    format_: Format | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Hold the rules against billed calls, row by row.

    LOGs are what `anaphora simulate` reads: traces, sessions of Claude Code or Codex, request logs,
    or folders of them. Every billed call is asked which figures it supports and which it
    contradicts, whatever was predicted for it, and only where it can tell.

    Exit code 1 when a verified row is contradicted by more than the threshold. A row that says
    itself how often it fails (missed, cut_short) may fail as often, chance included; a lifetime
    is contradicted by misses when they are more than half. Exit code 2 when nothing can be read.
    """
    report = _checked(logs, provider, model, threshold, examples, format_, strict)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        from ._rules.show import page

        page(report)
    if report.failed:
        raise click.exceptions.Exit(1)


def _checked(
    logs: tuple[Path, ...],
    provider: str | None,
    model: str | None,
    threshold: float,
    examples: int,
    format_: Format | None,
    strict: bool,
) -> Report:
    from anaphora.analysis import rules_check

    from ._rules.report import report_of
    from ._simulate.gathering import gather, refuse
    from ._simulate.progress import tracked

    found, problems = gather([*logs], format_)
    if strict or not found:
        refuse(problems)
    billed = [
        call
        for call in rules_check.seen(source.trace for source in found)
        if _asked(call, provider, model)
    ]
    calls = tracked(billed, "asking", total=len(billed), long=_LONG)
    rows = rules_check.held(calls, threshold=threshold, examples=examples)
    return report_of(rows, billed, found, problems, threshold)


def _asked(call: Seen, provider: str | None, model: str | None) -> bool:
    from fnmatch import fnmatchcase

    if provider is not None and call.provider != provider:
        return False
    return model is None or fnmatchcase(call.model.lower(), model.lower())


def _figures(rules: CacheRules) -> Iterator[tuple[str, Figure[Any]]]:
    """Every figure of the rules that is stated, by its name."""
    import msgspec

    from anaphora.catalog import Figure

    for field in msgspec.structs.fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, Figure):
            yield field.name, value
        elif isinstance(value, dict):
            yield from ((f"{field.name}.{key}", figure) for key, figure in value.items())
