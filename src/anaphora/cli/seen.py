"""`anaphora seen show` and `anaphora seen clear`"""

from __future__ import annotations

import time

import click

from anaphora.client.seen import seen_path
from anaphora.client.seen_file import SeenFigures, clear_seen, seen_figures
from anaphora.wording import counted

from .common import FOUND, CommandGroup, print_json, report_problems, stop


@click.group(cls=CommandGroup)
def command() -> None:
    """Show or clear the index of prompt beginnings that were sent before.

    `ask`, `map` and `watch --fix` store a keyed digest of each prompt's beginning, with times and
    lengths but no text, in anaphora/seen.sqlite in the user's cache folder. The next process learns
    from it which beginnings recur, and marks them at its first call. Programs that use the library
    do so with remember=True or ANAPHORA_REMEMBER=1; ANAPHORA_REMEMBER=0 turns it off for commands.
    """


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(as_json: bool) -> None:
    """Show how many beginnings the index holds, and how old they are.

    Exit code 1 when the file cannot be used: calls go on without it, and `anaphora seen clear`
    removes it.
    """
    figures = seen_figures(seen_path())
    if as_json:
        print_json(figures)
    elif figures.state == "unusable":
        report_problems([f"{figures.path}: cannot be used: {figures.problem}"])
    else:
        click.echo("\n".join(_lines(figures)))
    if figures.state == "unusable":
        stop(FOUND)


def _lines(figures: SeenFigures) -> list[str]:
    if figures.state == "missing":
        return [f"{figures.path}: does not exist yet"]
    lines = [
        f"{figures.path}: {figures.bytes / 1e6:.1f} MB",
        f"{counted(figures.beginnings, 'beginning')}, {figures.returning:,} of them sent again",
    ]
    if figures.oldest is not None and figures.newest is not None:
        lines.append(f"last used between {_minute(figures.oldest)} and {_minute(figures.newest)}")
    return lines


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clear(as_json: bool) -> None:
    """Forget all beginnings. A file that cannot be used is removed."""
    dropped = clear_seen(seen_path())
    if as_json:
        print_json({"path": str(seen_path()), "cleared": dropped})
    else:
        click.echo(f"cleared {counted(dropped, 'beginning')}")
