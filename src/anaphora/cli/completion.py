"""`anaphora completion SHELL`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .common import COMPLETE, NAME


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  echo 'eval "$(anaphora completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(anaphora completion zsh)"' >> ~/.zshrc
    fish:  anaphora completion fish > ~/.config/fish/completions/anaphora.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(ctx.find_root().command, {}, NAME, COMPLETE).source())
