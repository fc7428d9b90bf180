"""`anaphora explain`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._wires import WireName
from .models import ProviderName

if TYPE_CHECKING:
    from ._explain.turns import Format

_FORMATS = ("trace", "claude_code", "codex", "requests")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="The wire the requests are on, or whose dialect; found out when left out.",
)
@click.option(
    "--provider", type=ProviderName(), help="Whose cache it was, when not the wire's own."
)
@click.option("--model", help="The model that was asked, when the requests do not say.")
@click.option("--path", default="", help="Where they were sent, for a wire that says things there.")
@click.option(
    "--gap",
    type=click.FloatRange(min=0),
    help="Seconds between two requests, when no times are recorded.",
)
@click.option("--format", "format_", type=click.Choice(_FORMATS), help="When it is not recognised.")
@click.option("--all", "everything", is_flag=True, help="Show every hit, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    files: tuple[Path, ...],
    origin: str | None,
    provider: str | None,
    model: str | None,
    path: str,
    gap: float | None,
    format_: Format | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Say why a prompt cache was missed, and what that cost.

    FILES are two or more requests of one conversation (JSON bodies, of any wire, in the order they
    were sent), or logs: recorded traces, sessions of Claude Code or Codex, or request logs with the
    bodies of requests and, where there are, answers. Every call is held against the one before it:
    the sentence, the first bytes that differ, the dollars.

    Exit code 1 when a prefix broke, 0 when none did, 2 when the input cannot be read.
    """
    from ._explain.calls import Asked
    from ._explain.turns import explain

    asked = Asked(origin=origin, provider=provider, model=model, path=path)
    found = explain(files, asked, format_, gap)
    for problem in found.problems:
        click.echo(f"anaphora: {problem}", err=True)
    if not found.turns:
        click.echo("anaphora: nothing to explain", err=True)
        raise click.exceptions.Exit(2)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        from ._explain.show import page

        page(found, everything=everything)
    if found.summary.broke:
        raise click.exceptions.Exit(1)
