"""`anaphora map`"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from anaphora.catalog import Effort
from anaphora.client.client import AsyncClient
from anaphora.client.config.resolve import resolve_each
from anaphora.client.fan_out import FanOut, FanOutItem, FanOutProgress, FanOutResult, FanOutSettings
from anaphora.client.fan_out.kept import state_path
from anaphora.client.fan_out.values import split_options
from anaphora.client.oneshot import OneShot
from anaphora.client.options import MapOptions, WarmUp
from anaphora.errors import AnaphoraError, MissingSecret, Unauthenticated
from anaphora.wording import counted, format_usd

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
from .parameters import NumberRange, Time, WireName
from .provider_choice import (
    AskConfig,
    choose,
    complete_model,
    complete_provider,
    config_or_emulator,
    read_schema,
)
from .terminal import one_line

#: Problems that are printed before the rest becomes a number.
_SHOWN = 20


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    file: Path
    model: str | None
    provider: str | None
    system: str | None
    system_file: Path | None
    schema: Path | None
    origin: str | None
    max_tokens: int | None
    temperature: float | None
    effort: str | None
    concurrency: int
    max_cost_usd: str | None
    warm: WarmUp
    visibility_delay: float | None
    batch: bool
    results: Path | None
    restart: bool
    skip_invalid: bool
    config: Path | None
    emulate: bool
    as_json: bool
    quiet: bool

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
@click.option("-m", "--model", shell_complete=complete_model, help="MODEL, or PROVIDER/MODEL.")
@click.option("-p", "--provider", shell_complete=complete_provider, help="Provider or route.")
@click.option("-s", "--system", help="System prompt of lines with a prompt.")
@click.option("--system-file", type=EXISTING_FILE, help="System prompt from a file.")
@click.option("--schema", type=EXISTING_FILE, help="JSON Schema that every answer must conform to.")
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="Wire or provider of the requests; detected by default.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of output tokens of a call.")
@click.option("--temperature", type=NumberRange(0, 2), help="Sampling temperature.")
@click.option("--effort", type=click.Choice(get_args(Effort)), help="Reasoning effort.")
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
    "--warm",
    type=click.Choice(get_args(WarmUp)),
    default="auto",
    show_default=True,
    help="How a shared prefix is written: by the first call, by a pre-warm, or not at all.",
)
@click.option(
    "--visibility-delay",
    type=Time("s"),
    help="Wait before a written prefix is read; by default the provider's known delay.",
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
@click.option("--skip-invalid", is_flag=True, help="Send the other lines when some are invalid.")
@click.option("--config", type=EXISTING_FILE, help="Configuration to use instead of llm.yaml.")
@click.option("--emulate", is_flag=True, help="Use the local emulator: no key, no network.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
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
    if options.emulate and options.config is not None:
        raise click.UsageError("--emulate or --config, not both")
    if options.system is not None and options.system_file is not None:
        raise click.UsageError("--system or --system-file, not both")
    if str(options.file) == "-" and options.results is None:
        raise click.UsageError("with standard input, name a file for the results: --results FILE")
    if str(options.results) == "-":
        raise click.UsageError("--results needs a file, which an interrupted run continues from")
    with config_or_emulator(options.config, emulate=options.emulate) as config:
        _map(options, config)


def _map(options: _Options, config: AskConfig) -> None:
    lines = list(read_lines(read_bytes(options.file), _defaults(options, config)))
    client = _client(config)
    calls, labels, invalid = _prepare(options, client, lines)
    if invalid:
        _report_invalid(options, invalid)
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
    _report(options, result, labels, invalid)


def _defaults(options: _Options, config: AskConfig) -> LineDefaults:
    system = options.system
    if options.system_file is not None:
        system = read_text(options.system_file)
    given = {
        "system": system,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "reasoning": options.effort,
    }
    choice = choose(config, options.provider, options.model, keys=False)
    return LineDefaults(
        model=choice.model or "",
        replaces_model=options.model is not None,
        options={name: value for name, value in given.items() if value is not None},
        origin=options.origin,
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


def _prepare(
    options: _Options, client: AsyncClient, lines: list[MapLine]
) -> tuple[list[OneShot], list[dict[str, object]], list[MapLine]]:
    """The calls, the first fields of their results, and the invalid lines."""
    output = None if options.schema is None else read_schema(options.schema)
    calls, labels, invalid = list[OneShot](), list[dict[str, object]](), list[MapLine]()
    for line in lines:
        if line.call is None:
            invalid.append(line)
            continue
        try:
            call = client.single_call(line.call, options.provider, output=output)
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
        "warm": options.warm,
        "visibility_delay": options.visibility_delay,
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
    if options.quiet or not sys.stderr.isatty():
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
    parts = [cost, f"{progress.read_share:.0%} read from the cache"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.unpriced:
        parts.append(f"{counted(progress.unpriced, 'call')} of unknown cost")
    if progress.batch:
        parts.append(progress.batch)
    return ", ".join(parts)


def _report_invalid(options: _Options, invalid: list[MapLine]) -> None:
    """Prints each invalid line; stops unless the others are wanted."""
    report_problems(
        f"{options.file}:{line.number}: {one_line(line.problem)}" for line in invalid[:_SHOWN]
    )
    if len(invalid) > _SHOWN:
        report_problems([f"and {len(invalid) - _SHOWN:,} more invalid lines"])
    if not options.skip_invalid:
        report_problems(["nothing was sent; --skip-invalid sends the other lines"])
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
    invalid: list[MapLine],
) -> None:
    errors = [_error(item, labels[item.index]) for item in result.errors]
    if options.as_json:
        print_json(_summary(options, result, errors, invalid))
    elif not options.quiet:
        progress = result.progress
        resumed = f", {progress.resumed:,} of them earlier" if progress.resumed else ""
        click.echo(f"{progress.done:,} of {progress.total:,} done{resumed}: {_figures(progress)}")
        if progress.warmup_usd:
            click.echo(f"${progress.warmup_usd:.4f} of it for pre-warming")
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
    if errors or invalid:
        stop(FOUND)


def _error(item: FanOutItem[Any], labels: dict[str, object]) -> dict[str, object]:
    return {**labels, "type": type(item.error).__name__, "message": str(item.error)}


def _summary(
    options: _Options,
    result: FanOutResult[Any],
    errors: list[dict[str, object]],
    invalid: list[MapLine],
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
        "invalid": [{**line.labels(), "message": line.problem} for line in invalid],
        "notices": result.notices,
    }
