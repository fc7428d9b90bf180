"""`anaphora store`"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora.daemon.store import upkeep
from anaphora.wording import counted

from .common import FOUND, CommandGroup, stop
from .daemon_connection import home_option, json_option, open_home, store_address_of
from .parameters import Time
from .terminal import Line, print_report


@click.group(cls=CommandGroup)
def command() -> None:
    """Check or prune the store of a daemon.

    The store holds the ledger, the hashes of tokens, and which app owns which handle: in
    store.sqlite of the home folder, or in PostgreSQL if llm.yaml names it (`store:` in its section
    daemon). All commands work while daemons run, and without one.
    """


@command.command()
@home_option
@json_option
def check(home: Path, as_json: bool) -> None:
    """Check that all sums agree with the entries, and that the SQLite file is sound.

    Exit code 1 when something is wrong.
    """
    report = _run(home, "check")
    print_report(
        {"ok": not report.problems, **msgspec.structs.asdict(report)},
        _report_lines(report),
        as_json=as_json,
    )
    if report.problems:
        stop(FOUND)


def _run(home: Path, name: str, **options: Any) -> Any:
    """The result of an `upkeep` function, for a store in SQLite or PostgreSQL."""
    opened = open_home(home)
    address = store_address_of(opened)
    if address is None:
        return getattr(upkeep, name)(opened.store, **options)
    from anaphora.daemon.store.postgres import upkeep as postgres

    return asyncio.run(getattr(postgres, name)(address, **options))


def _report_lines(report: upkeep.StoreReport) -> Iterator[Line]:
    counts = (
        counted(report.bytes, "byte"),
        counted(report.entries, "entry", "entries"),
        counted(report.open_holds, "open hold"),
        counted(report.tokens, "token"),
        counted(report.handles, "handle"),
    )
    yield f"{report.store}: schema_version {report.schema_version}, {', '.join(counts)}"
    if report.pruned_until:
        yield f"entries before {report.pruned_until} were pruned"
    for problem in report.problems:
        yield problem, "bold red"
    if not report.problems:
        yield "ok"


@command.command()
@click.option(
    "--keep-days",
    type=Time("d", max=36_500),
    required=True,
    help="Keep the entries of this many days (90, 90d, 12w) and of the rest of that month.",
)
@home_option
@json_option
def prune(keep_days: float, home: Path, as_json: bool) -> None:
    """Delete the entries of old calls from the ledger.

    An entry is the charge of one attempt of a call. The sums by day, app, model and label stay:
    `anaphora spend` prints the same as before. Whole months are deleted, never the current one. An
    SQLite file keeps its size and reuses the space.

    The audit log has a command of its own: `anaphora audit prune`.
    """
    done = _run(home, "prune", keep_days=keep_days)
    count = counted(done.entries, "entry", "entries")
    text = f"{done.store}: {count} before {done.until} deleted"
    print_report(msgspec.structs.asdict(done), [text], as_json=as_json)
