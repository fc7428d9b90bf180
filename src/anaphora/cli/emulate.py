"""`anaphora emulate`, and `anaphora demo`, the tour that runs on the emulator."""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from .common import EXISTING_FILE, print_json, read_text, require
from .parameters import selected


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8787,
    show_default=True,
    help="Port to listen on; 0 for any free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept, such as a Docker Compose service; * for any.",
)
@click.option("--providers", default="", help="Only these providers, comma-separated.")
@click.option("--script", type=EXISTING_FILE, help="YAML file of scripted replies.")
@click.option("--faults", type=EXISTING_FILE, help="YAML file of faults to inject.")
@click.option("--any-model", is_flag=True, help="Accept unknown models.")
@click.option("--seed", default=0, show_default=True, help="Seed of generated replies and ids.")
@click.option(
    "--latency",
    help="Delay before a reply, and between stream chunks: 200ms or 200ms,10ms. Without it replies"
    " come at once, except that a call which writes to the cache waits 50 ms for calls sent"
    " together with it.",
)
def command(
    port: int,
    host: str,
    allow_hosts: tuple[str, ...],
    providers: str,
    script: Path | None,
    faults: Path | None,
    latency: str | None,
    **options: Any,
) -> None:
    """Run a local emulator of every provider, with caching and billing.

    Anthropic, OpenAI and Gemini answer at their own paths, and every provider below its
    name: http://127.0.0.1:8787/deepseek replaces https://api.deepseek.com. Any key is accepted;
    each key has a workspace and a cache of its own. Requests are listed at /_emulator.
    """
    require("the emulator", "granian", "yaml")
    from anaphora import catalog
    from anaphora.emulator import EmulatorOptions, Latency
    from anaphora.emulator.faults import Faults
    from anaphora.emulator.replies.script import Script
    from anaphora.emulator.server import Emulator, serve

    emulated = EmulatorOptions(
        latency=Latency() if latency is None else Latency.parse(latency),
        providers=selected(providers, (row.provider for row in catalog.dialects().rows)),
        script=Script() if script is None else Script.decode(read_text(script), str(script)),
        faults=Faults() if faults is None else Faults.decode(read_text(faults), str(faults)),
        **options,
    )

    def ready(emulator: Emulator) -> None:
        click.echo(f"emulator: {emulator.url} (requests are listed at {emulator.url}/_emulator)")

    serve(emulated, host=host, port=port, allow_hosts=allow_hosts, ready=ready)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def demo(as_json: bool) -> None:
    """Show what one conversation reads, writes and costs: no key, no network.

    An agent fixes a bug in 20 turns on the local emulator, in three prompt layouts: a careless one,
    a usual one with a stable system prompt and one cache marker, and Anaphora's. The tokens of each
    turn and the bills are shown. Then one change breaks the prompt's prefix, and is found.
    """
    require("the demo", "granian")
    play = _tour("play")
    if as_json:
        print_json(play.play())
        return
    with contextlib.closing(_tour("show").TerminalDisplay()) as display:
        play.play(display.show)


def _tour(name: str) -> ModuleType:
    """A module of the tour: a wheel holds it as `anaphora._tour`, a checkout in examples/."""
    examples = Path(__file__).parents[3] / "examples"
    if not (examples / "tour" / "story.yaml").is_file():
        return import_module(f"anaphora._tour.{name}")
    if str(examples) not in sys.path:
        sys.path.insert(0, str(examples))
    return import_module(f"tour.{name}")
