"""`anaphora config` and `anaphora completion`, which shells run when they start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.shell_completion import get_completion_class

from anaphora.redaction import shown_name

from .common import (
    COMPLETE,
    EXISTING_FILE,
    NAME,
    UNMET,
    CommandGroup,
    print_json,
    report_problems,
    stop,
)

if TYPE_CHECKING:
    from anaphora.client.config import ClientConfig
    from anaphora.client.config.secrets import ResolvedProvider
    from anaphora.errors import MissingSecret

    from .terminal import Line

    Resolutions: TypeAlias = list[tuple[ResolvedProvider, MissingSecret | None]]


@click.group(cls=CommandGroup)
def command() -> None:
    """Check llm.yaml, or print its JSON Schema."""


@command.command()
@click.argument("file", type=EXISTING_FILE, default="llm.yaml")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Validate FILE (llm.yaml) and look up every key it names.

    Prints the wire, the address and the key's location of each provider, and whether the key was
    found. Keys are never printed, and no request is sent.

    Exit code 2 when the file is invalid (the message names the line), 7 when a key is missing.
    """
    from anaphora.client.config import ClientConfig
    from anaphora.client.config.resolve import resolve_each
    from anaphora.daemon.home.config import daemon_config

    from .terminal import print_report

    config = ClientConfig.read(file)
    daemon_config(config)
    providers = list(resolve_each(config))
    missing = [problem for _, problem in providers if problem is not None]
    report = {
        "ok": not missing,
        "file": str(file),
        "providers": [_fields(*one) for one in providers],
        "routes": config.routes,
        "missing": list(map(str, missing)),
    }
    print_report(report, _lines(config, providers), as_json=as_json)
    report_problems(missing)
    if missing:
        stop(UNMET)


@command.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of llm.yaml, for editors."""
    from anaphora.daemon.home.config import schema

    print_json(schema())


def _fields(one: ResolvedProvider, missing: MissingSecret | None) -> dict[str, Any]:
    key, credentials = one.provider.key, _credentials(one)
    return {
        "id": one.id,
        "wire": one.wire,
        "base_url": one.shown_url,
        "auth_header": one.auth_header,
        "key": None if key is None else {"from": str(key), "found": missing is None},
        **({} if credentials is None else {"credentials": credentials}),
        "model": one.provider.model,
        "notices": one.notices,
    }


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


def _lines(config: ClientConfig, providers: Resolutions) -> Iterator[Line]:
    from .terminal import table

    rows = table("provider", "wire", "address", "key", "model")
    for one, missing in providers:
        key, found = "none", "missing"
        if one.provider.key is not None:
            if missing is None:
                found = "set" if one.provider.key.env is not None else "found"
            key = f"from {one.provider.key} ({found})"
        elif (credentials := _credentials(one)) is not None:
            key = credentials
        rows.add_row(one.id, one.wire, one.shown_url, key, one.provider.model or "")
    yield rows
    yield from (f"route {name}: {_hops(config, name)}" for name in config.routes)
    yield from (f"note: {notice}" for one, _ in providers for notice in one.notices)
    if all(missing is None for _, missing in providers):
        yield "ok"


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
