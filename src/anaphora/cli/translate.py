"""`anaphora translate`"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from msgspec.structs import replace
from rich.syntax import Syntax

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.errors import InvalidRequest
from anaphora.rendered import Plan
from anaphora.wire import detect

from .common import WireName, print_json, read_bytes
from .terminal import YELLOW, Terminal, for_stderr


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
    rendered for the other provider; whatever that one cannot express is reported on standard error.
    Cache markers of the request are kept; --plan adds those that the planner would place.
    """
    body = read_bytes(file)
    call = wire.get(origin or detect(body)).parse(body, path)
    if model is not None:
        call = replace(call, model=model)
    if max_tokens is not None and call.params.max_tokens is None:
        call = replace(call, params=replace(call.params, max_tokens=max_tokens))
    provider, codec = wire.provider_of(target), wire.get(target)
    if not call.model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    rendered = codec.render(call, catalog.profile(provider, call.model))
    if plan:
        rules = catalog.rules(provider, call.model, rendered.wire)
        planned = plan_once(rendered, rules, reuse_expected=True)
    else:
        planned = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = codec.assemble(rendered, planned)
    body, notices = request.body.join(), (*rendered.notices, *planned.notices)
    if as_json:
        fields = {"method": request.method, "path": request.path, "headers": dict(request.headers)}
        print_json(fields | {"body": msgspec.Raw(body), "notices": notices})
        return
    pretty = msgspec.json.format(body, indent=2).decode()
    terminal = Terminal()
    if terminal.is_terminal:
        terminal.print(Syntax(pretty, "json", background_color="default", word_wrap=True))
    else:
        click.echo(pretty)
    for notice in notices:
        line = for_stderr(f"notice: {notice} [{notice.code}]", YELLOW)
        click.echo(line, err=True, color=True)
