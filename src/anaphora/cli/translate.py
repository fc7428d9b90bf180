"""`anaphora translate` and `anaphora roundtrip`: requests in another format, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace
from rich.syntax import Syntax

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.client.forced_choice import without_forced_choice
from anaphora.errors import InvalidRequest
from anaphora.rendered import Plan
from anaphora.values import Notice
from anaphora.wire.reading import DECODE_ERRORS, decode_reason
from anaphora.wording import visible

from .common import FOUND, print_json, read_bytes, report_problems, stop
from .parameters import WireName
from .terminal import YELLOW, Line, Terminal, for_stderr, print_report, table

if TYPE_CHECKING:
    from anaphora.analysis.roundtrip import RecordedExchange, RoundTripResult
    from anaphora.analysis.trace.log_lines import Problem


@click.command()
@click.argument(
    "file", type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False)
)
@click.option(
    "--to",
    "target",
    required=True,
    type=WireName(dialects=True),
    help="Target wire or provider; `anaphora wires` lists them.",
)
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="Wire or provider of the request; detected by default.",
)
@click.option("--path", default="", help="URL path it was sent to, for wires that use it.")
@click.option("--model", help="Target model; by default the one in the request.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Used when the request has none.")
@click.option("--plan/--no-plan", default=False, help="Also place cache breakpoints.")
@click.option("--json", "as_json", is_flag=True, help="Print request and notices as one object.")
def command(
    file: Path,
    target: str,
    origin: str | None,
    path: str,
    model: str | None,
    max_tokens: int | None,
    plan: bool,
    as_json: bool,
) -> None:
    """Convert a request to another provider's format.

    FILE holds the JSON body of a request to one provider (- reads standard input). It is parsed and
    rendered for the other provider; features that it lacks are reported on standard error.
    Cache markers of the request are kept; --plan adds those that the planner would place. The model
    stays the same unless --model names another one: a notice says if the other provider is not
    known to have it.
    """
    body = read_bytes(file)
    detected = wire.detect_wire(body) if origin is None else wire.DetectedWire(origin)
    call = wire.get(detected.name).parse(body, path)
    if model is not None:
        call = replace(call, model=model)
    if max_tokens is not None and call.params.max_tokens is None:
        call = replace(call, params=replace(call.params, max_tokens=max_tokens))
    provider, codec = wire.provider_of(target), wire.get(target)
    call = wire.host_marks(call, detected.name, target)
    if not call.model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    profile = catalog.profile(provider, call.model)
    call, unforced = without_forced_choice(call, profile)
    rendered = codec.render(call, profile)
    if plan:
        rules = catalog.rules(provider, call.model, rendered.wire)
        planned = plan_once(rendered, rules, reuse_expected=True)
    else:
        planned = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = codec.assemble(rendered, planned)
    body, notices = request.body.join(), (*unforced, *rendered.notices, *planned.notices)
    if provider != wire.provider_of(detected.name) or model is not None:
        notices = (*_unknown_model(provider, call.model), *notices)
    if detected.guess:
        notices = (Notice("wire_guessed", detected.guess), *notices)
    if as_json:
        fields = {"method": request.method, "path": request.path, "headers": dict(request.headers)}
        print_json(fields | {"body": msgspec.Raw(body), "notices": notices})
        return
    pretty = msgspec.json.format(body, indent=2).decode()
    terminal = Terminal()
    if terminal.is_terminal:
        shown = visible(pretty, keep="\n")
        terminal.print(Syntax(shown, "json", background_color="default", word_wrap=True))
    else:
        click.echo(pretty)
    for notice in notices:
        line = for_stderr(visible(f"notice: {notice} [{notice.code}]"), YELLOW)
        click.echo(line, err=True, color=True)


def _unknown_model(provider: str, model: str) -> Iterator[Notice]:
    """A notice if a provider is not known to have a model. A self-hosted server may have any model
    without a known maker."""
    if catalog.profile(provider, model).known:
        return
    maker = catalog.maker_of(model)
    if maker is None and not catalog.is_maker(provider):
        return
    near = catalog.similar_model(provider, model)
    if near:
        advice = f"did you mean --model {near}?"
    else:
        advice = f"name its counterpart with --model (`anaphora models --provider {provider}`)"
    whose = f", a model of {maker}" if maker is not None and maker != provider else ""
    message = f"{provider} is not known to have {model}{whose}: {advice}"
    yield Notice("model_unknown", message, "model")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--wire", "only", type=WireName(), help="Only exchanges of this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def roundtrip(files: tuple[Path, ...], only: str | None, as_json: bool) -> None:
    """Check that recorded exchanges survive parsing and rendering.

    Each line of FILES (JSON lines, gzipped or not; a folder stands for the logs in it) is one
    exchange: `id`, `wire`, `status`, `stream`, `request` and `response`, both bodies as text (a
    binary stream as `response_base64`). Every request is parsed and rendered again, every response
    is read and written again; the meaning must stay the same. Requests that count tokens or create
    cached contents are read as the call that they contain; bodies of other makers at Bedrock are
    not read. Exchanges of unknown wires are counted and skipped.

    Input that cannot be read is reported on standard error. Exit code 1 when something was lost or
    could not be read, 2 when no exchange was checked.
    """
    from anaphora.analysis.roundtrip.other_exchanges import OTHER
    from anaphora.analysis.roundtrip.rules import check

    from .log_files import stop_empty

    outcomes: list[RoundTripResult] = []
    skipped: Counter[str] = Counter()
    problems = []
    for exchange in _exchanges(files):
        if isinstance(exchange, str):
            problems.append(exchange)
        elif only is not None and exchange.wire_name != only:
            continue
        elif exchange.wire_name in wire.WIRES or exchange.wire in OTHER:
            outcomes.append(check(exchange))
        else:
            skipped[exchange.wire] += 1
    if not outcomes:
        unknown = (f"unknown wire {name!r} ({count})" for name, count in sorted(skipped.items()))
        of = "" if only is None else f" of {only}"
        stop_empty([*problems, *unknown], f"no exchanges{of} to check")
    report_problems(problems)
    report = {"outcomes": outcomes, "skipped": dict(skipped)}
    print_report(report, _lines(outcomes, skipped), as_json=as_json)
    if problems or not all(outcome.good for outcome in outcomes):
        stop(FOUND)


def _exchanges(files: tuple[Path, ...]) -> Iterator[RecordedExchange | str]:
    """The exchanges; for a line that cannot be read, the reason."""
    from anaphora.analysis.roundtrip import RecordedExchange
    from anaphora.usage.log_files import files_in, lines_of

    decode = msgspec.json.Decoder(RecordedExchange).decode
    problems: list[Problem] = []
    for file in files_in(files, problems):
        for line in lines_of(file, problems):
            try:
                yield decode(line.data)
            except DECODE_ERRORS as problem:
                yield f"{line.place}: {decode_reason(problem, line.data)}"
    yield from map(str, problems)


def _lines(outcomes: list[RoundTripResult], skipped: Counter[str]) -> Iterator[Line]:
    counts = ("exchanges", "parsed", "same meaning", "read", "losses")
    rows = table("wire", *counts, right=counts)
    for name in sorted({outcome.wire for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.wire == name]
        rows.add_row(
            name,
            str(len(mine)),
            str(sum(not outcome.unparsed for outcome in mine)),
            str(sum(not outcome.unparsed and not outcome.changed for outcome in mine)),
            str(sum(not outcome.unreadable for outcome in mine)),
            str(sum(bool(outcome.lost) for outcome in mine)),
        )
    yield rows
    overlooked: Counter[str] = Counter()
    for outcome in outcomes:
        overlooked.update({f"{outcome.wire}: {name}": n for name, n in outcome.overlooked.items()})
    if overlooked:
        yield "\nNormalisations, and how often each was needed"
        yield from (f"  {count:6}  {name}" for name, count in sorted(overlooked.items()))
    failed = [outcome for outcome in outcomes if not outcome.good]
    if failed:
        yield "\nFailed"
        yield from (f"  {one.wire} {one.id}: {_failure(one)}" for one in failed)
    if skipped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(skipped.items()))
        yield f"\nSkipped, unknown wire: {names}"


def _failure(outcome: RoundTripResult) -> str:
    failures = (
        ("request not read:", outcome.unparsed),
        ("request changed at", outcome.changed),
        ("response not read:", outcome.unreadable),
        ("response lost", outcome.lost),
    )
    return "; ".join(f"{label} {detail}" for label, detail in failures if detail)
