"""`anaphora usage` and `anaphora statusline`"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import msgspec

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import PROGRAMS
from anaphora.usage.collect import UsageProgress, usage
from anaphora.usage.places import FOLDERS, SessionFile, session_files
from anaphora.usage.report import DearLoss, Grouping, UsageReport, UsageRow
from anaphora.usage.sums import UsageQuery
from anaphora.wording import visible, visible_json
from anaphora.yaml_values import nearest, seconds_with_unit

from .common import INTERRUPTED, USAGE, print_error_line, report_problems, stop
from .html_file import html_option, write_html
from .parameters import completions
from .terminal import Line, Terminal, print_lines, print_report
from .usage_output import csv_text, loss_lines, next_steps, ordered, report_lines, shown

GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
_LOSSES = "losses"
VIEWS = (*GROUPINGS, _LOSSES)
#: Groupings of the tables of --html, after the one that is asked for.
_TABLES: tuple[Grouping, ...] = ("program", "model", "project", "daily")
#: Seconds between two looks at the files with --watch, and before progress is shown.
_INTERVAL, _PATIENCE = 1.0, 0.5


class _Options(NamedTuple):
    since: float | None
    until: float | None
    programs: tuple[str, ...]
    project: str
    causes: bool
    everything: bool
    as_json: bool
    as_csv: bool
    html: Path | None
    watch: bool
    show_text: bool


class _Words(NamedTuple):
    """What the arguments ask for."""

    view: str
    session: str
    places: tuple[Path, ...]


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A day or a time of this machine's zone, or an age. The day of --until is included."""
    if text is None:
        return None
    if (age := seconds_with_unit(text)) is not None:
        return time.time() - age
    try:
        moment = datetime.datetime.fromisoformat(text)
        if parameter.name == "until" and len(text) <= len("2026-11-30"):
            moment += datetime.timedelta(days=1)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a day (2026-11-30, 2026-11-30T12:00) nor an age (24h, 7d, 4w)"
        ) from None


def _midnight() -> float:
    today = datetime.datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    return today.timestamp()


class _Program(click.Choice[str]):
    """A program, with - or _ in its name."""

    def __init__(self) -> None:
        super().__init__([name.replace("_", "-") for name in PROGRAMS])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value.replace("_", "-"), param, ctx).replace("-", "_")


def _complete_words(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[Any]:
    from click.shell_completion import CompletionItem

    views = [] if context.params.get("words") else completions(VIEWS, incomplete)
    return [*views, CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("words", nargs=-1, metavar="[VIEW] [FILES]...", shell_complete=_complete_words)
@click.option("--since", callback=_moment, help="Only from this day on: 2026-11-30, 7d.")
@click.option("--until", callback=_moment, help="Only up to and including this day.")
@click.option("--program", "programs", type=_Program(), multiple=True, help="Only this program.")
@click.option("--project", default="", metavar="FOLDER", help="Only this project: path or name.")
@click.option("--no-causes", "causes", is_flag=True, default=True, flag_value=False,
              help="Sums only; do not look for lost caches.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show every row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV instead.")
@html_option("Write a report with charts to FILE, one page to send; - is standard output.")
@click.option("--watch", is_flag=True, help="Print again whenever something changes, until Ctrl-C.")
@click.option("--show-text", is_flag=True, help="With `session ID`: show text of the prompts.")
@click.option("--install-statusline", is_flag=True, help="Set Claude Code's status line to ours.")
@click.option("--yes", is_flag=True, help="With --install-statusline: do not ask.")
def command(words: tuple[str, ...], install_statusline: bool, yes: bool, **options: Any) -> None:
    """Show what agent programs cost, which part was a lost cache, and why.

    The session files of Claude Code, Codex, Gemini CLI, opencode, GitHub Copilot CLI and pi on
    this machine are read, or FILES and folders of them. Each answer counts once, at the API price
    of its model on its day: with a subscription, it is what the calls would have cost.

    \b
    VIEW is one of
      daily weekly monthly             sums by time; daily is the default
      session project model program    sums by these, the dearest first
      losses                           the dearest losses: file, time, cause
      session ID                       one session, call by call

    \b
    anaphora usage
    anaphora usage monthly --program claude-code
    anaphora usage losses --since 7d
    anaphora usage session 0b1c2d3e --show-text
    anaphora usage --html usage.html

    What was read is kept as sums in the user's cache folder, without text of prompts: the next
    run reads only what was added. Nothing leaves this machine.

    Lines and files that cannot be read are listed and skipped. Exit code 2 if nothing can be
    read, 130 after Ctrl-C, with the sums so far.
    """
    if install_statusline:
        from .usage_statusline import install

        install(ask=not yes)
        return
    chosen, asked = _Options(**options), _asked(words)
    _check(chosen, asked)
    if chosen.watch:
        _watch(asked, chosen)
        return
    found = _Sessions(asked, chosen)
    report = found.report()
    if asked.session:
        from .usage_session import show_session

        files = tuple(file.path for file in found.files)
        show_session(
            asked.session, report, files, as_json=chosen.as_json, show_text=chosen.show_text
        )
    else:
        _show(found, report, asked, chosen)
    if not report.complete:
        stop(INTERRUPTED)
    found.keep_today()
    if report.problems and not report.total.calls:
        stop(USAGE)


def _asked(words: Sequence[str]) -> _Words:
    view, rest = "daily", list(words)
    if rest and rest[0] in VIEWS:
        view = rest.pop(0)
    session = ""
    if view == "session" and rest and not Path(rest[0]).exists():
        session = rest.pop(0)
    for word in rest:
        if not Path(word).exists():
            near = nearest(word, VIEWS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(
                f"{word!r} is neither a view ({', '.join(VIEWS)}) nor a file or folder.{hint}"
            )
    return _Words(view, session, tuple(map(Path, rest)))


def _check(options: _Options, asked: _Words) -> None:
    outputs = {"--json": options.as_json, "--csv": options.as_csv, "--html": options.html}
    given = [name for name, value in outputs.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} or {given[1]}, not both")
    if options.watch and given and given != ["--json"]:
        raise click.UsageError(f"--watch prints to the terminal: leave {given[0]} out")
    if options.show_text and not asked.session:
        raise click.UsageError("--show-text needs a session: anaphora usage session ID --show-text")
    if asked.session and (options.watch or given not in ([], ["--json"])):
        raise click.UsageError("one session is printed as text or with --json")
    if asked.view == _LOSSES and not options.causes:
        raise click.UsageError("`losses` looks for lost caches: leave --no-causes out")


class _Sessions:
    """The session files that are asked for, and their sums."""

    def __init__(self, asked: _Words, options: _Options) -> None:
        self._asked, self._options = asked, options
        self.problems: list[Problem] = []
        self.files = list(self._found())

    def _found(self) -> Iterator[SessionFile]:
        try:
            home = Path.home()
        except RuntimeError:
            raise click.UsageError("no FILES are given, and no home folder is known") from None
        found = session_files(self._asked.places, os.environ, home, self.problems)
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

    def report(self, by: Grouping | None = None) -> UsageReport:
        view: Any = "daily" if self._asked.view == _LOSSES else self._asked.view
        options = self._options
        query = UsageQuery(
            by=by or view,
            since=options.since,
            until=options.until,
            programs=options.programs,
            project=options.project,
            session=self._asked.session,
        )
        with _ProgressLine() as line:
            report = usage(query, self.files, causes=options.causes, progress=line.show)
        skipped = [str(one) for one in self.problems if not one.harmless]
        report.problems = (*skipped, *report.problems)
        return report

    def keep_today(self) -> None:
        """Writes the sums of today for the status line, if all sessions were read."""
        from .usage_statusline import keep_today

        if not self._asked.places and not self._options.programs:
            sessions = usage(UsageQuery(by="session"), self.files)
            today = usage(UsageQuery(by="program", since=_midnight()), self.files)
            if not (sessions.complete and today.complete):
                raise KeyboardInterrupt  # after the report is printed
            keep_today(today.total.usd, sessions.rows)

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

    def show(self, now: UsageProgress) -> None:
        if time.monotonic() < self._next:
            return
        self._next, self._shown = time.monotonic() + 0.1, True
        share = f"{now.bytes / 1e6:,.0f} of {now.all_bytes / 1e6:,.0f} MB"
        text = f"{now.doing}: {now.files:,} of {now.all_files:,} files, {share}"
        spent = f", ${now.usd:,.2f} so far" if now.usd else ""
        click.echo(f"\r\x1b[2K{text}{spent}; Ctrl-C shows what is known", nl=False, err=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)


def _show(found: _Sessions, report: UsageReport, asked: _Words, options: _Options) -> None:
    losses = asked.view == _LOSSES
    if options.html is not None:
        write_html(options.html, lambda: _html(found, report))
    elif options.as_csv:
        made = csv_text(report.dearest, DearLoss) if losses else csv_text(ordered(report), UsageRow)
        click.echo(made, nl=False)
    else:
        page = _page(report, asked, options)
        print_report(report, page, as_json=options.as_json)


def _page(report: UsageReport, asked: _Words, options: _Options) -> Iterator[Line]:
    if not report.total.calls:
        known = "no calls in this time and of these programs"
        yield known if report.complete else "interrupted before any call was read"
        yield from (f"  {text}" for text in report.problems)
        return
    if asked.view == _LOSSES:
        yield from loss_lines(report)
        return
    yield from report_lines(report, everything=options.everything)
    if asked == _Words("daily", "", ()) and sys.stdout.isatty() and not options.watch:
        yield from next_steps()


def _html(found: _Sessions, report: UsageReport) -> bytes:
    from .usage_html import usage_report

    reports = {report.by: report}
    for by in _TABLES:
        if by not in reports:
            reports[by] = found.report(by)
    return usage_report(reports, time.time())


def _watch(asked: _Words, options: _Options) -> None:
    terminal, state = Terminal(), None
    try:
        while True:
            started = time.monotonic()
            found = _Sessions(asked, options)
            if found.state() != state:
                state = found.state()
                report = found.report()
                _show_again(terminal, report, asked, options)
                if not report.complete:
                    return
                found.keep_today()
            # The look itself takes little of one processor.
            time.sleep(max(_INTERVAL, 20 * (time.monotonic() - started)))
    except KeyboardInterrupt:  # Ctrl-C ends --watch
        return


def _show_again(terminal: Terminal, report: UsageReport, asked: _Words, options: _Options) -> None:
    if options.as_json:
        click.echo(visible_json(msgspec.json.encode(report)))
        return
    if terminal.is_terminal:
        terminal.clear()
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    print_lines(terminal, [(now, "dim"), *_page(report, asked, options)])


@click.command()
def statusline() -> None:
    """Print a status line for Claude Code.

    Claude Code passes JSON on standard input. The line has what is known of it: the model, the
    share of the context in use, the cost of the session and of today, the share of the last call's
    input that was read from the cache, and minutes until the cache expires. The cost of today is
    of all programs, as of the last `anaphora usage`; ~ marks one that is not fresh.

    `anaphora usage --install-statusline` sets it up. `anaphora-statusline` is the same, and starts
    faster.
    """
    import anaphora_statusline

    anaphora_statusline.main()
