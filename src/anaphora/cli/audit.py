"""`anaphora audit`"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.pruning import prune as prune_log
from anaphora.audit.reading import (
    CallFilter,
    VerifiedLog,
    calls,
    open_log,
    rows,
    update_anchor,
)
from anaphora.audit.reading import verify as verify_log
from anaphora.errors import (
    AnchorMismatch,
    ChainBroken,
    InvalidRequest,
    MacMismatch,
    NewerSchema,
)

from .audit_logs import (
    LOG,
    call_filters,
    key_to_check,
    key_to_write,
    row_progress,
    tracked,
)
from .audit_report import (
    block_table,
    call_table,
    report_lines,
    verified_lines,
)
from .common import CHAIN, INTEGRITY, MISMATCH, CommandGroup, report_problems, stop
from .html_file import html_option, write_html
from .parameters import Time
from .terminal import Line, print_report, table


@click.group(cls=CommandGroup)
def command() -> None:
    """Check and read audit logs: one row per call, in a hash chain.

    LOG is the folder of an `anaphora.audit.AuditLog`, or the home folder of a daemon, which has its
    log. Each of several nodes has a log of its own.
    """


@command.command()
@click.argument("logs", metavar="LOG...", type=LOG, nargs=-1, required=True)
@click.option(
    "--anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that names the last row, to detect a truncated or rewritten log. For one LOG.",
)
@click.option("--update", is_flag=True, help="After the check, write the last row to the anchor.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(logs: tuple[Path, ...], anchor: Path | None, update: bool, as_json: bool) -> None:
    """Check every row of logs against their hash chains.

    In a daemon's home, the MACs of rows are checked as well. The daemon's store knows the first row
    with a MAC; a later row without one was not written by the daemon.

    Exit code 6 when the chain is broken, with the first row that does not fit; 3 when the log is
    not the one that the anchor names, or a MAC does not fit; 4 for a log of a newer version of
    anaphora.

    With --update, a user other than the writer of the log can maintain the anchor.
    """
    if update and anchor is None:
        raise click.UsageError("--update needs --anchor FILE")
    if anchor is not None and len(logs) > 1:
        raise click.UsageError("--anchor names the last row of one log: verify each by itself")
    checked = None if update and anchor is not None and not anchor.exists() else anchor
    results, code = [], 0
    for log in logs:
        result, found = _verified(log, checked)
        results.append(result)
        code = code or found
    if update and anchor is not None and not code:
        (verified,) = (result for result in results if isinstance(result, VerifiedLog))
        update_anchor(anchor, verified)
    values = [_value(result) if isinstance(result, VerifiedLog) else result for result in results]
    lines = [
        line
        for result in results
        if isinstance(result, VerifiedLog)
        for line in verified_lines(result)
    ]
    value = values[0] if len(logs) == 1 else {"ok": not code, "logs": values}
    if as_json or lines:
        print_report(value, lines, as_json=as_json)
    report_problems(
        f"{result['log']}: {result['problem']}" for result in results if isinstance(result, dict)
    )
    if code:
        stop(code)


def _verified(log: Path, anchor: Path | None) -> tuple[VerifiedLog | dict[str, Any], int]:
    """What was found, and the exit code."""
    try:
        with row_progress("verifying") as progress:
            return verify_log(log, anchor=anchor, row_key=key_to_check(log), progress=progress), 0
    except (ChainBroken, AnchorMismatch, MacMismatch, NewerSchema) as problem:
        codes = {ChainBroken: CHAIN, AnchorMismatch: INTEGRITY, MacMismatch: INTEGRITY}
        row = getattr(problem, "row", None)
        found = {"log": str(log), "ok": False, "row": row, "problem": str(problem)}
        return found, codes.get(type(problem), MISMATCH)


def _value(verified: VerifiedLog) -> dict[str, Any]:
    checks = "chain" if verified.signed_since is None else "chain and MACs"
    return {"ok": True, "checked": checks, **msgspec.structs.asdict(verified)}


@command.command()
@click.argument("log", type=LOG)
@call_filters
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of calls to show, newest last.",
)
@click.option(
    "--row",
    "number",
    type=click.IntRange(min=1),
    help="Show one row with its blocks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def show(log: Path, last: int, number: int | None, as_json: bool, **filters: Any) -> None:
    """Print the calls of a log, or one row with all its fields."""
    if number is not None:
        _show_row(log, number, as_json)
        return
    wanted = CallFilter(**filters)
    with row_progress("reading") as progress:
        found = deque(tracked(calls(log, wanted), progress), maxlen=last)
    value = [_flat(row) for row, _ in found]
    print_report(value, [call_table(found)] if found else ["no calls"], as_json=as_json)


def _show_row(log: Path, number: int, as_json: bool) -> None:
    if (row := next((one for one in rows(log) if one.seq == number), None)) is None:
        first = open_log(log).start().seq + 1
        raise InvalidRequest(f"there is no row {number:,}; the first is {first:,}", path=str(log))
    print_report(_flat(row), _row_lines(row), as_json=as_json)


def _flat(row: StoredRow) -> dict[str, Any]:
    """The stored row."""
    fields: dict[str, Any] = msgspec.json.decode(row.line)
    return fields


def _row_lines(row: StoredRow) -> Iterator[Line]:
    fields = _flat(row)
    blocks = fields.pop("blocks", ())
    listed = table("field", "value")
    for name, value in fields.items():
        listed.add_row(
            name, value if isinstance(value, str) else msgspec.json.encode(value).decode()
        )
    yield listed
    if isinstance(row.content, AuditEnvelope) and blocks:
        yield "\nBlocks", "bold"
        yield block_table(row.content)


@command.command()
@click.argument("logs", metavar="LOG...", type=LOG, nargs=-1, required=True)
@call_filters
@click.option("--json", "as_json", is_flag=True, help="Print every sum as JSON.")
@html_option("Write a report with charts to FILE, a self-contained page; - is standard output.")
def report(logs: tuple[Path, ...], as_json: bool, html: Path | None, **filters: Any) -> None:
    """Sum up spend, cache reads and breaks by model, label and day, with a chart.

    Several logs are summed together: those of the nodes of a daemon, for example.

    Amounts of --json are nano-dollars. The chain is not checked: see `audit verify`.
    """
    wanted = CallFilter(**filters)
    if html is not None:
        if as_json:
            raise click.UsageError("--html writes one report: leave --json out")
        _write_report(logs, wanted, html)
        return
    from anaphora.dashboard.past_calls.memory import report as report_of

    with row_progress("reading") as progress:
        made = report_of(call for _, call in tracked(_all_calls(logs, wanted), progress))
    print_report(made, report_lines(made), as_json=as_json)


def _all_calls(
    logs: Sequence[Path], wanted: CallFilter
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    return chain.from_iterable(calls(log, wanted) for log in logs)


def _write_report(logs: Sequence[Path], wanted: CallFilter, html: Path) -> None:
    from anaphora.dashboard.report import log_report

    def make() -> bytes:
        with row_progress("reading") as progress:
            found = (call for _, call in tracked(_all_calls(logs, wanted), progress))
            names = ", ".join(log.name for log in logs)
            return log_report(
                f"Audit {'log' if len(logs) == 1 else 'logs'} {names}", found, time.time()
            )

    write_html(html, make)


@command.command()
@click.argument("log", type=LOG)
@click.option(
    "--keep-days",
    type=Time("d", min_open=True),
    required=True,
    help="Keep the rows of this many days: 90, 90d, 12w.",
)
@click.option(
    "--anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that names the last row; it is checked and updated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prune(log: Path, keep_days: float, anchor: Path | None, as_json: bool) -> None:
    """Delete old rows, and leave a chain that can be verified.

    Whole segments are deleted, after a row with the hash of the last deleted row was written. A log
    that a process is writing cannot be pruned: `AuditLog(keep_days=…)` does that.
    """
    result = prune_log(log, keep_days=keep_days, anchor=anchor, row_key=key_to_write(log))
    page = [f"no row is older than {keep_days:g} days"]
    if result.through:
        page = [f"pruned the rows up to {result.through:,}, whose last hash is {result.hash}"]
    print_report(result, page, as_json=as_json)
