"""`anaphora admin`"""

from __future__ import annotations

from pathlib import Path

import click

from .common import CommandGroup
from .daemon_connection import call_admin, home_option, open_home
from .terminal import Line, print_report, table
from .token_lines import json_option, print_new_token, token_rows

_DAY = 86_400


@click.group(cls=CommandGroup)
def command() -> None:
    """Create and revoke tokens of administrators.

    On the daemon's socket the owner of the home folder is an administrator without a token. A token
    is for other places: the dashboard at /ui, a scraper of /metrics, a script on another machine.
    """


@command.command()
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=366),
    default=30,
    show_default=True,
    help="How long it is valid.",
)
@home_option
@json_option
def token(days: float, home: Path, as_json: bool) -> None:
    """Create a token of an administrator, and print it: it is shown this once.

    With it, log in to the dashboard: `anaphora serve` prints its address.
    """
    params = {"lifetime": days * _DAY}
    print_new_token(call_admin(open_home(home), "admin.token.create", params), as_json=as_json)


@command.command()
@click.argument("token_id", metavar="ID")
@home_option
@json_option
def revoke(token_id: str, home: Path, as_json: bool) -> None:
    """Revoke a token of an administrator at once, by its id."""
    result = call_admin(open_home(home), "admin.token.revoke", {"token": token_id})
    print_report(result, [f"revoked {result['id']}"], as_json=as_json)


@command.command("list")
@home_option
@json_option
def list_tokens(home: Path, as_json: bool) -> None:
    """List tokens of administrators by their ids."""
    result = call_admin(open_home(home), "admin.token.list", {})
    rows = table("token", "state", "created", "expires")
    for cells in token_rows(result["tokens"]):
        rows.add_row(*cells)
    lines: list[Line] = [rows] if result["tokens"] else ["no tokens"]
    print_report(result, lines, as_json=as_json)
