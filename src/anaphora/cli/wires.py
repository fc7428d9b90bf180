"""`anaphora wires`"""

from __future__ import annotations

import click

from anaphora import catalog, wire

from .common import FOUND, print_json, stop
from .terminal import Terminal, table


@click.command()
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every row as one JSON array.")
def command(pattern: str, as_json: bool) -> None:
    """List providers and the wires (API formats) they support.

    PATTERN keeps the rows that have it in their name. `anaphora translate --to` accepts the names
    in the first column; a provider's name alone stands for its first wire.
    """
    rows = [row for row in catalog.dialects().rows if pattern in row.name]
    if as_json:
        print_json(rows)
    elif rows:
        listed = table("name", "wire", "key header", "address")
        for row in rows:
            address = row.base_url + (row.path or "")
            listed.add_row(row.name, wire.WIRES.get(row.wire, row.wire), row.auth, address)
        Terminal().page(listed)
    if not rows:
        click.echo(f"no provider or wire with {pattern!r} in its name", err=True)
        stop(FOUND)
