"""`anaphora audit`"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.log import prune as prune_log
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
    InvalidConfig,
    InvalidRequest,
    MacMismatch,
    OtherSchema,
)
from anaphora.wording import counted

from .audit_report import (
    block_table,
    call_table,
    report_lines,
    verified_lines,
)
from .common import (
    CHAIN,
    INTEGRITY,
    MISMATCH,
    CommandGroup,
    html_option,
    report_problems,
    stop,
    write_html,
)
from .parameters import Time, past_moment
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

#: Rows after which a terminal shows how far the work is.
_LONG = 20_000


class _LogParameter(click.Path):
    """A log, or the home of a daemon, which has one."""

    name = "log"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        return path / "audit" if (path / "llm.yaml").is_file() else path


def _home_of(log: Path) -> Home | None:
    """The home of a daemon's log; None for another log, and if only its chain can be checked."""
    if log.name != "audit" or not (log.parent / "llm.yaml").is_file():
        return None
    from anaphora.daemon.home import Home

    try:
        return Home.open(log.parent)
    except InvalidConfig:
        return None  # of another user, for example


def _key_to_check(log: Path) -> RowKey | None:
    """Key of the log's MACs; None if only the chain can be checked."""
    if (home := _home_of(log)) is None:
        return None
    from anaphora.daemon.audit import checked_rows

    return checked_rows(home)


def _key_to_write(log: Path) -> bytes:
    """Key for rows that a command adds to the log of a home."""
    if (home := _home_of(log)) is None:
        return b""
    from anaphora.daemon.audit import row_key

    return row_key(home)


LOG = _LogParameter(exists=True, path_type=Path)


def _call_filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--until", callback=past_moment, help="Only calls before this time."),
        click.option(
            "--since", callback=past_moment, help="Only calls since this time: 2026-11-30, 7d."
        ),
        click.option("--outcome", help="Only calls with this outcome: ok, RateLimited."),
        click.option("--label", help="Only calls or blocks with this label; may contain *."),
        click.option("--model", help="Only calls of this model; may contain *."),
    ):
        command = option(command)
    return command


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
        with _row_progress("verifying") as progress:
            return verify_log(log, anchor=anchor, row_key=_key_to_check(log), progress=progress), 0
    except (ChainBroken, AnchorMismatch, MacMismatch, OtherSchema) as problem:
        codes = {ChainBroken: CHAIN, AnchorMismatch: INTEGRITY, MacMismatch: INTEGRITY}
        row = getattr(problem, "row", None)
        found = {"log": str(log), "ok": False, "row": row, "problem": str(problem)}
        return found, codes.get(type(problem), MISMATCH)


def _value(verified: VerifiedLog) -> dict[str, Any]:
    checks = "chain" if verified.signed_since is None else "chain and MACs"
    return {"ok": True, "checked": checks, **msgspec.structs.asdict(verified)}


@command.command()
@click.argument("log", type=LOG)
@_call_filters
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
    with _row_progress("reading") as progress:
        found = deque(_tracked(calls(log, wanted), progress), maxlen=last)
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
@_call_filters
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

    with _row_progress("reading") as progress:
        made = report_of(call for _, call in _tracked(_all_calls(logs, wanted), progress))
    print_report(made, report_lines(made), as_json=as_json)


def _all_calls(
    logs: Sequence[Path], wanted: CallFilter
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    return chain.from_iterable(calls(log, wanted) for log in logs)


def _write_report(logs: Sequence[Path], wanted: CallFilter, html: Path) -> None:
    from anaphora.dashboard.report import log_report

    def make() -> bytes:
        with _row_progress("reading") as progress:
            found = (call for _, call in _tracked(_all_calls(logs, wanted), progress))
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
    result = prune_log(log, keep_days=keep_days, anchor=anchor, row_key=_key_to_write(log))
    page = [f"no row is older than {keep_days:g} days"]
    if result.through:
        page = [f"pruned the rows up to {result.through:,}, whose last hash is {result.hash}"]
    print_report(result, page, as_json=as_json)


@contextmanager
def _row_progress(title: str) -> Iterator[Callable[[int], None] | None]:
    """A function that shows how many rows were read, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    status = Console(stderr=True).status(f"{title} …")
    running = False

    def show(count: int) -> None:
        nonlocal running
        if count < _LONG:
            return
        if not running:
            running = True
            status.start()
        status.update(f"{title}: {counted(count, 'row')}")

    try:
        yield show
    finally:
        if running:
            status.stop()


def _tracked(
    items: Iterator[tuple[StoredRow, AuditEnvelope]], progress: Callable[[int], None] | None
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    for index, item in enumerate(items):
        if progress is not None and not index % 1000:
            progress(index)
        yield item
