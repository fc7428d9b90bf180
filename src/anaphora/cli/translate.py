"""`anaphora translate`: requests in another format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace
from rich.syntax import Syntax

from anaphora import catalog, wire
from anaphora.client.forced_choice import without_forced_choice
from anaphora.errors import InvalidRequest
from anaphora.rendered import Plan
from anaphora.values import Notice
from anaphora.wording import visible

from .common import print_json, read_bytes
from .parameters import WireName
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
    help="Target wire or provider; such as `deepseek` or `openai_chat`.",
)
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="Wire or provider of the request; detected by default.",
)
@click.option("--model", help="Target model; by default the one in the request.")
@click.option("--json", "as_json", is_flag=True, help="Print request and notices as one object.")
def command(
    file: Path,
    target: str,
    origin: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Convert a request to another provider's format.

    FILE holds the JSON body of a request to one provider (- reads standard input). It is parsed and
    rendered for the other provider; features that it lacks are reported on standard error.
    Cache markers of the request are kept. The model
    stays the same unless --model names another one: a notice says if the other provider is not
    known to have it.
    """
    body = read_bytes(file)
    detected = wire.detect_wire(body) if origin is None else wire.DetectedWire(origin)
    call = wire.get(detected.name).parse(body)
    if model is not None:
        call = replace(call, model=model)
    provider, codec = wire.provider_of(target), wire.get(target)
    call = wire.host_marks(call, detected.name, target)
    if not call.model:
        raise InvalidRequest("the request names no model; pass --model", path="model")
    profile = catalog.profile(provider, call.model)
    call, unforced = without_forced_choice(call, profile)
    rendered = codec.render(call, profile)
    planned = Plan(marks=rendered.marks, automatic=rendered.automatic)
    request = codec.assemble(rendered, planned)
    body, notices = request.body.join(), (*unforced, *rendered.notices)
    if provider != wire.provider_of(detected.name) or model is not None:
        notices = (*_unknown_model(provider, call.model), *notices)
    if detected.guess:
        notices = (
            Notice("wire_guessed", f"{detected.guess}; --from chooses another wire"),
            *notices,
        )
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
        advice = f"name its counterpart with --model (`anaphora models {provider}`)"
    whose = f", a model of {maker}" if maker is not None and maker != provider else ""
    message = f"{provider} is not known to have {model}{whose}: {advice}"
    yield Notice("model_unknown", message, "model")
