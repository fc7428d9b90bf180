"""Tokens on a page: a new one, which is shown once, and tables of their ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from .common import print_json

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def print_new_token(result: dict[str, Any], *, as_json: bool) -> None:
    """The token on standard output, so that it can be piped; all about it on standard error."""
    if as_json:
        print_json(result)
        return
    expires = result["expires"]
    until = "" if expires is None else f", valid until {shown_time(expires)}"
    click.echo(f"{result['token_id']}{until}; the token is shown this once:", err=True)
    click.echo(result["token"])


def token_rows(tokens: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Id, state, and the times of creation and expiry."""
    return [
        (
            row["id"],
            row["state"],
            shown_time(row["created"]),
            "never" if row["expires"] is None else shown_time(row["expires"]),
        )
        for row in tokens
    ]


def shown_time(seconds: float) -> str:
    """`2026-11-16 10:42 UTC`"""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
