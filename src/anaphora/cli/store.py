"""`anaphora store`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from anaphora.daemon.store import upkeep
from anaphora.wording import counted

from .common import FOUND, CommandGroup, stop
from .daemon_connection import home_option, open_home
from .terminal import Line, print_report
from .token_lines import json_option


@click.group(cls=CommandGroup)
def command() -> None:
    """Back up, check or migrate the store of a daemon.

    The store holds the ledger, the hashes of tokens, and which app owns which handle. All commands
    work while the daemon runs, and without one.
    """


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@home_option
@json_option
def backup(file: Path, home: Path, as_json: bool) -> None:
    """Copy the store to FILE, as it is at one moment.

    FILE must not exist. To restore it, stop the daemon, remove store.sqlite-wal and
    store.sqlite-shm, and copy FILE to store.sqlite: calls that were running at the time of the
    backup are charged at their bound.
    """
    store = open_home(home).store
    size = upkeep.back_up(store, file)
    value = {"store": str(store), "backup": str(file), "bytes": size}
    print_report(value, [f"{file}: {counted(size, 'byte')}"], as_json=as_json)


@command.command()
@home_option
@json_option
def check(home: Path, as_json: bool) -> None:
    """Check the file, and that all sums agree with the entries.

    Exit code 1 when something is wrong.
    """
    report = upkeep.check(open_home(home).store)
    print_report(
        {"ok": not report.problems, **msgspec.structs.asdict(report)},
        _report_lines(report),
        as_json=as_json,
    )
    if report.problems:
        stop(FOUND)


def _report_lines(report: upkeep.StoreReport) -> Iterator[Line]:
    counts = (
        counted(report.bytes, "byte"),
        counted(report.entries, "entry", "entries"),
        counted(report.open_holds, "open hold"),
        counted(report.tokens, "token"),
        counted(report.handles, "handle"),
    )
    yield f"{report.store}: schema_version {report.schema_version}, {', '.join(counts)}"
    for problem in report.problems:
        yield problem, "bold red"
    if not report.problems:
        yield "ok"


@command.command()
@home_option
@json_option
def migrate(home: Path, as_json: bool) -> None:
    """Update the store to the schema_version of this version of anaphora.

    A daemon does this too when it starts. Nothing is changed where it fails.
    """
    done = upkeep.migrate(open_home(home).store)
    text = (
        f"schema_version {done.after} already"
        if done.before == done.after
        else f"schema_version {done.before} is now {done.after}"
    )
    print_report(msgspec.structs.asdict(done), [f"{done.store}: {text}"], as_json=as_json)


@command.command("reset-clock")
@home_option
@json_option
def reset_clock(home: Path, as_json: bool) -> None:
    """Charge calls to today again, after the clock was in the future.

    A limit's day never begins twice, so that a clock that jumps back opens no limit. Where the
    clock was wrong, and is right now, all calls are charged to that later day. This ends it: today
    begins with what was spent today, and the later day will begin with what was charged to it.
    """
    done = upkeep.reset_clock(open_home(home).store)
    text = (
        "the clock was never ahead"
        if done.before == done.after
        else f"the latest day was {done.before}, and is {done.after}"
    )
    print_report(msgspec.structs.asdict(done), [f"{done.store}: {text}"], as_json=as_json)
