"""`anaphora usage` and `anaphora statusline`"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora.analysis.trace.programs import PROGRAMS
from anaphora.usage.report import DearLoss, Grouping, UsageReport, UsageRow
from anaphora.wording import visible_json
from anaphora.yaml_values import nearest

from .common import INTERRUPTED, USAGE, stop
from .html_file import html_option, write_html
from .parameters import completions, past_moment
from .terminal import Line, Terminal, print_lines, print_report
from .usage_output import csv_text, end_lines, loss_lines, next_steps, ordered, report_lines
from .usage_sources import GROUPINGS, UsageLogs, UsageOptions, UsageSessions, UsageWords

_LOSSES = "losses"
VIEWS = (*GROUPINGS, _LOSSES)
#: Groupings of the tables of --html, after the one that is asked for.
_TABLES: tuple[Grouping, ...] = ("program", "model", "project", "daily")
#: Seconds between two looks at the files with --watch.
_INTERVAL = 1.0


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A day or a time of this machine's zone (of UTC with --logs), or an age. The day of --until is
    included."""
    zone = datetime.UTC if context.params.get("logs") else None
    return past_moment(context, parameter, text, zone, whole_day=parameter.name == "until")


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
@html_option("Write a report with charts to FILE, a self-contained page; - is standard output.")
@click.option("--watch", is_flag=True, help="Print again whenever something changes, until Ctrl-C.")
@click.option("--show-text", is_flag=True, help="With `session ID`: show text of the prompts.")
@click.option("--logs", is_flag=True, is_eager=True,
              help="FILES are request logs or audit rows: paths, URLs.")  # fmt: skip
@click.option("--on", default="", metavar="ray[=ADDRESS]", help="With --logs: work on Ray.")
@click.option("--out", metavar="FILE", help="With --logs: write a row per call, as Parquet.")
@click.option("--install-statusline", is_flag=True, help="Set up Claude Code's status line.")
@click.option("--yes", is_flag=True, help="With --install-statusline: do not ask.")
def command(words: tuple[str, ...], install_statusline: bool, yes: bool, **options: Any) -> None:
    """Show what agent programs cost, which part was a lost cache, and why.

    Reads the session files of Claude Code, Codex, Gemini CLI, opencode, GitHub Copilot CLI and pi
    on this machine, or the given files and folders. Each answer counts once, at the API price of
    its model on that day: with a subscription, this is what the calls would have cost.

    \b
    VIEW is one of
      daily weekly monthly             sums by time; daily is the default
      session project model program    sums by these, most expensive first
      losses                           the most expensive losses: file, time, cause
      session ID                       one session, call by call

    \b
    anaphora usage
    anaphora usage monthly --program claude-code
    anaphora usage losses --since 7d
    anaphora usage session 0b1c2d3e --show-text
    anaphora usage --html usage.html
    anaphora usage --logs requests.jsonl s3://logs/2026-11-18/*.jsonl

    The sums, without any prompt text, are kept in the user's cache folder, so that the next run
    reads only new lines. Nothing leaves this machine.

    Unreadable lines and files are listed and skipped. Exit code 2 if nothing can be read, 130
    after Ctrl-C, with the sums so far.
    """
    if install_statusline:
        from .usage_statusline import install

        install(ask=not yes)
        return
    chosen = UsageOptions(**options)
    asked = _asked(words, chosen)
    _check(chosen, asked)
    if chosen.watch:
        _watch(asked, chosen)
        return
    found = UsageLogs(asked, chosen) if chosen.logs else UsageSessions(asked, chosen)
    reports = found.reports(*(_TABLES if chosen.html else ()))
    report = reports[0]
    if asked.session:
        from .usage_session import show_session

        show_session(
            asked.session, report, found.paths, as_json=chosen.as_json, show_text=chosen.show_text
        )
    else:
        _show(reports, asked, chosen)
    if not report.complete:
        stop(INTERRUPTED)
    if report.problems and not report.total.calls:
        stop(USAGE)


def _asked(words: Sequence[str], options: UsageOptions) -> UsageWords:
    view, rest = "daily", list(words)
    if rest and rest[0] in VIEWS:
        view = rest.pop(0)
    session = ""
    if options.logs:
        return UsageWords(view, "", tuple(rest))
    if view == "session" and rest and not Path(rest[0]).exists():
        session = rest.pop(0)
    for word in rest:
        if not Path(word).exists():
            if word in VIEWS:
                raise click.UsageError(f"the view comes first: anaphora usage {word} ...")
            near = nearest(word, VIEWS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(
                f"{word!r} is neither a view ({', '.join(VIEWS)}) nor a file or folder.{hint}"
            )
    return UsageWords(view, session, tuple(rest))


def _check(options: UsageOptions, asked: UsageWords) -> None:
    outputs = {"--json": options.as_json, "--csv": options.as_csv, "--html": options.html}
    given = [name for name, value in outputs.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} or {given[1]}, not both")
    if options.watch and given and given != ["--json"]:
        raise click.UsageError(f"--watch prints to the terminal: leave {given[0]} out")
    if options.logs:
        others = {"--watch": options.watch, "--program": options.programs}
        others |= {"--project": options.project, "--no-causes": not options.causes}
        if wrong := [name for name, value in others.items() if value]:
            raise click.UsageError(f"--logs cannot be used with {wrong[0]}")
        if not asked.places:
            raise click.UsageError("--logs needs FILES: paths, globs or URLs of logs")
    elif options.on or options.out:
        raise click.UsageError("--on and --out are for --logs")
    if options.show_text and not asked.session:
        raise click.UsageError("--show-text needs a session: anaphora usage session ID --show-text")
    if asked.session and (options.watch or given not in ([], ["--json"])):
        raise click.UsageError("one session is printed as text or with --json")
    if asked.view == _LOSSES and not options.causes:
        raise click.UsageError("`losses` looks for lost caches: leave --no-causes out")


def _show(reports: list[UsageReport], asked: UsageWords, options: UsageOptions) -> None:
    report, losses = reports[0], asked.view == _LOSSES
    if options.html is not None:
        from .usage_html import usage_report

        by_grouping = {one.by: one for one in reports}
        write_html(options.html, lambda: usage_report(by_grouping, time.time()))
    elif options.as_csv:
        made = csv_text(report.dearest, DearLoss) if losses else csv_text(ordered(report), UsageRow)
        click.echo(made, nl=False)
    else:
        page = _page(report, asked, options)
        print_report(report, page, as_json=options.as_json)


def _page(report: UsageReport, asked: UsageWords, options: UsageOptions) -> Iterator[Line]:
    if not report.total.calls:
        known = "no calls in this time, of these programs and of this project"
        if report.days:
            first, last = report.days
            known += (
                f"; there are some {f'on {first}' if first == last else f'from {first} to {last}'}"
            )
        yield known if report.complete else "interrupted before any call was read"
        yield from end_lines(report)
        return
    if asked.view == _LOSSES:
        yield from loss_lines(report, None if options.logs else asked.places)
        return
    yield from report_lines(report, everything=options.everything)
    if asked == UsageWords("daily", "", ()) and sys.stdout.isatty() and not options.watch:
        yield from next_steps()


def _watch(asked: UsageWords, options: UsageOptions) -> None:
    terminal, state = Terminal(), None
    try:
        while True:
            started = time.monotonic()
            found = UsageSessions(asked, options)
            if found.state() != state:
                state = found.state()
                (report,) = found.reports()
                _show_again(terminal, report, asked, options)
                if not report.complete:
                    return
            # The look itself takes little of one processor.
            time.sleep(max(_INTERVAL, 20 * (time.monotonic() - started)))
    except KeyboardInterrupt:  # Ctrl-C ends --watch
        return


def _show_again(
    terminal: Terminal, report: UsageReport, asked: UsageWords, options: UsageOptions
) -> None:
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

    Claude Code passes JSON on standard input. The line shows the model, the share of the context
    in use, the cost of the session and of today, the share of the last call's input that was read
    from the cache, and the minutes until the cache expires. Unknown parts are left out. Today's
    cost covers all programs, as of the last `anaphora usage`; ~ marks an old figure.

    `anaphora usage --install-statusline` sets it up. `anaphora-statusline` prints the same line and
    starts faster.
    """
    import anaphora_statusline

    anaphora_statusline.main()
