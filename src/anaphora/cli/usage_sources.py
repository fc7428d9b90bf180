"""What `anaphora usage` reads, session files or logs, with progress on standard error."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
from msgspec.structs import replace

from anaphora.analysis import trace
from anaphora.analysis.trace.log_lines import Problem, objects
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.traffic.log_formats import calls_in
from anaphora.usage.collect import usage_reports
from anaphora.usage.index import index_file
from anaphora.usage.log_files import DETECT_LINES, files_in, lines_of
from anaphora.usage.places import FOLDERS, SessionFile, session_files
from anaphora.usage.report import Grouping, UsageReport, UsageRow
from anaphora.usage.sums import FEW_LOSSES, UsageQuery
from anaphora.wording import counted, format_usd, visible

from .common import USAGE, HtmlFile, print_error_line, report_problems, stop
from .usage_output import shown

GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
#: Seconds before progress is shown.
_PATIENCE = 0.5
#: Seconds for which the cost of a session is kept for the status line.
_KEPT = 7 * 86_400


class UsageOptions(NamedTuple):
    since: float | None
    until: float | None
    programs: tuple[str, ...]
    project: str
    as_json: bool
    html: Path | None
    watch: bool
    on: str
    out: str | None


class UsageWords(NamedTuple):
    """What the arguments ask for."""

    view: str
    session: str
    places: tuple[str, ...]
    logs: bool
    all_losses: bool = False


def is_log(place: str) -> bool:
    """Whether it is a log of requests or of audit rows, not a session of a program: a URL, a
    pattern, a Parquet file, or by the first lines."""
    path = Path(place)
    if not path.exists():
        return "://" in place or any(sign in place for sign in "*?[")
    if path.suffix == ".parquet":
        return True
    return any(map(_is_log_file, files_in([path], [])))


def _is_log_file(file: Path) -> bool:
    for found in objects(list(islice(lines_of(file, []), DETECT_LINES))):
        if isinstance(found, Problem):
            continue
        fields = found[1]
        if trace.detect(fields) is not None:
            return False
        try:
            return any(True for _ in calls_in(fields))
        except InvalidRequest:
            return False
    return False


class UsageLogs:
    """The request logs that are asked for, and their sums."""

    paths: tuple[Path, ...] = ()

    def __init__(self, asked: UsageWords, options: UsageOptions) -> None:
        self._asked, self._options = asked, options

    def reports(self, *more: Grouping) -> list[UsageReport]:
        """By the grouping that is asked for, and by others."""
        from anaphora.usage.fleet import reports_of_logs
        from anaphora.usage.fleet.sums import FleetJob

        options = self._options
        job = FleetJob(
            by=_groupings(self._asked.view, *more),
            since=options.since,
            until=options.until,
            now=time.time(),
            rows=options.out is not None,
        )
        with _ProgressLine() as line:
            return reports_of_logs(
                self._asked.places,
                job,
                on=options.on,
                out=options.out,
                progress=lambda now: line.show(
                    f"{now.read:,} of {now.slices:,} parts read, {now.judged:,} of"
                    f" {now.buckets:,} judged, {counted(now.records, 'record')}",
                    now.usd,
                ),
            )


class UsageSessions:
    """The session files that are asked for, and their sums."""

    def __init__(self, asked: UsageWords, options: UsageOptions) -> None:
        self._asked, self._options = asked, options
        self.problems: list[Problem] = []
        self.files = list(self._found())

    def _found(self) -> Iterator[SessionFile]:
        try:
            home = Path.home()
        except RuntimeError:
            raise click.UsageError("no FILES are given, and no home folder is known") from None
        places = map(Path, self._asked.places)
        found = session_files(places, os.environ, home, self.problems)
        wanted = self._options.programs
        empty = True
        for file in found:
            empty = False
            if not wanted or file.program in wanted:
                yield file
        if empty and not self._asked.places:
            report_problems(self.problems)
            for line in _nothing_found(home):
                print_error_line(line)
            stop(USAGE)

    def reports(self, *more: Grouping) -> list[UsageReport]:
        """By the grouping that is asked for, and by others."""
        options = self._options
        asked = UsageQuery(
            since=options.since,
            until=options.until,
            programs=options.programs,
            project=options.project,
            session=self._asked.session,
            most_expensive=sys.maxsize if self._asked.all_losses else FEW_LOSSES,
        )
        queries = [replace(asked, by=by) for by in _groupings(self._asked.view, *more)]
        if is_everything := not self._asked.places and not options.programs:
            queries += [UsageQuery(by="session"), UsageQuery(by="program", since=_midnight())]
        with _ProgressLine() as line:
            reports = usage_reports(
                queries,
                self.files,
                causes=True,
                progress=lambda now: line.show(
                    f"{now.doing}: {now.files:,} of {now.all_files:,} files,"
                    f" {now.bytes / 1e6:,.0f} of {now.all_bytes / 1e6:,.0f} MB",
                    now.usd,
                ),
            )
        if is_everything:
            *reports, sessions, today = reports
            if today.complete:
                _keep_today(today.total.usd, sessions.rows)
        first = reports[0]
        if not first.total.calls and (asked.since, asked.until) != (None, None) and first.complete:
            always = replace(asked, by="daily", since=None, until=None)
            (whole,) = usage_reports([always], self.files)
            days = [row.name for row in whole.rows if row.began is not None]
            first.days = (days[0], days[-1]) if days else ()
        skipped = [str(one) for one in self.problems if not one.harmless]
        for report in reports:
            report.problems = (*skipped, *report.problems)
        return reports

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self.files)

    def state(self) -> list[tuple[Any, ...]]:
        """Changes with the files."""
        return [(file.path, file.mtime, file.size) for file in self.files]


def _nothing_found(home: Path) -> Iterator[str]:
    yield "anaphora: no session file of an agent program was found in these places:"
    for folder in FOLDERS:
        paths = ", ".join(shown(str(path)) for path in folder.paths(os.environ, home))
        yield f"  {folder.title}: {visible(paths)} ({folder.variable} names another)"
    yield "Sessions elsewhere? Name files or folders: anaphora usage FILES..."


class _ProgressLine:
    """A line on standard error that is replaced; on a terminal, and only if the work takes long."""

    def __enter__(self) -> _ProgressLine:
        on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next = time.monotonic() + _PATIENCE if on_terminal else float("inf")
        self._shown = False
        return self

    def show(self, text: str, usd: float) -> None:
        if time.monotonic() < self._next:
            return
        self._next, self._shown = time.monotonic() + 0.1, True
        spent = f", {format_usd(Decimal(usd))} so far" if usd else ""
        click.echo(f"\r\x1b[2K{text}{spent}; Ctrl-C shows what is known", nl=False, err=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)


def _midnight() -> float:
    today = datetime.datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    return today.timestamp()


def _groupings(view: str, *more: Grouping) -> tuple[Grouping, ...]:
    first: Grouping = next((by for by in GROUPINGS if by == view), "daily")
    return tuple(dict.fromkeys((first, *more)))


def _keep_today(usd: Decimal, sessions: Iterable[UsageRow]) -> None:
    """Write what today cost, and each session until now; nothing if it cannot be written."""
    now = time.time()
    recent = [row for row in sessions if row.ended is not None and row.ended > now - _KEPT]
    kept = {
        "version": 1,
        "day": time.strftime("%Y-%m-%d", time.localtime(now)),
        "at": now,
        "usd": float(usd),
        "sessions": {row.name: float(row.usd) for row in recent},
    }
    with suppress(AnaphoraError, OSError), HtmlFile(index_file().with_name("today.json")) as file:
        file.write(json.dumps(kept).encode())
