"""`anaphora map`"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from anaphora.client.client import AsyncClient
from anaphora.client.config.resolve import resolve_each
from anaphora.client.fan_out import FanOut, FanOutItem, FanOutProgress, FanOutResult, FanOutSettings
from anaphora.client.fan_out.kept import state_path
from anaphora.client.fan_out.values import split_options
from anaphora.client.oneshot import OneShot
from anaphora.client.options import MapOptions
from anaphora.errors import AnaphoraError, MissingSecret, Unauthenticated
from anaphora.wording import counted, format_share, format_usd

from .common import (
    EXISTING_FILE,
    FOUND,
    UNMET,
    USAGE,
    print_error_line,
    print_json,
    read_bytes,
    read_text,
    report_problems,
    stop,
)
from .map_lines import LineDefaults, MapLine, read_lines
from .provider_choice import (
    AskConfig,
    ProviderChoice,
    choose,
    config_or_emulator,
    model_option,
    read_schema,
)
from .terminal import one_line

#: Problems that are printed before the rest becomes a number.
_SHOWN = 20


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    file: Path
    model: str | None
    system: str | None
    system_file: Path | None
    schema: Path | None
    max_tokens: int | None
    concurrency: int
    max_cost_usd: str | None
    batch: bool
    results: Path | None
    restart: bool
    emulate: bool
    as_json: bool

    @property
    def results_file(self) -> Path:
        """The file of the results."""
        if self.results is not None:
            return self.results
        name = self.file.name.removesuffix(".jsonl").removesuffix(".ndjson")
        return self.file.with_name(f"{name}.results.jsonl")


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@model_option
@click.option("-s", "--system", help="System prompt of lines with a prompt.")
@click.option("--system-file", type=EXISTING_FILE, help="System prompt from a file.")
@click.option("--schema", type=EXISTING_FILE, help="JSON Schema that every answer must conform to.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of output tokens of a call.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum of concurrent calls; rate limits may allow fewer.",
)
@click.option(
    "--max-cost-usd",
    metavar="AMOUNT",
    help="Spending limit over all runs; calls that could exceed it are not sent.",
)
@click.option(
    "--batch", is_flag=True, help="Use the provider's Batch API: half the price, within a day."
)
@click.option(
    "-o",
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the results; by default a.results.jsonl for a.jsonl.",
)
@click.option("--restart", is_flag=True, help="Discard the results of earlier runs.")
@click.option("--emulate", is_flag=True, help="Use the local emulator: no key, no network.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def command(**given: Any) -> None:
    """Send every line of a file, and pay for shared prefixes once.

    A line of FILE is a JSON object: {"prompt": "…"} with any of id, system, model, max_tokens, …; a
    whole request to a provider; or a line of a provider's batch file. A plain text is a prompt as
    well; - reads standard input.

    Calls are grouped by their prefix. One call of each group is sent first, the others when they
    can read what it wrote to the cache. Results of a.jsonl are written to a.results.jsonl as they
    come, and sorted like FILE at the end; a.state.jsonl holds other state for the next run. Only
    the user can read these files. An interrupted or killed run is resumed: results belong to the
    content of a line, not to its number. Failed calls are repeated.

    Exit code 1 when a call failed or --max-cost-usd was reached, 2 for invalid options or lines
    (then nothing was sent), 7 when a key is missing or rejected, 130 when interrupted.
    """
    options = _Options(**given)
    if options.system is not None and options.system_file is not None:
        raise click.UsageError("--system or --system-file, not both")
    if str(options.file) == "-" and options.results is None:
        raise click.UsageError("with standard input, name a file for the results: --results FILE")
    if str(options.results) == "-":
        raise click.UsageError("--results needs a file, which an interrupted run continues from")
    with config_or_emulator(emulate=options.emulate) as config:
        _map(options, config)


def _map(options: _Options, config: AskConfig) -> None:
    choice = choose(config, options.model, keys=False)
    lines = list(read_lines(read_bytes(options.file), _defaults(options, choice)))
    client = _client(config)
    calls, labels, invalid = _prepare(options, client, lines, _named(options, choice))
    if invalid:
        _stop_for_invalid(options, invalid)
    if not calls:
        print_error_line(f"anaphora: {options.file}: no line to send")
        stop(USAGE)
    if options.restart:
        for file in (options.results_file, state_path(options.results_file)):
            file.unlink(missing_ok=True)
    settings = _settings(options, labels)
    with _shown_progress(options, len(calls)) as shown:
        fan_out: FanOut[Any] = FanOut(calls, settings, shown)
        try:
            result = asyncio.run(_run(client, fan_out))
        except KeyboardInterrupt:
            _print_interrupted(options, fan_out.progress)
            raise
    _report(options, result, labels)


def _defaults(options: _Options, choice: ProviderChoice) -> LineDefaults:
    system = options.system
    if options.system_file is not None:
        system = read_text(options.system_file)
    given = {
        "system": system,
        "max_tokens": options.max_tokens,
    }
    return LineDefaults(
        model=choice.model or "",
        replaces_model=options.model is not None,
        options={name: value for name, value in given.items() if value is not None},
    )


def _client(config: AskConfig) -> AsyncClient:
    """All providers that have a key."""
    if config.environment is not None:
        config.environment.require_any()
        return AsyncClient.of_environment(config.environment)
    providers, problems = {}, list[MissingSecret]()
    for one, missing in resolve_each(config.client, environ=config.environ):
        if missing is None:
            providers[one.id] = one
        else:
            problems.append(missing)
    if not providers and problems:
        raise problems[0]
    routes = {
        name: hops
        for name, hops in config.client.routes.items()
        if all(hop.provider in providers for hop in hops)
    }
    return AsyncClient(providers, routes)


def _named(options: _Options, choice: ProviderChoice) -> str | None:
    """The provider or route that -m names; None: the model decides."""
    return choice.name if (options.model or "").partition("/")[0] == choice.name else None


def _prepare(
    options: _Options, client: AsyncClient, lines: list[MapLine], provider: str | None
) -> tuple[list[OneShot], list[dict[str, object]], list[MapLine]]:
    """The calls, the first fields of their results, and the invalid lines."""
    output = None if options.schema is None else read_schema(options.schema)
    calls, labels, invalid = list[OneShot](), list[dict[str, object]](), list[MapLine]()
    for line in lines:
        if line.call is None:
            invalid.append(line)
            continue
        try:
            call = client.single_call(line.call, provider, output=output)
            call.render()
        except AnaphoraError as problem:
            invalid.append(msgspec.structs.replace(line, problem=str(problem)))
        else:
            calls.append(call)
            labels.append(line.labels())
    return calls, labels, invalid


def _settings(options: _Options, labels: list[dict[str, object]]) -> FanOutSettings:
    keywords: MapOptions = {
        "concurrency": options.concurrency,
        "max_cost_usd": options.max_cost_usd,
        "batch": options.batch,
        "results": options.results_file,
    }
    settings, _, _ = split_options(keywords)
    return msgspec.structs.replace(settings, labels=tuple(labels))


async def _run(client: AsyncClient, fan_out: FanOut[Any]) -> FanOutResult[Any]:
    async with client:
        return await fan_out


# ── Output ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _shown_progress(
    options: _Options, total: int
) -> Iterator[Callable[[FanOutProgress], None] | None]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(progress: FanOutProgress) -> None:
            done = progress.done + progress.failed
            bar.update(task, completed=done, description=_figures(progress))

        yield show


def _figures(progress: FanOutProgress) -> str:
    cost = format_usd(progress.cost_usd)
    if progress.in_flight:
        calls, about = counted(progress.in_flight, "call"), format_usd(progress.in_flight_usd)
        cost += f" (about {about} of it for {calls} in flight)"
    parts = [cost, f"{format_share(progress.read_share)} read from the cache"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.unpriced:
        parts.append(f"{counted(progress.unpriced, 'call')} of unknown cost")
    if progress.batch:
        parts.append(progress.batch)
    return ", ".join(parts)


def _stop_for_invalid(options: _Options, invalid: list[MapLine]) -> NoReturn:
    """Prints the invalid lines; nothing is sent."""
    report_problems(
        f"{options.file}:{line.number}: {one_line(line.problem)}" for line in invalid[:_SHOWN]
    )
    if len(invalid) > _SHOWN:
        report_problems([f"and {len(invalid) - _SHOWN:,} more invalid lines"])
    report_problems(["nothing was sent"])
    stop(USAGE)


def _print_interrupted(options: _Options, progress: FanOutProgress) -> None:
    print_error_line(
        f"anaphora: {progress.done:,} of {progress.total:,} done ({_figures(progress)});"
        f" the same command continues from {options.results_file}"
    )


def _report(
    options: _Options,
    result: FanOutResult[Any],
    labels: list[dict[str, object]],
) -> None:
    errors = [_error(item, labels[item.index]) for item in result.errors]
    if options.as_json:
        print_json(_summary(options, result, errors))
    else:
        progress = result.progress
        resumed = f", {progress.resumed:,} of them earlier" if progress.resumed else ""
        click.echo(f"{progress.done:,} of {progress.total:,} done{resumed}: {_figures(progress)}")
        if progress.warmup_usd:
            click.echo(f"{format_usd(progress.warmup_usd)} of it for pre-warming")
        click.echo(f"results: {options.results_file}")
    if not options.as_json:
        report_problems(
            f"{options.file}:{error['line']}: {error['type']}: {one_line(str(error['message']))}"
            for error in errors[:_SHOWN]
        )
        if len(errors) > _SHOWN:
            report_problems([f"and {len(errors) - _SHOWN:,} more; the results have them all"])
    report_problems(one_line(notice.message) for notice in result.notices)
    if any(isinstance(item.error, Unauthenticated) for item in result.errors):
        stop(UNMET)
    if errors:
        stop(FOUND)


def _error(item: FanOutItem[Any], labels: dict[str, object]) -> dict[str, object]:
    return {**labels, "type": type(item.error).__name__, "message": str(item.error)}


def _summary(
    options: _Options,
    result: FanOutResult[Any],
    errors: list[dict[str, object]],
) -> dict[str, object]:
    progress = result.progress
    return {
        "file": str(options.file),
        "results": str(options.results_file),
        "state": str(state_path(options.results_file)),
        "total": progress.total,
        "done": progress.done,
        "failed": progress.failed,
        "resumed": progress.resumed,
        "calls": progress.calls,
        "cost_usd": result.cost_usd,
        "warmup_usd": progress.warmup_usd,
        "read_tokens": progress.read_tokens,
        "input_tokens": progress.input_tokens,
        "read_share": round(progress.read_share, 4),
        "stop_reason": result.stop_reason,
        "errors": errors,
        "notices": result.notices,
    }
