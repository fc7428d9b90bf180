"""`anaphora config`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from anaphora.client.config.resolve import ResolvedProvider
    from anaphora.client.config.values import ClientConfig
    from anaphora.errors import MissingSecret

    Found = list[tuple[ResolvedProvider, MissingSecret | None]]

#: The exit code for a key that is not there.
_UNMET = 7


@click.group()
def command() -> None:
    """Check llm.yaml, or print the schema of it."""


@command.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), default="llm.yaml"
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Read FILE (llm.yaml) and look for every key that it names.

    Prints what each provider comes to: wire, address, where its key is and whether it is there.
    Keys are never shown, and nothing is sent.

    Exit code 2 when the file cannot be right, with the line; 7 when a key is missing.
    """
    from anaphora.client.config.resolve import resolve_each
    from anaphora.client.config.values import ClientConfig

    config = ClientConfig.read(file)
    found = list(resolve_each(config))
    missing = [problem for _, problem in found if problem is not None]
    if as_json:
        import msgspec

        told = _report(file, config, found)
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        _print(config, found)
    for problem in missing:
        click.echo(f"anaphora: {problem}", err=True)
    if missing:
        raise click.exceptions.Exit(_UNMET)


@command.command()
def schema() -> None:
    """Print the JSON Schema of llm.yaml, for editors."""
    import msgspec

    from anaphora.client.config.values import schema as made

    click.echo(msgspec.json.format(msgspec.json.encode(made()), indent=2))


def _report(file: Path, config: ClientConfig, found: Found) -> dict[str, Any]:
    return {
        "ok": all(missing is None for _, missing in found),
        "file": str(file),
        "providers": [
            {
                "id": one.id,
                "wire": one.wire,
                "base_url": one.base_url,
                "auth_header": one.auth_header,
                "key": None
                if one.provider.key is None
                else {"from": str(one.provider.key), "found": missing is None},
                "model": one.provider.model,
                "notices": one.notices,
            }
            for one, missing in found
        ],
        "routes": config.routes,
        "missing": [str(missing) for _, missing in found if missing is not None],
    }


def _print(config: ClientConfig, found: Found) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ._console import Terminal

    table = Table(box=None, pad_edge=False)
    for title in ("provider", "speaks", "address", "key", "model"):
        table.add_column(title, overflow="fold")
    for one, missing in found:
        told = _key(one, missing)
        table.add_row(one.id, one.wire, one.base_url, told, one.provider.model or "")
    lines = [f"route {name}: {_hops(config, name)}" for name in config.routes]
    lines += [f"note: {notice}" for one, _ in found for notice in one.notices]
    if all(missing is None for _, missing in found):
        lines.append("ok")
    Terminal().page(Group(table, *map(Text, lines)))


def _key(one: ResolvedProvider, missing: MissingSecret | None) -> str:
    key = one.provider.key
    if key is None:
        return "none"
    if missing is not None:
        return f"from {key} (missing)"
    return f"from {key} ({'set' if key.env is not None else 'found'})"


def _hops(config: ClientConfig, name: str) -> str:
    """a ×3, b ×1, then c: weights first, and the rest in order."""
    hops = config.routes[name]
    named = [
        (hop.weight, hop.provider if hop.model is None else f"{hop.provider}/{hop.model}")
        for hop in hops
    ]
    shared = ", ".join(f"{who} ×{weight:g}" for weight, who in named if weight)
    return ", then ".join(
        [*([shared] if shared else []), *(who for weight, who in named if not weight)]
    )
