"""`anaphora translate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._wires import WireName

if TYPE_CHECKING:
    from anaphora.rendered import Request
    from anaphora.values import Notice


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True, exists=True))
@click.option(
    "--to",
    "target",
    required=True,
    type=WireName(dialects=True),
    help="The wire to say it on, or the provider to say it to: `anaphora wires` lists them.",
)
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="The wire it is on, or the provider it was for; found out when left out.",
)
@click.option(
    "--path", default="", help="Where it was sent, for a wire that names the model there."
)
@click.option("--model", help="The model to ask; the one in the request when left out.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="When the request names no limit.")
@click.option("--plan/--no-plan", default=False, help="Place cache breakpoints, too.")
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
    """Say a request on another wire.

    FILE holds the JSON body of a request to one provider (- reads standard input). It is read into
    a call and rendered for the other; what that one cannot express is told on standard error,
    never dropped in silence. Markers of the caller are kept; --plan adds those that the planner
    would place.
    """
    import sys

    from msgspec.structs import replace

    from anaphora import catalog, wire
    from anaphora.cache.plan import plan_once
    from anaphora.errors import InvalidRequest
    from anaphora.rendered import Plan
    from anaphora.wire.detect import detect

    body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    call = wire.get(origin or detect(body)).parse(body, path)
    if model is not None:
        call = replace(call, model=model)
    if max_tokens is not None and call.params.max_tokens is None:
        call = replace(call, params=replace(call.params, max_tokens=max_tokens))
    provider, codec = wire.provider_of(target), wire.get(target)
    if not call.model:
        raise InvalidRequest("the request names no model; say which with --model", path="model")
    rendered = codec.render(call, catalog.profile(provider, call.model))
    if plan:
        rules = catalog.rules(provider, call.model, rendered.wire)
        planned = plan_once(rendered, rules, reuse_expected=True)
    else:
        planned = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = codec.assemble(rendered, planned)
    _show(request, (*rendered.notices, *planned.notices), as_json)


def _show(request: Request, notices: tuple[Notice, ...], as_json: bool) -> None:
    import msgspec

    if as_json:
        told = {
            "method": request.method,
            "path": request.path,
            "headers": dict(request.headers),
            "body": msgspec.Raw(request.body.join()),
            "notices": notices,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
        return
    pretty = msgspec.json.format(request.body.join(), indent=2).decode()
    from ._console import Terminal

    terminal = Terminal()
    if terminal.is_terminal:
        from rich.syntax import Syntax

        terminal.print(Syntax(pretty, "json", background_color="default", word_wrap=True))
    else:
        click.echo(pretty)
    for notice in notices:
        click.echo(click.style(f"notice: {notice} [{notice.code}]", fg="yellow"), err=True)
