"""`anaphora config`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anaphora.client.config import ClientConfig, schema
from anaphora.client.config.resolve import ResolvedProvider, resolve_each
from anaphora.errors import MissingSecret

from .common import EXISTING_FILE, UNMET, print_json, report_problems, stop
from .terminal import print_page, table

Resolutions = list[tuple[ResolvedProvider, MissingSecret | None]]


@click.group()
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
    config = ClientConfig.read(file)
    providers = list(resolve_each(config))
    missing = [problem for _, problem in providers if problem is not None]
    if as_json:
        print_json(_report(file, config, providers))
    else:
        _print(config, providers)
    report_problems(missing)
    if missing:
        stop(UNMET)


@command.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of llm.yaml, for editors."""
    print_json(schema())


def _report(file: Path, config: ClientConfig, providers: Resolutions) -> dict[str, Any]:
    return {
        "ok": all(missing is None for _, missing in providers),
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
            for one, missing in providers
        ],
        "routes": config.routes,
        "missing": [str(missing) for _, missing in providers if missing is not None],
    }


def _print(config: ClientConfig, providers: Resolutions) -> None:
    rows = table("provider", "wire", "address", "key", "model")
    for one, missing in providers:
        key = _key(one, missing)
        rows.add_row(one.id, one.wire, one.base_url, key, one.provider.model or "")
    lines = [f"route {name}: {_hops(config, name)}" for name in config.routes]
    lines += [f"note: {notice}" for one, _ in providers for notice in one.notices]
    if all(missing is None for _, missing in providers):
        lines.append("ok")
    print_page([rows, *lines])


def _key(one: ResolvedProvider, missing: MissingSecret | None) -> str:
    key = one.provider.key
    if key is None:
        return "none"
    if missing is not None:
        return f"from {key} (missing)"
    return f"from {key} ({'set' if key.env is not None else 'found'})"


def _hops(config: ClientConfig, name: str) -> str:
    """`a ×3, b ×1, then c`: weighted hops first, then the others in order."""
    hops = [
        (hop.weight, hop.provider if hop.model is None else f"{hop.provider}/{hop.model}")
        for hop in config.routes[name]
    ]
    weighted = ", ".join(f"{target} ×{weight:g}" for weight, target in hops if weight)
    return ", then ".join(
        [*([weighted] if weighted else []), *(target for weight, target in hops if not weight)]
    )
