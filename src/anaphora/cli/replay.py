"""`anaphora replay` runs a command on recorded responses, `anaphora record` makes the recordings.
The subcommands of `replay` work on recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from . import replay_folder
from .common import RunGroup, command_after_dashes
from .recorded_run import RecordedRun, recording_options, run_recorded

if TYPE_CHECKING:
    from anaphora.replay.player import Player


@click.group(cls=RunGroup)
@click.option(
    "--repeat",
    type=click.Choice(("never", "last")),
    default="never",
    show_default=True,
    help="Response to a request that is sent more often than it was recorded: an error, or the last"
    " answer again.",
)
@click.option("--pace", is_flag=True, help="Stream at the recorded speed.")
@replay_folder.signed_by_option
@recording_options
@click.pass_context
def command(
    ctx: click.Context,
    repeat: Literal["never", "last"],
    pace: bool,
    signed_by: str | None,
    options: RecordedRun,
) -> None:
    """Run a command on recorded responses, or verify and list recordings.

    \b
    anaphora replay --dir DIR -- COMMAND...    run a command offline
    anaphora replay verify DIR                 check the files of a folder

    The options below go with COMMAND. It needs neither a network nor a key: a missing key is
    replaced by a placeholder. Working directory, home folder and date may differ from the
    recordings. A request that was not recorded gets an error that names the nearest recording and
    the first difference.

    Exit code: the command's own; 1 when it ended with 0 and a request was not recorded; before
    anything runs, 5 when the folder failed its integrity check, 3 when its signature does not
    match.
    """
    if ctx.invoked_subcommand is not None:
        return

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player
        from anaphora.replay.signing import public_key

        return Player(
            options.folder,
            "none",
            repeat=repeat,
            rules=options.rules,
            secrets=secrets,
            signed_by=None if signed_by is None else public_key(signed_by),
        )

    run_recorded(
        command_after_dashes(ctx),
        player,
        options,
        pace=pace,
        offline=True,
    )


for subcommand in replay_folder.SUBCOMMANDS:
    command.add_command(subcommand)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option(
    "--mode",
    type=click.Choice(("all", "new", "once")),
    default="all",
    show_default=True,
    help="all: record every call, even if a recording exists. new: answer recorded calls from the"
    " recordings, and record the others. once: record in a new or empty folder, else only replay.",
)
@click.option(
    "--sign",
    "key_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Sign the recordings with the private key in FILE, which is created if it is missing.",
)
@recording_options
def record(
    words: tuple[str, ...],
    mode: Literal["all", "new", "once"],
    key_file: Path | None,
    options: RecordedRun,
) -> None:
    """Run a command and record its calls, to replay them offline.

    \b
    anaphora record -- python agent.py
    anaphora replay -- python agent.py

    The calls go through a local proxy. The program is not changed, and a base URL that you have set
    remains the destination. Recordings hold prompts and answers. Keys and other secrets are removed
    before anything is written.

    Exit code: the command's own; 1 when it ended with 0 and an answer could not be recorded.
    """

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player

        sign = None if key_file is None else replay_folder.signing_key(key_file)
        return Player(options.folder, mode, rules=options.rules, secrets=secrets, sign=sign)

    run_recorded(words, player, options)
