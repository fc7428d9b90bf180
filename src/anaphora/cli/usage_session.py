"""`anaphora usage session ID`"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import msgspec

from anaphora.errors import AnaphoraError
from anaphora.usage.index import UsageIndex, index_file
from anaphora.usage.report import UsageReport
from anaphora.wording import counted

from .explain import explain_session
from .explain_output import ExplainedCall, page_lines
from .terminal import Line, print_report
from .usage_output import report_lines, shown, title


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
