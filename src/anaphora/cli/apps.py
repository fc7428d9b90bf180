"""`anaphora apps`, `admin token` and `secrets set`: tokens, and keys of providers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from anaphora.client.config.secrets import Secret
from anaphora.errors import AnaphoraError
from anaphora.redaction import hides_arguments
from anaphora.yaml_values import read_yaml

from .app_setup import add_granted, add_program, daemon_address, print_aws
from .common import CommandGroup, print_json, read_stdin, report_problems
from .daemon_connection import call_admin, home_option, json_option, open_home, shown_time
from .parameters import AppProgramName, Dollars, Time
from .terminal import Line, print_report, table

DAY_HOURS = 24
MOST_HOURS = 7 * DAY_HOURS
_DAY = 86_400
_TOKEN_ID = re.compile(r"tok_[0-9a-f]{12}")

aws_option = click.option(
    "--aws", is_flag=True, help="Print the token as variables of the AWS SDKs, for Bedrock."
)


@click.group(cls=CommandGroup)
def command() -> None:
    """Create, replace and revoke the tokens of apps.

    An app sends its token with every call, as a Bearer token, x-api-key, x-goog-api-key or api-key.
    Its permissions are in extensions.yaml; `anaphora grants check APP` explains them.
    """


@command.command()
@click.argument("app")
@click.option(
    "--for",
    "program",
    type=AppProgramName(),
    help="Also print the grant that this program needs and the environment to start it with:"
    " claude-code, codex, gemini-cli, opencode, qwen-code, aider or langchain.",
)
@click.option(
    "--models",
    metavar="GLOBS",
    help="Make a grant of these models, separated by commas: 'claude-*'; with --usd-per-day.",
)
@click.option("--usd-per-day", type=Dollars(), metavar="X", help="The grant's limit of a day.")
@click.option("--write", is_flag=True, help="Add the grant to extensions.yaml, unless APP has one.")
@click.option(
    "--url",
    metavar="URL",
    help="With --for or --aws: the daemon's address; by default that of its llm.yaml.",
)
@aws_option
@home_option
@json_option
def add(
    app: str,
    program: str | None,
    models: str | None,
    usd_per_day: Decimal | None,
    write: bool,
    url: str | None,
    aws: bool,
    home: Path,
    as_json: bool,
) -> None:
    """Create the first token of APP and print it. It is shown only once.

    With --models and --usd-per-day, also makes a grant, of all providers that have one of the
    models; with --write it goes into extensions.yaml:

    \b
      anaphora apps add web --models 'claude-*' --usd-per-day 20 --write > web.token

    With --for PROGRAM, the output has two parts: the grant, for extensions.yaml, and the variables
    and the command that start the program. With --write the grant goes into the file, so the rest
    is a shell script:

    \b
      anaphora apps add me --for claude-code --write > claude.env
      . ./claude.env && claude

    With --aws, prints the token as a shell script for programs that use an AWS SDK.
    """
    opened = open_home(home)
    granted = models is not None and usd_per_day is not None
    if program is not None and (aws or models is not None or usd_per_day is not None):
        raise click.UsageError("--for excludes --aws, --models and --usd-per-day.")
    if (models is None) is not (usd_per_day is None):
        raise click.UsageError("a grant needs both --models and --usd-per-day.")
    if write and program is None and not granted:
        raise click.UsageError("--write needs a grant: --models and --usd-per-day, or --for.")
    if url is not None and program is None and not aws:
        raise click.UsageError("--url needs --for or --aws.")
    if program is not None:
        add_program(opened, app, program, url=url, write=write, as_json=as_json)
        return
    address = daemon_address(opened, url) if aws else ""  # refused before a token is made
    if models is not None and usd_per_day is not None:
        result = add_granted(opened, app, split_globs(models), usd_per_day, write=write)
    else:
        result = call_admin(opened, "admin.apps.add", {"app": app})
    _print_new(result, address, as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])


def split_globs(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


def _print_new(result: dict[str, Any], address: str, *, as_json: bool) -> None:
    """`address`: the daemon's, for --aws."""
    if address:
        print_aws(result, address, as_json=as_json)
    else:
        print_new_token(result, as_json=as_json)


@command.command()
@click.argument("app")
@click.option(
    "--overlap",
    type=Time("h", max=366 * DAY_HOURS),
    default="24h",
    show_default=True,
    help="How long earlier tokens stay valid: 30m, 12h, 7d, or a number of hours; 0 revokes them"
    " now.",
)
@click.option("--url", metavar="URL", help="With --aws: the daemon's address.")
@aws_option
@home_option
@json_option
def rotate(app: str, overlap: float, url: str | None, aws: bool, home: Path, as_json: bool) -> None:
    """Create another token of APP and print it. Earlier tokens expire after the overlap."""
    params = {"app": app, "overlap": overlap * 3600}
    opened = open_home(home)
    if url is not None and not aws:
        raise click.UsageError("--url needs --aws.")
    address = daemon_address(opened, url) if aws else ""  # refused before a token is made
    result = call_admin(opened, "admin.apps.rotate", params)
    _print_new(result, address, as_json=as_json)
    if not as_json:
        for row in result["ending"]:
            click.echo(f"{row['id']} ends {shown_time(row['expires'])}", err=True)


@command.command()
@click.argument("app")
@click.option("--usd", required=True, metavar="X", help="Dollars that it may spend in its life.")
@click.option(
    "--expires",
    required=True,
    type=Time("h", min_open=True, max=MOST_HOURS),
    help="How long it is valid: 30m, 2h, 7d, or a number of hours; at most 7d.",
)
@click.option(
    "--models",
    metavar="GLOBS",
    help="Models that it may use, separated by commas: 'claude-haiku-*'; by default all of APP.",
)
@click.option("--label", default="", metavar="TEXT", help="Name of its budget, for the reports.")
@home_option
@json_option
def narrow(
    app: str,
    usd: str,
    expires: float,
    models: str | None,
    label: str,
    home: Path,
    as_json: bool,
) -> None:
    """Create a token of APP with a budget of its own and print it. It is shown only once.

    Give it to one task: it may do at most what APP may, with these models, until the amount is
    spent or the time is over. What it spends counts in the limits of APP as well. With the
    capability llm_narrow an app can do the same by the method `llm.narrow` of JSON-RPC.

    \b
    anaphora apps narrow marketing --usd 0.50 --expires 2h --label "task 4711"
    """
    params = {
        "app": app,
        "usd": usd,
        "expires_s": expires * 3600,
        "models": None if models is None else split_globs(models),
        "label": label,
    }
    result = call_admin(open_home(home), "admin.apps.narrow", params)
    print_new_token(result, as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])


@command.command()
@click.argument("name", metavar="APP|ID")
@home_option
@json_option
def revoke(name: str, home: Path, as_json: bool) -> None:
    """Revoke all tokens of APP immediately, or the one token with this ID, with those narrowed from
    them. Streams that use them end.

    The ID of an administrator's token also ends its logins to the dashboard.
    """
    params = {"token" if _TOKEN_ID.fullmatch(name) else "app": name}
    result = call_admin(open_home(home), "admin.apps.revoke", params)
    lines: list[Line] = [f"revoked {row['id']}" for row in result["revoked"]]
    print_report(result, lines, as_json=as_json)


@command.command("list")
@home_option
@json_option
def list_apps(home: Path, as_json: bool) -> None:
    """List apps with their grants and token ids, and tokens of administrators. Tokens are stored as
    hashes only."""
    result = call_admin(open_home(home), "admin.apps.list", {})
    print_report(result, _lines(**result), as_json=as_json)


def _lines(apps: list[dict[str, Any]], administrators: list[dict[str, Any]]) -> Iterator[Line]:
    if not apps:
        yield "no apps: extensions.yaml grants nothing, and there are no tokens"
    rows = table("app", "capabilities", "token", "state", "created", "expires")
    for one in apps:
        capabilities = ", ".join(one["capabilities"]) or "none"
        if one["unmet"]:
            capabilities += f" (requires {', '.join(one['unmet'])})"
        if not one["granted"]:
            capabilities = "no grant"
        for cells in token_rows(one["tokens"]) or [("none", "", "", "")]:
            rows.add_row(one["app"], capabilities, *cells)
    if apps:
        yield rows
    if administrators:
        yield ""
        admins = table("administrators", "state", "created", "expires")
        for cells in token_rows(administrators):
            admins.add_row(*cells)
        yield admins
    if narrowed := [(one["app"], row) for one in apps for row in one["narrowed"]]:
        yield ""
        yield _narrowed_table(narrowed)


def _narrowed_table(narrowed: list[tuple[str, dict[str, Any]]]) -> Line:
    rows = table("app", "narrowed token", "label", "budget", "spent", "held", "expires")
    for app, row in narrowed:
        amounts = f"${row['usd']}", f"${row['spent_usd']}", f"${row['held_usd']}"
        rows.add_row(app, row["id"], row["label"], *amounts, shown_time(row["expires"]))
    return rows


@click.group(cls=CommandGroup)
def admin() -> None:
    """Create tokens of administrators.

    The owner of the home folder needs no token on the daemon's socket. Tokens are for other
    clients: the dashboard at /ui, a scraper of /metrics, a script on another machine.
    """


@admin.command()
@click.option(
    "--days",
    type=Time("d", min_open=True, max=366),
    default="30d",
    show_default=True,
    help="How long it is valid: 12h, 30d, or a number of days.",
)
@home_option
@json_option
def token(days: float, home: Path, as_json: bool) -> None:
    """Create a token of an administrator and print it. It is shown only once.

    With it, log in to the dashboard: `anaphora serve` prints its address. `anaphora apps revoke ID`
    ends it.
    """
    params = {"lifetime": days * _DAY}
    print_new_token(call_admin(open_home(home), "admin.token.create", params), as_json=as_json)


def print_new_token(result: dict[str, Any], *, as_json: bool) -> None:
    """Prints the token to standard output, so that it can be piped, and the rest to standard
    error."""
    if as_json:
        print_json(result)
        return
    expires = result["expires"]
    until = "" if expires is None else f", valid until {shown_time(expires)}"
    click.echo(f"{result['token_id']}{until}; the token is shown only once:", err=True)
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


# ── Keys of providers ────────────────────────────────────────────────────────────────────────────


@click.group(cls=CommandGroup)
def secrets() -> None:
    """Store the keys of providers in the daemon's home folder.

    llm.yaml names them: `key: {secret: NAME}`.
    """


@secrets.command("set")
@click.argument("name")
@home_option
def set_secret(name: str, home: Path) -> None:
    """Store a key as NAME, in capital letters: ANTHROPIC_API_KEY.

    The key is read from the terminal without echo, or from standard input: `pass show anthropic |
    anaphora secrets set ANTHROPIC_API_KEY`. A running daemon uses it from the next call on.
    """
    from anaphora.daemon.home.secrets import SecretsFolder

    opened = open_home(home)
    folder = SecretsFolder(opened.secrets)
    folder.path(name)  # refuses an invalid name before it asks for the key
    path = folder.write(name, _read_key(name))
    click.echo(f"stored {path}", err=True)
    try:
        opened.config()
        given, _ = read_yaml(opened.llm_yaml.read_text(), str(opened.llm_yaml), dict)
    except AnaphoraError as problem:  # the key is stored
        report_problems([f"warning: {problem}"])
        return
    if not _names_secret(given, name):
        report_problems([f"warning: llm.yaml does not use it: nothing has `{{secret: {name}}}`"])


def _names_secret(value: Any, name: str) -> bool:
    """Whether a configuration reads a secret: as a provider's key, a cloud's, or a password."""
    if isinstance(value, dict):
        return value.get("secret") == name or _names_secret([*value.values()], name)
    return isinstance(value, list) and any(_names_secret(each, name) for each in value)


@hides_arguments
def _read_key(name: str) -> Secret:
    from anaphora.daemon.home.secrets import MAX_BYTES

    if sys.stdin is not None and sys.stdin.isatty():
        import getpass

        return Secret(getpass.getpass(f"{name}: "))
    return Secret(read_stdin(MAX_BYTES + 3).decode("utf-8", "replace"))
