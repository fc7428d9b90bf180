"""`anaphora apps`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from .common import CommandGroup, report_problems
from .daemon_connection import call_admin, home_option, open_home
from .terminal import Line, print_report, table
from .token_lines import json_option, print_new_token, shown_time, token_rows

DAY_HOURS = 24


@click.group(cls=CommandGroup)
def command() -> None:
    """Create, replace and revoke the tokens of apps.

    An app shows its token with every call: as a Bearer token, x-api-key or x-goog-api-key. What it
    may do is in extensions.yaml; `anaphora grants check APP` explains it.
    """


@command.command()
@click.argument("app")
@home_option
@json_option
def add(app: str, home: Path, as_json: bool) -> None:
    """Create the first token of APP, and print it: it is shown this once."""
    result = call_admin(open_home(home), "admin.apps.add", {"app": app})
    print_new_token(result, as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])


@command.command()
@click.argument("app")
@click.option(
    "--overlap",
    type=click.FloatRange(min=0, max=366 * DAY_HOURS),
    default=DAY_HOURS,
    show_default=True,
    help="Hours for which the tokens before stay valid; 0 ends them at once.",
)
@home_option
@json_option
def rotate(app: str, overlap: float, home: Path, as_json: bool) -> None:
    """Create another token of APP, and print it; the tokens before it end after the overlap."""
    params = {"app": app, "overlap": overlap * 3600}
    result = call_admin(open_home(home), "admin.apps.rotate", params)
    print_new_token(result, as_json=as_json)
    if not as_json:
        for row in result["ending"]:
            click.echo(f"{row['id']} ends {shown_time(row['expires'])}", err=True)


@command.command()
@click.argument("app")
@click.option("--id", "token_id", metavar="ID", help="One token only, by its id.")
@home_option
@json_option
def revoke(app: str, token_id: str | None, home: Path, as_json: bool) -> None:
    """Revoke all tokens of APP at once; streams that run with them end."""
    params = {"app": app} if token_id is None else {"app": app, "token": token_id}
    result = call_admin(open_home(home), "admin.apps.revoke", params)
    lines: list[Line] = [f"revoked {row['id']}" for row in result["revoked"]]
    print_report(result, lines, as_json=as_json)


@command.command("list")
@home_option
@json_option
def list_apps(home: Path, as_json: bool) -> None:
    """List apps with their grants and tokens. Tokens themselves are not stored."""
    result = call_admin(open_home(home), "admin.apps.list", {})
    print_report(result, _lines(result["apps"]), as_json=as_json)


def _lines(apps: list[dict[str, Any]]) -> Iterator[Line]:
    if not apps:
        yield "no apps: extensions.yaml grants nothing, and there are no tokens"
        return
    rows = table("app", "capabilities", "token", "state", "created", "expires")
    for one in apps:
        capabilities = ", ".join(one["capabilities"]) or "none"
        if one["unmet"]:
            capabilities += f" (requires {', '.join(one['unmet'])})"
        if not one["granted"]:
            capabilities = "no grant"
        for cells in token_rows(one["tokens"]) or [("none", "", "", "")]:
            rows.add_row(one["app"], capabilities, *cells)
    yield rows
