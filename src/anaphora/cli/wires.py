"""`anaphora wires`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anaphora.catalog import Dialect


@click.command()
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every row as one JSON array.")
def command(pattern: str, as_json: bool) -> None:
    """List the providers and the wires they speak.

    PATTERN keeps the rows that have it in their name. The names in the first column are what
    `anaphora translate --to` takes; a provider's name alone stands for its first wire.
    """
    from anaphora import catalog, wire

    rows = [row for row in catalog.dialects().rows if pattern in row.name]
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
    elif rows:
        _print_table(rows, wire.WIRES)
    if not rows:
        click.echo(f"no provider or wire with {pattern!r} in its name", err=True)
        raise click.exceptions.Exit(1)


def _print_table(rows: list[Dialect], wires: dict[str, str]) -> None:
    from rich.table import Table

    from ._console import Terminal

    table = Table(box=None, pad_edge=False)
    for title in ("name", "speaks", "key goes into", "address"):
        table.add_column(title, overflow="fold")
    for row in rows:
        where = row.base_url + (row.path or "")
        table.add_row(row.name, wires.get(row.wire, row.wire), row.auth, where)
    Terminal().page(table)
