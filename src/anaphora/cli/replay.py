"""`anaphora replay`: runs a command on recorded responses; its subcommands work on recordings."""

from __future__ import annotations

import click

from . import replay_folder
from .common import RunGroup, command_after_dashes


@click.group(cls=RunGroup)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run COMMAND on recorded responses, or verify and list recordings.

    \b
    anaphora replay --dir DIR -- COMMAND...    run a command offline
    anaphora replay verify DIR                 check the files of a folder
    """
    if ctx.invoked_subcommand is None:
        command_after_dashes(ctx)


for subcommand in replay_folder.SUBCOMMANDS:
    command.add_command(subcommand)
