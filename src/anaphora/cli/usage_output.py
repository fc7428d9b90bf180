"""The pages of `anaphora usage`, and of one session."""

from __future__ import annotations

import os
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.padding import Padding
from rich.text import Text

from anaphora.cache.verdict.advice import CAUSES, PROGRAM_TITLES
from anaphora.errors import AnaphoraError
from anaphora.usage.index import UsageIndex, index_file
from anaphora.usage.report import PARTS, CauseRow, ExpensiveLoss, Grouping, UsageReport, UsageRow
from anaphora.wording import compact, counted, format_share, format_usd

from .terminal import Line, Rows, print_report, table

if TYPE_CHECKING:
    from .explain_output import ExplainedCall

#: Rows of a table; --json has the others.
MOST_ROWS = 31
_MOST_PROBLEMS = 10
_LEAST_ID = 8
#: Tokens that each call reads, on average, from which on shorter conversations are advised.
_LONG = 100_000
_SHORTER = (
    "Begin a new session, or compact, between two tasks. At most this: what is then sent again is"
    " not subtracted."
)
#: Why files have only a part of the tokens.
_PARTIAL = {
    "claude_code": "Claude Code before 2.1.50 kept the output as of when a reply began.",
    "copilot": "Copilot writes the input when a session ends: running and killed ones have none.",
}
#: Groupings by time, and what a row is called.
PERIODS: dict[Grouping, str] = {"daily": "day", "weekly": "week", "monthly": "month"}


def report_lines(report: UsageReport, *, rows: bool = True) -> Iterator[Line]:
    """The default page: how much, which part of it was a lost cache, why, and what to do."""
    yield from _headline(report)
    yield from _change_lines(report)
    if rows:
        yield ""
        yield from _rows(report)
    if len(report.programs) > 1 and report.by != "program":
        yield ""
        yield _sums_table("program", [(title(row.name), row) for row in report.programs])
    yield from _cause_lines(report)
    yield from end_lines(report)


def loss_lines(report: UsageReport, places: Sequence[str] | None) -> Iterator[Line]:
    """The most expensive losses; `places` are the files and folders of sessions that were named,
    None for logs, whose sessions are not shown call by call."""
    yield from _headline(report)
    for number, loss in enumerate(report.most_expensive, 1):
        yield from _loss(number, loss, places)
    left = sum(row.calls for row in report.causes or ()) - len(report.most_expensive)
    if left > 0:
        command = shlex.join(("anaphora", "usage", "losses", "all", *(places or ())))
        which = "--out has a row for each call" if places is None else command
        yield f"\nand {counted(left, 'loss', 'losses')} more: {which}", "dim"
    if not report.most_expensive:
        yield "\nno call was billed again for what had been cached", "green"
    yield from end_lines(report)


def _headline(report: UsageReport) -> Iterator[Line]:
    total = report.total
    programs = _listed([title(row.name) for row in report.programs])
    span = _span(report)
    spent = "no known price" if _no_price(total) else f"{money(total)} at API prices"
    yield f"{spent}{span}: {counted(total.calls, 'call')} of {programs}", "bold"
    if not report.complete:
        yield "incomplete: interrupted before all calls were read and judged", "yellow"
    if (dear := sorted(report.parts.items(), key=lambda part: -part[1])) and total.usd:
        parts = [f"{format_usd(usd)} {PARTS[name]}" for name, usd in dear if usd]
        yield f"of this {_listed(parts)}"
    if report.causes is None:
        return
    share = ""
    if total.usd and total.lost_usd:
        share = f" ({format_share(float(total.lost_usd / total.usd))})"
    if total.lost:
        again = f"{format_usd(total.lost_usd)}{share} of it billed again for"
        could = f"about {format_usd(report.avoidable_usd)}" if report.avoidable_usd else "none"
        text = f"{again} {compact(total.lost)} tokens that had been cached"
        yield f"{text}, {could} of that avoidable by a setting or a habit", "red"
    else:
        yield "nothing of it billed again for tokens that had been cached", "green"


def _span(report: UsageReport) -> str:
    if report.total.began is None or report.total.ended is None:
        return ""
    zone = time.gmtime if report.utc else time.localtime
    times = report.total.began, report.total.ended
    first, last = (time.strftime("%Y-%m-%d", zone(at)) for at in times)
    return f" on {first}" if first == last else f" from {first} to {last}"


def _rows(report: UsageReport) -> Iterator[Line]:
    rows = ordered(report)
    names = _names(report.by, rows)
    pairs = list(zip(names, rows, strict=True))
    by_time = report.by in PERIODS
    left_out = max(len(pairs) - MOST_ROWS, 0)
    if left_out:
        pairs = pairs[left_out:] if by_time else pairs[:MOST_ROWS]
    kind = PERIODS.get(report.by, report.by)
    if report.by == "session":
        yield _session_table(pairs)
    else:
        yield _sums_table(kind, pairs)
    if left_out:
        which = f"earlier {kind}" if by_time else f"{kind} that cost less"
        plural = f"earlier {kind}s" if by_time else f"{kind}s that cost less"
        yield f"and {counted(left_out, which, plural)}: --json has them", "dim"


def ordered(report: UsageReport) -> list[UsageRow]:
    """By time, or the most expensive first."""
    if report.by in PERIODS:
        return sorted(report.rows, key=lambda row: row.name)
    return sorted(report.rows, key=lambda row: (-row.usd, -row.calls, row.name))


def _sums_table(kind: str, rows: Sequence[tuple[str, UsageRow]]) -> Rows:
    figures = ("calls", "input", "read", "output", "cost", "lost")
    made = table(kind, *figures, right=figures)
    for name, row in rows:
        made.add_row(name, *_figures(row), bar=_bar(row))
    return made


def _session_table(rows: Sequence[tuple[str, UsageRow]]) -> Rows:
    figures = ("calls", "read", "cost", "lost")
    made = table("session", "last call", "project", *figures, right=figures)
    for name, row in rows:
        calls, _, read, _, cost, lost = _figures(row)
        project = row.project.replace("\\", "/").rstrip("/").rpartition("/")[2]
        made.add_row(name, minute(row.ended), project, calls, read, cost, lost, bar=_bar(row))
    return made


def _figures(row: UsageRow) -> tuple[str, ...]:
    read = format_share(row.read / row.input) if row.input else ""
    lost = format_usd(row.lost_usd) if row.lost_usd else compact(row.lost) if row.lost else ""
    return f"{row.calls:,}", input_of(row), read, compact(row.output), money(row), lost


def input_of(row: UsageRow) -> str:
    """The tokens of all prompts; unknown if no file has any."""
    return "unknown" if row.partial and not row.input else compact(row.input)


def _bar(row: UsageRow) -> tuple[float, float]:
    return float(row.usd), float(min(row.lost_usd, row.usd))


def _change_lines(report: UsageReport) -> Iterator[Line]:
    """What would have been avoided, the most first."""
    rows = sorted((row for row in report.causes or () if row.saved), key=lambda row: -row.saved_usd)
    calls, read = report.total.calls, report.parts.get("read", Decimal(0))
    is_long = bool(calls) and report.total.read / calls >= _LONG
    if rows or is_long:
        yield "\nWhat to change, and about what it would have saved", "bold"
    if is_long:
        each = f"each call read {compact(report.total.read // calls)} tokens of its conversation"
        most = f"  {f'≤{format_usd(read / 2)}':>8}  ", "green"
        yield [most, ("half as long conversations", "bold"), f": {each}"]
        yield from _advice((_SHORTER,))
    told = set[str]()
    for row in rows:
        saved = f"  {format_usd(row.saved_usd):>8}  ", "green"
        yield [saved, (CAUSES[row.cause].name, "bold"), f": {_amount(row)}"]
        yield from _advice(line for line in row.advice if line not in told)
        told.update(row.advice)


def _cause_lines(report: UsageReport) -> Iterator[Line]:
    causes = [row for row in report.causes or () if row.tokens]
    if causes:
        yield "\nWhy cached tokens were billed again", "bold"
    for row in causes:
        usd = f"  {format_usd(row.usd):>8}  ", "red"
        yield [usd, (CAUSES[row.cause].name, "bold"), f": {_amount(row)}"]
        if not row.saved:
            yield from _advice(row.advice)


def _amount(row: CauseRow) -> str:
    return f"{counted(row.calls, 'call')}, {compact(row.tokens)} tokens"


def _advice(lines: Iterable[str]) -> Iterator[Line]:
    for line in lines:
        yield Padding(Text(f"→ {line}"), (0, 0, 0, 12))


def _loss(number: int, loss: ExpensiveLoss, places: Sequence[str] | None) -> Iterator[Line]:
    cost = "price unknown" if loss.usd is None else format_usd(loss.usd)
    again = f"{loss.tokens:,} tokens billed again"
    yield [f"\n{number}. ", (cost, "red"), "  ", (CAUSES[loss.cause].name, "bold"), f", {again}"]
    yield f"   {minute(loss.at)}  {title(loss.program)}, {loss.model}, {shown(loss.project)}"
    yield f"   {loss.sentence}"
    yield f"   {shown(loss.file)}:{loss.line}", "dim"
    if places is not None:
        words = (loss.session, *places)
        end = ["--"] if any(word.startswith("-") for word in words) else []  # no option of a file
        yield f"   anaphora usage session {shlex.join((*end, *words))}", "dim"


def end_lines(report: UsageReport) -> Iterator[Line]:
    if report.unpriced:
        yield "\nNo price is known for these models; amounts with a + leave them out", "bold"
        yield from (f"  {text}" for text in unpriced_lines(report))
    if report.total.partial:
        yield f"\n{partial_calls(report)}; amounts have a +", "bold"
        yield from (f"  {text}" for text in partial_lines(report))
    if report.problems:
        yield f"\nProblems: {len(report.problems):,}", "bold"
        for text in report.problems[:_MOST_PROBLEMS]:
            yield f"  {text}"
        if len(report.problems) > _MOST_PROBLEMS:
            left = len(report.problems) - _MOST_PROBLEMS
            yield f"  and {left:,} more: --json has them all", "dim"


def partial_calls(report: UsageReport) -> str:
    calls = counted(report.total.partial, "call")
    return f"{calls} with only a part of the tokens in the file"


def partial_lines(report: UsageReport) -> list[str]:
    named = {row.name for row in report.programs if row.partial}
    return [text for program, text in _PARTIAL.items() if program in named]


def unpriced_lines(report: UsageReport) -> list[str]:
    return [
        f"{one.provider}/{one.model}: {counted(one.calls, 'call')}, {compact(one.tokens)} tokens"
        for one in report.unpriced
    ]


def next_steps() -> Iterator[Line]:
    """For people at a terminal."""
    yield "\nanaphora usage losses      the most expensive losses, with file and time", "dim"
    yield "anaphora usage session     by session; with an ID, call by call", "dim"
    yield "anaphora usage --help      months, projects, models; HTML, JSON", "dim"


# ── Words and figures ─────────────────────────────────────────────────────────────────────────────


def title(program: str) -> str:
    return next((text for name, text in PROGRAM_TITLES.items() if name == program), program)


def money(row: UsageRow) -> str:
    """The cost; with a plus if the price or a part of the tokens of some calls is unknown."""
    more = "+" * bool(row.unpriced or row.partial)
    return "unknown" if _no_price(row) else format_usd(row.usd) + more


def _no_price(row: UsageRow) -> bool:
    return bool(row.calls) and row.unpriced == row.calls


def minute(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def shown(path: str) -> str:
    """A path with ~ for the user's home."""
    home = os.path.expanduser("~")
    inside = path.startswith(home.rstrip("/") + "/") and home != "/"
    return "~" + path[len(home.rstrip("/")) :] if inside else path


def _names(by: Grouping, rows: Sequence[UsageRow]) -> list[str]:
    if by == "program":
        return [title(row.name) for row in rows]
    if by == "project":
        return [shown(row.name) or "(unknown)" for row in rows]
    if by == "session":
        return short_ids([row.name for row in rows])
    return [row.name or "(unknown)" for row in rows]


def short_ids(ids: Sequence[str]) -> list[str]:
    """The beginnings that identify them, of at least 8 characters."""
    longest = max(map(len, ids), default=0)
    for length in range(_LEAST_ID, longest):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return [one[:length] for one in ids]
    return list(ids)


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names) or "no program"
    return f"{', '.join(names[:-1])} and {names[-1]}"


# ── One session ───────────────────────────────────────────────────────────────────────────────────


class SessionCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a session; prompts are left out."""

    place: str
    conversation: str
    turn: int
    at: float | None
    gap: float | None
    """Seconds since the call before."""
    provider: str
    model: str
    result: str
    lost: int
    lost_usd: str | None
    sentence: str


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    usage: UsageReport
    calls: tuple[SessionCall, ...]


def show_session(id: str, report: UsageReport, files: tuple[Path, ...], *, as_json: bool) -> None:
    """Print one session, call by call; a beginning of its id is enough."""
    named = [row for row in report.rows if row.name == id] or report.rows
    if not named:
        raise click.UsageError(
            f"no session's id begins with {id!r}; `anaphora usage session` lists the sessions"
        )
    if len(named) > 1:
        print_report(report, report_lines(report), as_json=as_json)
        return
    from .explain import explain_session  # read for one session only
    from .explain_output import page_lines

    row = named[0]
    found = _files_of(row.name) or files
    explained = explain_session(row.name, found)

    def page() -> Iterator[Line]:
        programs = ", ".join(map(title, row.programs))
        yield f"{programs}, {shown(row.project) or 'unknown folder'}", "bold"
        yield f"session {row.name}", "dim"
        yield from report_lines(report, rows=False)
        yield "\nCall by call", "bold"
        yield from page_lines(explained, everything=False, excerpts=False)
        if (copies := len(explained.turns) - row.calls) > 0:
            yield f"{counted(copies, 'call')} of these count in sessions that this one repeats"
        yield f"anaphora explain {shlex.join(map(str, found))} shows text of the prompts", "dim"

    calls = tuple(_call(call) for call in explained.turns)
    print_report(SessionReport(usage=report, calls=calls), page(), as_json=as_json)


def _call(call: ExplainedCall) -> SessionCall:
    verdict = call.verdict
    return SessionCall(
        place=call.place,
        conversation=call.conversation,
        turn=call.turn,
        at=call.at,
        gap=call.gap,
        provider=call.provider,
        model=call.model,
        result=verdict.result,
        lost=verdict.lost,
        lost_usd=None if verdict.cost_usd is None else str(verdict.cost_usd),
        sentence=verdict.describe(excerpts=False, outlined=True),
    )


def _files_of(session: str) -> tuple[Path, ...]:
    """Empty if there is no index."""
    try:
        with closing(UsageIndex(index_file())) as index:
            return tuple(path for path in map(Path, index.files_of(session)) if path.exists())
    except (OSError, sqlite3.Error, AnaphoraError):
        return ()
