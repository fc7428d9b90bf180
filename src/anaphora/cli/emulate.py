"""`anaphora emulate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anaphora.emulator.options import EmulatorOptions
    from anaphora.emulator.server import Emulator

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--port", default=8787, show_default=True, help="Where to listen.")
@click.option("--host", default="127.0.0.1", show_default=True, help="On which address.")
@click.option("--providers", default="", help="Only these, with commas between them.")
@click.option("--script", type=_File, help="A YAML file of answers: match, then reply.")
@click.option("--faults", type=_File, help="A YAML file of what goes wrong, and when.")
@click.option("--seed", default=0, show_default=True, help="Other answers, other ids.")
@click.option("--latency", default="0ms", show_default=True, help="200ms, or 200ms,10ms.")
def command(
    port: int,
    host: str,
    providers: str,
    script: Path | None,
    faults: Path | None,
    seed: int,
    latency: str,
) -> None:
    """Serve every provider here, cached and billed alike.

    Anthropic, OpenAI, Gemini and Ollama answer at their own paths, and everybody under the name of
    the provider: http://127.0.0.1:8787/deepseek stands for https://api.deepseek.com. Any key will
    do, and each is a workspace of its own. The second time of --latency is the one between two
    pieces of a stream. What was asked is shown at /_emulator.
    """
    from importlib.util import find_spec

    for package in ("granian", "starlette", "yaml"):
        if find_spec(package) is None:
            raise click.ClickException(
                f"the emulator needs {package}; install it with: pip install 'anaphora[emulator]'"
            )
    from anaphora.emulator.server import serve

    serve(_options(providers, script, faults, seed, latency), host=host, port=port, ready=_tell)


def _options(
    providers: str, script: Path | None, faults: Path | None, seed: int, latency: str
) -> EmulatorOptions:
    from anaphora import catalog
    from anaphora.emulator.faults import Faults
    from anaphora.emulator.options import EmulatorOptions, Latency
    from anaphora.emulator.replies.script import Script
    from anaphora.errors import InvalidRequest

    wanted = tuple(name.strip() for name in providers.split(",") if name.strip())
    known = {row.provider for row in catalog.dialects().rows}
    for name in wanted:
        if name not in known:
            raise InvalidRequest(
                f"{name!r} is none of {', '.join(sorted(known))}", path="--providers"
            )
    return EmulatorOptions(
        seed=seed,
        latency=Latency.parse(latency),
        providers=wanted,
        script=Script() if script is None else Script.decode(script.read_text(), str(script)),
        faults=Faults() if faults is None else Faults.decode(faults.read_text(), str(faults)),
    )


def _tell(emulator: Emulator) -> None:
    click.echo(f"emulator: {emulator.url}, and what is asked of it at {emulator.url}/_emulator")
