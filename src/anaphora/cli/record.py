"""`anaphora record`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .recorded_run import recording_options, run_recorded

if TYPE_CHECKING:
    from anaphora.replay.player import Player


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option(
    "--mode",
    type=click.Choice(("all", "new", "once")),
    default="all",
    show_default=True,
    help="all: record every call, again where it is recorded. new: answer recorded calls from the"
    " recordings, and record the others. once: record in a new or empty folder, else only replay.",
)
@click.option(
    "--sign",
    "key_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Sign the recordings with this private key: anaphora replay keygen FILE.",
)
@recording_options
def command(
    words: tuple[str, ...],
    mode: Literal["all", "new", "once"],
    key_file: Path | None,
    folder: Path,
    upstreams: tuple[str, ...],
    rules: Path | None,
    port: int,
    as_json: bool,
) -> None:
    """Run a command and record its calls, to replay them offline.

    \b
    anaphora record -- python agent.py
    anaphora replay -- python agent.py

    The calls go through a local proxy: no line of the program changes, and a base URL that is set
    stays the destination. Recordings hold prompts and answers. Keys and other secrets are removed
    before anything is written.

    Exit code: the command's own; 1 when it ended with 0 and an answer could not be recorded.
    """

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player
        from anaphora.replay.signing import SigningKey

        sign = None if key_file is None else SigningKey.read(key_file)
        return Player(folder, mode, rules=rules, secrets=secrets, sign=sign)

    run_recorded(words, player, upstreams=upstreams, port=port, as_json=as_json)
