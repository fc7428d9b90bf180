"""`anaphora config schema` and `anaphora completion`; how providers of llm.yaml are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from anaphora.redaction import shown_name

from .common import COMPLETE, NAME, CommandGroup, print_json

if TYPE_CHECKING:
    from anaphora.client.config import ClientConfig
    from anaphora.client.config.secrets import ResolvedProvider

    from .terminal import Line


@click.group(cls=CommandGroup)
def command() -> None:
    """Print the JSON Schema of llm.yaml."""


@command.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of llm.yaml, for editors."""
    from anaphora.daemon.home.config import schema

    print_json(schema())


def key_shown(one: ResolvedProvider) -> str:
    """Where the key of a provider is found, or its credentials."""
    found = str(one.provider.key or _credentials(one) or "none")
    if found == "none" and one.cloud is not None:
        found += ": this machine's credentials are not sent over http:"
    return found


def _credentials(one: ResolvedProvider) -> str | None:
    """Where the credentials of a cloud are found."""
    if one.credentials is None or one.cloud is None:
        return None
    given = one.provider.credentials
    for cloud in () if given is None else given.clouds:
        account = getattr(given, cloud)
        for name in account.__struct_fields__:
            value = getattr(account, name)
            if value is not None and not isinstance(value, bool):
                shown = shown_name(value) if isinstance(value, str) else str(value)
                return f"{cloud}: {name} {shown}"
    return f"{one.cloud.kind}: ambient"


def provider_lines(
    config: ClientConfig, providers: Mapping[str, ResolvedProvider]
) -> Iterator[Line]:
    """A table of the providers, the routes, and notes; never a key."""
    from .terminal import table

    rows = table("provider", "wire", "address", "key", "model")
    for id, one in providers.items():
        key = key_shown(one) if one.provider.key is None else f"from {one.provider.key}"
        rows.add_row(id, one.wire, one.shown_url, key, one.provider.model or "")
    yield rows
    yield from (f"route {name}: {_hops(config, name)}" for name in config.routes)
    yield from (f"note: {notice}" for one in providers.values() for notice in one.notices)


def _hops(config: ClientConfig, name: str) -> str:
    """`a ×3, b ×1, then c`: weighted hops first, then the others in order."""
    weighted, others = [], []
    for hop in config.routes[name]:
        target = hop.provider if hop.model is None else f"{hop.provider}/{hop.model}"
        if hop.weight:
            weighted.append(f"{target} ×{hop.weight:g}")
        else:
            others.append(target)
    return ", then ".join([*([", ".join(weighted)] if weighted else []), *others])


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  echo 'eval "$(anaphora completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(anaphora completion zsh)"' >> ~/.zshrc
    fish:  anaphora completion fish > ~/.config/fish/completions/anaphora.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(ctx.find_root().command, {}, NAME, COMPLETE).source())
