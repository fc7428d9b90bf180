"""`anaphora init` and `anaphora secrets`: a daemon's home folder, and the keys in it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from anaphora.client.config.secrets import Secret
from anaphora.errors import AnaphoraError
from anaphora.redaction import hides_arguments

from .common import CommandGroup, read_stdin, report_problems
from .daemon_connection import home_option, json_option, open_home
from .terminal import Line, print_report


@click.group(cls=CommandGroup)
def command() -> None:
    """Store the keys of providers in the daemon's home folder.

    llm.yaml names them: `key: {secret: NAME}`.
    """


@command.command("set")
@click.argument("name")
@home_option
def set_secret(name: str, home: Path) -> None:
    """Store a key as NAME, which is in capital letters: ANTHROPIC_API_KEY.

    The key is read from the terminal, where it is not shown, or from standard input: `pass show
    anthropic | anaphora secrets set ANTHROPIC_API_KEY`. A running daemon uses it from the next call
    on.
    """
    from anaphora.daemon.home.secrets import SecretsFolder

    opened = open_home(home)
    folder = SecretsFolder(opened.secrets)
    folder.path(name)  # refuses an invalid name before it asks for the key
    path = folder.write(name, _read_key(name))
    click.echo(f"stored {path}", err=True)
    try:
        providers = opened.config().providers.values()
    except AnaphoraError as problem:  # the key is stored
        report_problems([f"warning: {problem}"])
        return
    if all(one.key is None or one.key.secret != name for one in providers):
        report_problems([f"warning: no provider of llm.yaml has `key: {{secret: {name}}}`"])


@command.command("list")
@home_option
@json_option
def list_secrets(home: Path, as_json: bool) -> None:
    """List the names of the keys that are stored."""
    from anaphora.daemon.home.secrets import SecretsFolder

    names = SecretsFolder(open_home(home).secrets).names()
    lines: list[Line] = [*names] or ["no secrets"]
    print_report({"secrets": names}, lines, as_json=as_json)


@hides_arguments
def _read_key(name: str) -> Secret:
    from anaphora.daemon.home.secrets import MAX_BYTES

    if sys.stdin is not None and sys.stdin.isatty():
        import getpass

        return Secret(getpass.getpass(f"{name}: "))
    return Secret(read_stdin(MAX_BYTES + 3).decode("utf-8", "replace"))


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print what was created as JSON.")
def init(folder: Path, as_json: bool) -> None:
    """Create the home folder of a daemon.

    Writes into DIR a commented llm.yaml (providers), a commented extensions.yaml (what each app may
    do), and an empty folder for keys, all readable by you only. What is there already stays as it
    is.

    Then store a key and start the daemon; with `anaphora serve --emulate` no key is needed.
    """
    from anaphora.daemon.home import init

    created = init(folder)
    lines: list[str] = [f"created {path}" for path in created] or ["everything is there already"]
    lines += [
        "",
        "next:",
        f"  anaphora secrets set ANTHROPIC_API_KEY --home {folder}",
        f"  anaphora apps add my-app --home {folder}",
        f"  anaphora serve --home {folder}    (with --emulate no key is needed)",
    ]
    report = {"home": str(folder.resolve()), "created": [str(path) for path in created]}
    print_report(report, lines, as_json=as_json)
