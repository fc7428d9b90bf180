"""`anaphora usage` and `anaphora statusline`"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora.analysis.trace.programs import PROGRAMS
from anaphora.errors import InvalidConfig, Io
from anaphora.usage.report import Grouping, UsageReport
from anaphora.wording import visible_json
from anaphora.yaml_values import nearest

from .common import INTERRUPTED, USAGE, HtmlFile, MissingPackage, html_option, stop, write_html
from .parameters import completions, past_moment
from .terminal import Line, Terminal, print_lines, print_report
from .usage_output import end_lines, loss_lines, next_steps, report_lines, show_session
from .usage_sources import GROUPINGS, UsageLogs, UsageOptions, UsageSessions, UsageWords, is_log

_LOSSES = "losses"
VIEWS = (*GROUPINGS, _LOSSES)
#: Groupings of the tables of --html, after the one that is asked for.
_TABLES: tuple[Grouping, ...] = ("program", "model", "project", "daily")
#: Seconds between two looks at the files with --watch.
_INTERVAL = 1.0
_SCRIPT = "anaphora-statusline"
#: Seconds after which Claude Code runs it again: minutes until the cache expires count down.
_REFRESH = 30


def _moment(context: click.Context, name: str, text: str | None, *, logs: bool) -> float | None:
    """A day or a time of this machine's zone (of UTC for logs), or an age. The day of --until is
    included."""
    parameter = next(each for each in context.command.params if each.name == name)
    zone = datetime.UTC if logs else None
    return past_moment(context, parameter, text, zone, whole_day=name == "until")


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
@click.option("--since", help="Only from this day on: 2026-11-30, 7d.")
@click.option("--until", help="Only up to and including this day.")
@click.option("--program", "programs", type=_Program(), multiple=True, help="Only this program.")
@click.option("--project", default="", metavar="FOLDER", help="Only this project: path or name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@html_option("Write a report with charts to FILE, a self-contained page; - is standard output.")
@click.option("--watch", is_flag=True, help="Print again whenever something changes, until Ctrl-C.")
@click.option("--on", default="", metavar="ray[=ADDRESS]", help="For logs: work on Ray.")
@click.option("--out", metavar="FILE", help="For logs: write a row per call, as Parquet.")
@click.pass_context
def command(
    context: click.Context,
    /,
    words: tuple[str, ...],
    since: str | None,
    until: str | None,
    **options: Any,
) -> None:
    """Show what agent programs cost, which part was a lost cache, and why.

    Reads the session files of Claude Code, Codex, Gemini CLI, opencode, GitHub Copilot CLI and pi
    on this machine, or the given files and folders. FILES may also be logs: request logs or audit
    rows, as paths, patterns and URLs. Each answer counts once, at the API price of
    its model on that day: with a subscription, this is what the calls would have cost.

    \b
    VIEW is one of
      daily weekly monthly             sums by time; daily is the default
      session project model program    sums by these, most expensive first
      losses [all]                     the most expensive losses, or all: file, time, cause
      session ID                       one session, call by call

    \b
    anaphora usage
    anaphora usage monthly --program claude-code
    anaphora usage losses --since 7d
    anaphora usage session 0b1c2d3e
    anaphora usage --html usage.html
    anaphora usage requests.jsonl s3://logs/2026-11-18/*.jsonl

    The sums, without any prompt text, are kept in the user's cache folder, so that the next run
    reads only new lines. Nothing leaves this machine.

    Unreadable lines and files are listed and skipped. Exit code 2 if nothing can be read, 130
    after Ctrl-C, with the sums so far.
    """
    asked = _asked(words, as_json=options["as_json"])
    chosen = UsageOptions(
        since=_moment(context, "since", since, logs=asked.logs),
        until=_moment(context, "until", until, logs=asked.logs),
        **options,
    )
    _check(chosen, asked)
    if chosen.watch:
        _watch(asked, chosen)
        return
    found = UsageLogs(asked, chosen) if asked.logs else UsageSessions(asked, chosen)
    reports = found.reports(*(_TABLES if chosen.html else ()))
    report = reports[0]
    if asked.session:
        show_session(asked.session, report, found.paths, as_json=chosen.as_json)
    else:
        _show(reports, asked, chosen)
    if not report.complete:
        stop(INTERRUPTED)
    if report.problems and not report.total.calls:
        stop(USAGE)


def _asked(words: Sequence[str], *, as_json: bool) -> UsageWords:
    view, rest = "daily", list(words)
    if rest and rest[0] in VIEWS:
        view = rest.pop(0)
    session = ""
    if view == "session" and rest and not Path(rest[0]).exists() and not is_log(rest[0]):
        session = rest.pop(0)
    all_losses = view == _LOSSES and as_json
    if view == _LOSSES and rest[:1] == ["all"] and not Path("all").exists():
        all_losses = bool(rest.pop(0))
    logs = [is_log(word) for word in rest]
    for word, is_a_log in zip(rest, logs, strict=True):
        if not is_a_log and not Path(word).exists():
            if word in VIEWS:
                raise click.UsageError(f"the view comes first: anaphora usage {word} ...")
            near = nearest(word, VIEWS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(
                f"{word!r} is neither a view ({', '.join(VIEWS)}) nor a file or folder.{hint}"
            )
    if any(logs) and not all(logs):
        log, other = rest[logs.index(True)], rest[logs.index(False)]
        raise click.UsageError(f"{log} is a log, {other} is not: use a command for each")
    return UsageWords(view, session, tuple(rest), any(logs), all_losses)


def _check(options: UsageOptions, asked: UsageWords) -> None:
    if options.as_json and options.html:
        raise click.UsageError("--json or --html, not both")
    if options.watch and options.html:
        raise click.UsageError("--watch prints to the terminal: leave --html out")
    if asked.logs:
        others: dict[str, object] = {"--watch": options.watch, "--program": options.programs}
        if wrong := [
            name for name, value in (others | {"--project": options.project}).items() if value
        ]:
            raise click.UsageError(f"{wrong[0]} cannot be used with logs")
    elif options.on or options.out:
        raise click.UsageError("--on and --out are for logs: request logs or audit rows")
    if asked.session and (options.watch or options.html):
        raise click.UsageError("one session is printed as text or with --json")


def _show(reports: list[UsageReport], asked: UsageWords, options: UsageOptions) -> None:
    report = reports[0]
    if options.html is not None:
        from .usage_html import usage_report

        by_grouping = {one.by: one for one in reports}
        write_html(options.html, lambda: usage_report(by_grouping, time.time()))
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
        yield from loss_lines(report, None if asked.logs else asked.places)
        return
    yield from report_lines(report)
    if asked == UsageWords("daily", "", (), False) and sys.stdout.isatty() and not options.watch:
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
@click.option("--install", "installing", is_flag=True, help="Set it up in Claude Code's settings.")
def statusline(installing: bool) -> None:
    """Print a status line for Claude Code.

    Claude Code passes JSON on standard input. The line shows the model, the share of the context
    in use, the cost of the session and of today, the share of the last call's input that was read
    from the cache, and the minutes until the cache expires. Unknown parts are left out. Today's
    cost covers all programs, as of the last `anaphora usage`; ~ marks an old figure.

    --install keeps a copy of the old settings, and prints the command that undoes it.
    `anaphora-statusline` prints the same line and starts faster.
    """
    if installing:
        _install()
        return
    import anaphora_statusline

    anaphora_statusline.main()


def _install() -> None:
    """Set `statusLine` in the user's settings; the old file is kept beside it."""
    folder = os.environ.get("CLAUDE_CONFIG_DIR", "").partition(",")[0].strip() or "~/.claude"
    path = (Path(folder).expanduser() / "settings.json").resolve()
    settings = _settings(path)
    wanted = {"type": "command", "command": _script(), "refreshInterval": _REFRESH}
    old = settings.get("statusLine")
    if old == wanted:
        click.echo(f"{path}: the status line is already this one")
        return
    kept = _keep(path)
    text = json.dumps({**settings, "statusLine": wanted}, indent=2, ensure_ascii=False)
    mode = path.stat().st_mode & 0o777 if kept else 0o600
    path.parent.mkdir(parents=True, exist_ok=True)
    with HtmlFile(path) as file:
        file.write(text.encode() + b"\n")
    path.chmod(mode)
    click.echo(f"{path}: the status line is set. Claude Code shows it in new sessions.")
    undo = f"cp {shlex.quote(str(kept))} {shlex.quote(str(path))}" if kept else f"rm {path}"
    click.echo(f"To undo it: {undo}")


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes().decode("utf-8-sig") or "{}")
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise Io(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        raise InvalidConfig(f"not JSON ({problem}); nothing was changed", file=str(path)) from None
    if not isinstance(settings, dict):
        raise InvalidConfig("not a JSON object; nothing was changed", file=str(path))
    return settings


def _script() -> str:
    """The script by its path: the shell of Claude Code may have another PATH."""
    found = shutil.which(_SCRIPT, path=str(Path(sys.executable).parent)) or shutil.which(_SCRIPT)
    folders = set(Path(sys.prefix).parts)
    if found is None or "archive-v0" in folders or {"pipx", ".cache"} <= folders:  # uvx, pipx run
        raise MissingPackage(
            f"{_SCRIPT} is in no permanent environment, and the setting names its path. Install"
            " anaphora first: pipx install anaphora, or uv tool install anaphora"
        )
    return shlex.quote(found)


def _keep(path: Path) -> Path | None:
    """A copy of the file, if there is one."""
    if not path.exists():
        return None
    copy = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        shutil.copy2(path, copy)
    except OSError as problem:
        raise Io(f"{copy}: cannot be written: {problem.strerror or problem}") from None
    return copy
