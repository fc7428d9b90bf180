"""`anaphora replay`: runs a command on recorded responses; its subcommands work on recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from . import replay_folder
from .common import RunGroup, command_after_dashes
from .recorded_run import recording_options, run_recorded

if TYPE_CHECKING:
    from anaphora.replay.player import Player


@click.group(cls=RunGroup)
@click.option(
    "--repeat",
    type=click.Choice(("never", "last")),
    default="never",
    show_default=True,
    help="What a request gets that is made more often than it was recorded: an error, or the last"
    " answer again.",
)
@click.option(
    "--match",
    type=click.Choice(("exact", "nearest")),
    default="exact",
    show_default=True,
    help="nearest: answer a request that was not recorded with the nearest recording, and report"
    " the difference.",
)
@click.option("--pace", is_flag=True, help="Stream as fast as the answer came.")
@replay_folder.signed_by_option
@recording_options
@click.pass_context
def command(
    ctx: click.Context,
    repeat: Literal["never", "last"],
    match: Literal["exact", "nearest"],
    pace: bool,
    signed_by: str | None,
    folder: Path,
    upstreams: tuple[str, ...],
    rules: Path | None,
    port: int,
    as_json: bool,
) -> None:
    """Run a command on recorded responses, or verify and list recordings.

    \b
    anaphora replay --dir DIR -- COMMAND...    run a command offline
    anaphora replay verify DIR                 check the files of a folder

    The options below go with COMMAND. It needs neither a network nor a key: where no key is set, it
    gets a placeholder. A request that was not recorded gets an error that names the nearest
    recording and the first difference.

    Exit code: the command's own; 1 when it ended with 0 and a request was not recorded; before
    anything runs, 5 when the folder failed its integrity check, 3 when its signature does not
    match.
    """
    if ctx.invoked_subcommand is not None:
        return
    from anaphora.proxy.programs import with_placeholder_keys

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player
        from anaphora.replay.signing import public_key

        return Player(
            folder,
            "none",
            repeat=repeat,
            match=match,
            rules=rules,
            secrets=secrets,
            signed_by=None if signed_by is None else public_key(signed_by),
        )

    run_recorded(
        command_after_dashes(ctx),
        player,
        upstreams=upstreams,
        pace=pace,
        port=port,
        as_json=as_json,
        prepare=with_placeholder_keys,
    )


for subcommand in replay_folder.SUBCOMMANDS:
    command.add_command(subcommand)
