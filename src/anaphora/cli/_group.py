"""The group of all commands; a command's module is imported when someone asks for it."""

from __future__ import annotations

import importlib
import pkgutil

import click

from anaphora import cli

NAME = "anaphora"
#: The variable by which a completion script asks for completions.
COMPLETE = "_ANAPHORA_COMPLETE"


class Commands(click.Group):
    """Finds its commands among the modules of `anaphora.cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        names = (module.name for module in pkgutil.iter_modules(cli.__path__))
        return sorted(name for name in names if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"anaphora.cli.{cmd_name}").command
        return command


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 a check found something, 2 usage, 7 a key is missing,"
    " 64 internal error.",
)
@click.version_option(package_name="anaphora", message="%(prog)s %(version)s")
def anaphora() -> None:
    """Say a prompt once, keep its beginning byte-stable, and know what it costs.

    Providers discount a prompt whose beginning they have seen before, and rebuild it at full price
    when one byte of it changes. Anaphora renders prompts so that it does not change, and names the
    byte when it does.

    New here? Start with `anaphora demo`: it needs no key and no network.
    """
