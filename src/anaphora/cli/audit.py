"""`anaphora audit`"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click
import msgspec

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.export import ExportFormat, export_csv, export_lines, export_parquet
from anaphora.audit.log_postgres import PostgresLog
from anaphora.audit.pruning import prune as prune_log
from anaphora.audit.reading import (
    CallFilter,
    VerifiedChains,
    VerifiedLog,
    calls,
    open_log,
    rows,
    update_anchor,
)
from anaphora.audit.reading import verify as verify_log
from anaphora.dashboard.past_calls.memory import report as report_of
from anaphora.errors import (
    AnchorMismatch,
    ChainBroken,
    InvalidConfig,
    InvalidRequest,
    Io,
    MacMismatch,
    NewerSchema,
)
from anaphora.wording import counted, visible_json

from .audit_report import block_table, call_table, model_option, play, report_lines, ttl_option
from .common import CHAIN, INTEGRITY, MISMATCH, CommandGroup, print_json, report_problems, stop
from .html_file import html_option, write_html
from .parameters import Time, past_moment
from .terminal import Line, print_report, table

T = TypeVar("T", bound=Callable[..., Any])
AnyLog: TypeAlias = Path | PostgresLog

#: The home whose log a command was given, in its context.
_HOME = "anaphora.audit.home"

#: Rows after which a terminal shows how far the work is.
_LONG = 20_000


class _LogParameter(click.Path):
    """A log of files, or that of a daemon's home."""

    name = "log"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if not isinstance(path, Path):
            return path
        named = (path / "llm.yaml").is_file()
        if not named and not _is_in_a_home(path):
            return path
        from anaphora.daemon.audit_place import audit_place
        from anaphora.daemon.home import Home
        from anaphora.daemon.home.config import daemon_config

        try:
            home = Home.open(path if named else path.parent)
            place = audit_place(home, daemon_config(home.config()))
        except InvalidConfig:
            if named:
                raise
            return path  # of another user, say: its chain can be checked
        if isinstance(place, PostgresLog):
            if not named:  # it was moved from there
                place.close()
                return path
            if ctx is not None:
                ctx.call_on_close(place.close)
        elif ctx is not None:
            ctx.meta[_HOME] = home
        return place


def _is_in_a_home(path: Path) -> bool:
    return path.name == "audit" and (path.parent / "llm.yaml").is_file()


def _row_key() -> RowKey | None:
    """Of the log that the command was given; None where only its chain can be checked."""
    home = click.get_current_context().meta.get(_HOME)
    if home is None:
        return None
    from anaphora.daemon.audit_place import checked_rows

    return checked_rows(home)


def _writing_key() -> bytes:
    """What the rows that a command adds to a home's log are sealed with."""
    home = click.get_current_context().meta.get(_HOME)
    if home is None:
        return b""
    from anaphora.daemon.audit_place import row_key

    return row_key(home)


class _RowParameter(click.ParamType[tuple[int, int]]):
    """The number of a row; of a log with several chains, `CHAIN:ROW`."""

    name = "row"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        chain, _, row = value.rpartition(":")
        for text in (chain or "1", row):
            if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 62):
                self.fail(f"{value!r} is no number of a row: write 17, or CHAIN:17", param, ctx)
        return int(chain or 0), int(row)


LOG = _LogParameter(exists=True, path_type=Path)


@click.group(cls=CommandGroup)
def command() -> None:
    """Check and read audit logs: one row a call, in a hash chain.

    LOG is the folder or the SQLite file of an `anaphora.audit.AuditLog`, or the home folder of a
    daemon: its log is in the home, or with several nodes in PostgreSQL, where it has a chain for
    each start of each node.
    """


def _filters(command: T) -> T:
    for option in (
        click.option("--until", callback=past_moment, help="Only calls before this time."),
        click.option(
            "--since", callback=past_moment, help="Only calls since then: 2026-11-30, 7d."
        ),
        click.option("--outcome", help="Only calls with this outcome: ok, RateLimited."),
        click.option("--label", help="Only calls, or blocks, with this label; may hold *."),
        click.option("--model", help="Only calls of this model; may hold *."),
    ):
        command = option(command)
    return command


@command.command()
@click.argument("log", type=LOG)
@click.option(
    "--anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that names the last row; finds a log that was cut off or written anew.",
)
@click.option("--update", is_flag=True, help="Then let the anchor name the last row; or create it.")
@click.option(
    "--key-since",
    type=click.IntRange(min=1),
    default=1,
    metavar="NUMBER",
    help="In PostgreSQL: the first anchor that is signed with today's tokens.key, where that file"
    " was replaced. Of those before it, only the hashes are checked.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(log: AnyLog, anchor: Path | None, update: bool, key_since: int, as_json: bool) -> None:
    """Check every row of a log against the hash chain.

    In PostgreSQL, all chains are checked, and the anchors that name their last rows: rows that were
    changed, a chain that was cut off or is missing, anchors that were written anew.

    In a daemon's home, the MACs of rows are checked, too: a row without one, after the first row
    that has one by the daemon's store, was not written by the daemon.

    Exit code 6 when the chain is broken, with the first row that does not fit; 3 when the log is
    not the one that the anchor names, or a MAC does not fit; 4 for a log of a newer version of
    anaphora.

    With --update, the anchor can be kept by someone else than the program that writes the log.
    """
    if update and anchor is None:
        raise click.UsageError("--update needs --anchor FILE")
    checked = None if update and anchor is not None and not anchor.exists() else anchor
    try:
        with _progress("verifying") as progress:
            verified = verify_log(
                log, anchor=checked, key_since=key_since, row_key=_row_key(), progress=progress
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
    found = verified.chains if isinstance(verified, VerifiedChains) else (verified,)
    has_macs = any(one.signed_since is not None for one in found)
    checks = "chain and MACs" if has_macs else "chain"
    value = {"ok": True, "checked": checks, **msgspec.structs.asdict(verified)}
    print_report(value, _verified_lines(verified), as_json=as_json)


def _verified_lines(verified: VerifiedLog) -> Iterator[Line]:
    if isinstance(verified, VerifiedChains):
        yield from _chain_lines(verified)
        return
    found = f"{counted(verified.rows, 'row')} in {counted(verified.segments, 'segment')}"
    yield f"✓ {verified.log}: the chain of {found} is whole", "bold"
    yield f"  last row: {verified.last:,}, hash {verified.hash}"
    if verified.first > 1:
        yield f"  rows 1 to {verified.first - 1:,} were pruned, which a row confirms"
    if verified.signed_since is None:
        yield "  chain only: no store of a daemon knows this log, so MACs were not checked", "dim"
    else:
        yield f"  MACs: those of rows {verified.signed_since:,} and later are of this home's key"
    if verified.anchored is None:
        yield "  without --anchor a cut-off end is not noticed", "dim"
    else:
        yield f"  the anchor names row {verified.anchored:,}, which is there"
    if verified.writing:
        yield "  a process is writing this log", "dim"


def _chain_lines(verified: VerifiedChains) -> Iterator[Line]:
    count = len(verified.chains)
    found = f"{counted(verified.rows, 'row')} in {counted(count, 'chain')}"
    yield f"✓ {verified.log}: {found}: all are whole", "bold"
    if count:
        figures = ("chain", "rows", "last row", "anchored", "MACs since")
        rows = table("chain", "node", "state", *figures[1:], right=figures)
        for one in verified.chains:
            cells = (one.name, one.state, f"{one.rows:,}", f"{one.last:,}", f"{one.anchored:,}")
            since = "chain only" if one.signed_since is None else f"{one.signed_since:,}"
            rows.add_row(str(one.chain), *cells, since)
        yield rows
    anchors = verified.signed_anchors + verified.unsigned_anchors
    yield f"  {counted(anchors, 'anchor')}, the last hash is {verified.hash}"
    if verified.unsigned_anchors:
        other = counted(verified.unsigned_anchors, "anchor")
        yield f"  {other} not signed with the key of this home: only hashes were checked", "bold"
    if verified.anchored is None:
        yield "  without --anchor it is not noticed where all chains were set back together", "dim"
    else:
        yield f"  the anchor names row {verified.anchored:,} of the anchors, which is there"


@command.command()
@click.argument("log", type=LOG)
@_filters
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many calls, the newest.",
)
@click.option(
    "--row",
    "number",
    type=_RowParameter(),
    help="One row, with its blocks; of several chains CHAIN:ROW.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def show(
    log: Path | PostgresLog,
    last: int,
    number: tuple[int, int] | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Print calls of a log, or one row with all that is in it."""
    if number is not None:
        _show_row(log, number, as_json)
        return
    wanted = CallFilter(**filters)
    with _progress("reading") as progress:
        found = deque(_tracked(calls(log, wanted), progress), maxlen=last)
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
    """The row as it is stored, with its chain where there are several."""
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
@_filters
@click.option(
    "--format",
    "format_",
    type=click.Choice(("jsonl", "csv", "parquet")),
    help="By default that of the output's name; otherwise jsonl.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default standard output.",
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
    with _progress("exporting") as progress:
        found = _tracked(calls(log, wanted), progress)
        if format_ == "parquet":
            if output is None:
                raise click.UsageError("Parquet is no text: name a file with --output")
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
    """Errors name the file. What could be read before the log was found broken stays in it."""
    try:
        yield
    except OSError as problem:
        raise Io(f"{output}: cannot be written: {problem.strerror or problem}") from None


@command.command()
@click.argument("log", type=LOG)
@_filters
@click.option("--json", "as_json", is_flag=True, help="Print every sum as JSON.")
@html_option("Write a report with charts to FILE, one page to send; - is standard output.")
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
    with _progress("reading") as progress:
        made = report_of(call for _, call in _tracked(calls(log, wanted), progress))
    print_report(made, report_lines(made), as_json=as_json)


def _write_report(log: AnyLog, wanted: CallFilter, html: Path) -> None:
    from anaphora.dashboard.report import log_report

    def make() -> bytes:
        with _progress("reading") as progress:
            found = (call for _, call in _tracked(calls(log, wanted), progress))
            return log_report(f"Audit log {log.name}", found, time.time())

    write_html(html, make)


@command.command("what-if")
@click.argument("log", type=LOG)
@model_option
@ttl_option
@_filters
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
def what_if(**options: Any) -> None:
    """Estimate what the same calls would have cost in another way.

    Without caching, with another TTL, with the markers that Anaphora places, and with --as on
    another model or provider. The simulator plays the calls from what the log keeps: counts, times
    and digests, no text. Each estimate has a range; replies of the same text are assumed.

    Amounts of --json are nano-dollars. The chain is not checked: see `audit verify`.
    """
    play(**options)


@command.command()
@click.argument("log", type=LOG)
@click.option(
    "--keep-days",
    type=Time("d", min_open=True),
    required=True,
    help="Rows of the last so many days stay: 90, 90d, 12w.",
)
@click.option(
    "--anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that names the last row; it is checked, and follows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prune(log: AnyLog, keep_days: float, anchor: Path | None, as_json: bool) -> None:
    """Delete old rows, and leave a chain that can be verified.

    Of a folder, whole segments are deleted. A row with the hash of the last deleted one is written
    first. Not while a process writes the log: `AuditLog(keep_days=…)` prunes its own.

    In PostgreSQL rows of all chains are deleted, also while nodes write them.
    """
    result = prune_log(log, keep_days=keep_days, anchor=anchor, row_key=_writing_key())
    page = [f"no row is older than {keep_days:g} days"]
    if result.chains:
        page = [
            f"pruned the rows of chain {one.chain} up to {one.seq:,}, whose last hash is {one.hash}"
            for one in result.chains
        ]
    elif result.through:
        page = [f"pruned the rows up to {result.through:,}, whose last hash is {result.hash}"]
    print_report(result, page, as_json=as_json)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int], None] | None]:
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
