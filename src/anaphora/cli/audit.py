"""`anaphora audit`"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.export import ExportFormat, export_csv, export_lines, export_parquet
from anaphora.audit.log_postgres import PostgresLog
from anaphora.audit.moving import move_log
from anaphora.audit.pruning import prune as prune_log
from anaphora.audit.reading import (
    CallFilter,
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
    Io,
    MacMismatch,
    NewerSchema,
)
from anaphora.wording import counted, visible_json

from .audit_logs import (
    LOG,
    AnyLog,
    RowParameter,
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
from .common import CHAIN, INTEGRITY, MISMATCH, CommandGroup, print_json, report_problems, stop
from .html_file import html_option, write_html
from .parameters import Time
from .terminal import Line, print_report, table


@click.group(cls=CommandGroup)
def command() -> None:
    """Check and read audit logs: one row per call, in a hash chain.

    LOG is the folder of an `anaphora.audit.AuditLog`, or the home folder of a daemon: its log is in
    the home, or with several nodes in PostgreSQL, where it has a chain for each start of each node.
    """


@command.command()
@click.argument("log", type=LOG)
@click.option(
    "--anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that names the last row, to detect a truncated or rewritten log.",
)
@click.option("--update", is_flag=True, help="After the check, write the last row to the anchor.")
@click.option(
    "--key-since",
    type=click.IntRange(min=1),
    default=1,
    metavar="NUMBER",
    help="In PostgreSQL: the first anchor signed with the current tokens.key, if that file was"
    " replaced. Earlier anchors are checked by hash only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(log: AnyLog, anchor: Path | None, update: bool, key_since: int, as_json: bool) -> None:
    """Check every row of a log against the hash chain.

    In PostgreSQL, all chains and the anchors that name their last rows are checked. This finds
    changed rows, a truncated or missing chain, and rewritten anchors.

    In a daemon's home, the MACs of rows are checked as well. The daemon's store knows the first row
    with a MAC; a later row without one was not written by the daemon.

    Exit code 6 when the chain is broken, with the first row that does not fit; 3 when the log is
    not the one that the anchor names, or a MAC does not fit; 4 for a log of a newer version of
    anaphora.

    With --update, a user other than the writer of the log can maintain the anchor.
    """
    if update and anchor is None:
        raise click.UsageError("--update needs --anchor FILE")
    checked = None if update and anchor is not None and not anchor.exists() else anchor
    try:
        with row_progress("verifying") as progress:
            verified = verify_log(
                log, anchor=checked, key_since=key_since, row_key=key_to_check(), progress=progress
            )
    except (ChainBroken, AnchorMismatch, MacMismatch, NewerSchema) as problem:
        codes = {ChainBroken: CHAIN, AnchorMismatch: INTEGRITY, MacMismatch: INTEGRITY}
        code = codes.get(type(problem), MISMATCH)
        if as_json:
            row = getattr(problem, "row", None)
            print_json({"log": str(log), "ok": False, "row": row, "problem": str(problem)})
        report_problems([f"{log}: {problem}"])
        stop(code)
    if update and anchor is not None:
        update_anchor(anchor, verified)
    in_folder = verified.signed_anchors is None
    found = (verified,) if in_folder else verified.chains
    has_macs = any(one.signed_since is not None for one in found)
    checks = "chain and MACs" if has_macs else "chain"
    value = {"ok": True, "checked": checks, **msgspec.structs.asdict(verified)}
    if in_folder:
        for name in ("chains", "signed_anchors", "unsigned_anchors"):
            del value[name]
    print_report(value, verified_lines(verified), as_json=as_json)


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
    type=RowParameter(),
    help="Show one row with its blocks; CHAIN:ROW if the log has several chains.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def show(
    log: Path | PostgresLog,
    last: int,
    number: tuple[int, int] | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Print the calls of a log, or one row with all its fields."""
    if number is not None:
        _show_row(log, number, as_json)
        return
    wanted = CallFilter(**filters)
    with row_progress("reading") as progress:
        found = deque(tracked(calls(log, wanted), progress), maxlen=last)
    value = [_flat(row) for row, _ in found]
    print_report(value, [call_table(found)] if found else ["no calls"], as_json=as_json)


def _show_row(log: AnyLog, number: tuple[int, int], as_json: bool) -> None:
    chain, seq = number
    if isinstance(log, PostgresLog):
        if not chain:
            reason = f"has several chains: write --row CHAIN:{seq}, as `audit show` prints it"
            raise InvalidRequest(reason, path=str(log))
        if (row := log.row(chain, seq)) is None:
            raise InvalidRequest(f"there is no row {seq:,} in chain {chain}", path=str(log))
    else:
        found = (one for one in rows(log) if one.seq == seq and chain in (0, 1))
        if (row := next(found, None)) is None:
            first = open_log(log).start().seq + 1
            raise InvalidRequest(f"there is no row {seq:,}; the first is {first:,}", path=str(log))
    print_report(_flat(row), _row_lines(row), as_json=as_json)


def _flat(row: StoredRow) -> dict[str, Any]:
    """The stored row, with its chain if there are several."""
    fields: dict[str, Any] = msgspec.json.decode(row.line)
    return {"chain": row.chain, **fields} if row.chain else fields


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
@click.argument("log", type=LOG)
@call_filters
@click.option(
    "--format",
    "format_",
    type=click.Choice(("jsonl", "csv", "parquet")),
    help="Output format; by default from the suffix of --output, otherwise jsonl.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; standard output by default.",
)
def export(
    log: Path | PostgresLog, format_: ExportFormat | None, output: Path | None, **filters: Any
) -> None:
    """Write the calls of a log as JSON lines, CSV or Parquet.

    Parquet needs an --output and pyarrow: pip install 'anaphora[parquet]'.
    """
    format_ = format_ or _format_of(output)
    places = () if output is None else (output.resolve(), output.resolve().parent)
    if isinstance(log, Path) and log.resolve() in places:
        raise click.UsageError(f"--output {output} would overwrite the log")
    wanted = CallFilter(**filters)
    with row_progress("exporting") as progress:
        found = tracked(calls(log, wanted), progress)
        if format_ == "parquet":
            if output is None:
                raise click.UsageError("Parquet is binary: name a file with --output")
            with _named(output):
                export_parquet(found, output)
            return
        pieces = export_csv(found) if format_ == "csv" else export_lines(found)
        _write(pieces, output)


def _format_of(output: Path | None) -> ExportFormat:
    match "" if output is None else output.suffix:
        case ".csv":
            return "csv"
        case ".parquet":
            return "parquet"
        case _:
            return "jsonl"


def _write(pieces: Iterator[bytes], output: Path | None) -> None:
    if output is None:
        # Rows keep their bytes in a pipe: their hashes are of these.
        on_terminal = sys.stdout.isatty()
        for piece in pieces:
            sys.stdout.buffer.write(visible_json(piece) if on_terminal else piece)
        sys.stdout.flush()
        return
    with _named(output), output.open("wb") as file:
        file.writelines(pieces)


@contextmanager
def _named(output: Path) -> Iterator[None]:
    """Errors name the file. Rows before a broken one stay in it."""
    try:
        yield
    except OSError as problem:
        raise Io(f"{output}: cannot be written: {problem.strerror or problem}") from None


@command.command()
@click.argument("log", type=LOG)
@call_filters
@click.option("--json", "as_json", is_flag=True, help="Print every sum as JSON.")
@html_option("Write a report with charts to FILE, a self-contained page; - is standard output.")
def report(log: AnyLog, as_json: bool, html: Path | None, **filters: Any) -> None:
    """Sum up spend, cache reads and breaks by model, label and day, with a chart.

    Amounts of --json are nano-dollars. The chain is not checked: see `audit verify`.
    """
    wanted = CallFilter(**filters)
    if html is not None:
        if as_json:
            raise click.UsageError("--html writes one report: leave --json out")
        _write_report(log, wanted, html)
        return
    from anaphora.dashboard.past_calls.memory import report as report_of

    with row_progress("reading") as progress:
        made = report_of(call for _, call in tracked(calls(log, wanted), progress))
    print_report(made, report_lines(made), as_json=as_json)


def _write_report(log: AnyLog, wanted: CallFilter, html: Path) -> None:
    from anaphora.dashboard.report import log_report

    def make() -> bytes:
        with row_progress("reading") as progress:
            found = (call for _, call in tracked(calls(log, wanted), progress))
            return log_report(f"Audit log {log.name}", found, time.time())

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
def prune(log: AnyLog, keep_days: float, anchor: Path | None, as_json: bool) -> None:
    """Delete old rows, and leave a chain that can be verified.

    In a folder, whole segments are deleted, after a row with the hash of the last deleted row was
    written. A log that a process is writing cannot be pruned: `AuditLog(keep_days=…)` does that.

    In PostgreSQL, rows of all chains are deleted, even while nodes write them.
    """
    result = prune_log(log, keep_days=keep_days, anchor=anchor, row_key=key_to_write())
    page = [f"no row is older than {keep_days:g} days"]
    if result.chains:
        page = [
            f"pruned the rows of chain {one.chain} up to {one.seq:,}, whose last hash is {one.hash}"
            for one in result.chains
        ]
    elif result.through:
        page = [f"pruned the rows up to {result.through:,}, whose last hash is {result.hash}"]
    print_report(result, page, as_json=as_json)


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def move(file: Path, folder: Path, as_json: bool) -> None:
    """Copy an audit log from an SQLite file to a new folder.

    Earlier versions wrote logs to SQLite files. Rows and hashes stay the same: anchors fit, and
    FOLDER can be verified and continued. FILE is not changed; delete it afterwards if you like.

    Exit code 6 when the chain is broken, with the first row that does not fit.
    """
    try:
        with row_progress("copying") as progress:
            moved = move_log(file, folder, progress=progress)
    except ChainBroken as problem:
        if as_json:
            print_json({"log": str(file), "ok": False, "row": problem.row, "problem": str(problem)})
        report_problems([f"{file}: {problem}"])
        stop(CHAIN)
    page: list[Line] = [
        (f"✓ {folder}: {counted(moved.rows, 'row')}, and the chain is whole", "bold"),
        f"  last row: {moved.last:,}, hash {moved.hash}",
        f"  {file} is no longer needed",
    ]
    print_report(moved, page, as_json=as_json)
