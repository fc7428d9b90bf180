"""`anaphora spend entries` and `anaphora spend correct`"""

from __future__ import annotations

import asyncio
import getpass
import platform
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora.daemon.access.grants import exact_usd
from anaphora.daemon.home.amounts import nano_usd_of
from anaphora.daemon.money.administration import MOST_ENTRIES, listed
from anaphora.daemon.store import Entry, EntryQuery
from anaphora.daemon.store.corrections import entry_rows
from anaphora.daemon.store.schema import connect_to_read, has_store
from anaphora.errors import Io

from .common import report_problems
from .daemon_connection import (
    call_admin,
    home_option,
    json_option,
    open_home,
    shown_time,
    store_address_of,
)
from .parameters import past_moment
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.postgres.address import PostgresAddress

_FEW = 50


@click.command()
@click.option("--app", help="Only this app.")
@click.option(
    "--since",
    callback=past_moment,
    help=f"All calls since this time, at most {MOST_ENTRIES:,}: 2026-11-30, 7d, 2h. By default"
    f" the newest {_FEW}.",
)
@home_option
@json_option
def entries(app: str | None, since: float | None, home: Path, as_json: bool) -> None:
    """List the charges of single calls, newest first.

    Each attempt of a call is an entry, with the request id that the app got (anaphora-request-id).
    The kind tells the source of the amount: `billed`; `estimated` from a partial response; `bound`,
    the maximum cost, if no bill came; `free`; `disputed`, the maximum cost, if the provider
    reported more tokens than the model allows; `correction`, the amount of `anaphora spend
    correct`.

    \b
    anaphora spend entries --app marketing --since 2h
    anaphora spend entries --since 30d --json
    """
    limit = _FEW if since is None else MOST_ENTRIES
    opened = open_home(home)
    query = EntryQuery(app=app, since=since, limit=limit)
    found = _entries(store_address_of(opened) or opened.store, query)
    print_report(listed(found, limit), _lines(found, query), as_json=as_json)


def _entries(store: Path | PostgresAddress, query: EntryQuery) -> list[Entry]:
    if not isinstance(store, Path):
        return asyncio.run(_postgres_entries(store, query))
    if not has_store(store):  # no daemon has run here
        return []
    with closing(connect_to_read(store)) as database:
        try:
            return entry_rows(database, query)
        except sqlite3.Error as error:
            raise Io(f"{store}: cannot be read: {error}") from None


async def _postgres_entries(address: PostgresAddress, query: EntryQuery) -> list[Entry]:
    from anaphora.daemon.store.postgres import PostgresStore

    store = await PostgresStore.open(address)
    try:
        return await store.entries(query)
    finally:
        await store.close()


def _lines(found: list[Entry], query: EntryQuery) -> Iterator[Line]:
    if not found:
        yield "there are no entries"
        return
    figures = ("input", "output", "charged")
    budget = ("budget",) if any(one.budget for one in found) else ()
    names = ("id", "time", "app", *budget, "model", "kind", *figures, "request or reason")
    rows = table(*names, right=figures)
    for one in found[: query.limit]:
        if one.kind == "correction":
            counts = ("", "", f"{'+' if one.billed >= 0 else ''}{exact_usd(one.billed)}")
            last = one.reason
        else:
            counts = (f"{one.input:,}", f"{one.output:,}", exact_usd(one.billed))
            last = one.request_id
        made_by = (one.app, one.budget_label or one.budget) if budget else (one.app,)
        rows.add_row(one.id, shown_time(one.at), *made_by, one.model, one.kind, *counts, last)
    yield rows
    if len(found) > query.limit:
        more = (
            "--since shows them" if query.since is None else "--app and a later --since show fewer"
        )
        yield f"\nthere are more, older ones; {more}", "bold"


@click.command()
@click.argument("entry", metavar="ID")
@click.option("--usd", required=True, metavar="X", help="Actual cost of the call in dollars.")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, stored with the correction.")
@home_option
@json_option
def correct(entry: str, usd: str, reason: str, home: Path, as_json: bool) -> None:
    """Correct the charge of a call to its actual cost.

    ID is that of an entry (`anaphora spend entries`). The difference becomes an entry of its own,
    on the day and in the month of the call, and counts for the app's limits immediately. A later
    correction replaces an earlier one. Nothing is edited, and the audit log names each correction.

    \b
    anaphora spend correct 0193f2… --usd 0.0125 --reason "as on the invoice of October"
    """
    nano_usd_of(usd)  # before a daemon is asked
    by = f"{getpass.getuser()}@{platform.node()}"
    params = {"entry": entry, "usd": usd, "reason": reason, "by": by}
    result = call_admin(open_home(home), "admin.spend.correct", params)
    print_report(result, [_done(result)], as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])


def _done(result: Mapping[str, Any]) -> str:
    after = exact_usd(result["after_nano_usd"])
    if not result["booked"]:
        return f"{result['entry']} was already corrected to {after}"
    before = exact_usd(result["before_nano_usd"])
    return (
        f"{result['entry']} of {result['app']}, {result['day']}: corrected from {before}"
        f" to {after} ({result['correction']})"
    )
