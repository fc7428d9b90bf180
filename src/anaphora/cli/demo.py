"""`anaphora demo`"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from .common import print_json, require, selected


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option("--providers", default="", help="Only these providers, comma-separated.")
@click.option("--no-engine", is_flag=True, help="Leave out llama.cpp's server.")
def command(as_json: bool, providers: str, no_engine: bool) -> None:
    """Run the tour: no key, no network, under a minute.

    A local emulator of every provider starts, and an agent fixes a bug in 20 turns at each of them
    in three prompt layouts: a careless one, a usual one with a stable system prompt and one cache
    marker, and Anaphora's. Each is billed. Then one change breaks the prompt's
    prefix, and is found. Last, the same prompt goes to llama.cpp's own server, cold and warm, where
    that is installed.
    """
    require("the demo", "granian", "starlette")
    play = _tour("play")
    every = play.STORY.stops
    wanted = selected(providers, (stop.provider for stop in every))
    stops = tuple(stop for stop in every if not wanted or stop.provider in wanted)
    display = play.Display() if as_json else _tour("show").TerminalDisplay()
    report = play.play(stops, display, llama=not no_engine)
    if as_json:
        print_json(report)


def _tour(name: str) -> ModuleType:
    """A module of the tour: a wheel holds it as `anaphora._tour`, a checkout in examples/."""
    examples = Path(__file__).parents[3] / "examples"
    if not (examples / "tour" / "story.yaml").is_file():
        return import_module(f"anaphora._tour.{name}")
    if str(examples) not in sys.path:
        sys.path.insert(0, str(examples))
    return import_module(f"tour.{name}")
