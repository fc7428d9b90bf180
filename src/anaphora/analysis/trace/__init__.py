"""Recorded conversations with their bills: our own traces, sessions of Claude Code, Codex and
Gemini CLI.

    for entry in trace.read("claude_code", numbered(lines, "session.jsonl")):
        entry is a FoundTrace (a trace and its place) or a Problem (a place and a reason)

Bad input never raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from anaphora.errors import AnaphoraError, InvalidRequest

from .claude_code import ClaudeCodeSession
from .format import read_line
from .log_lines import FoundTrace, LogLine, Problem, TraceEntry, checked, objects
from .sessions import CodexSession, GeminiCliSession

Format: TypeAlias = Literal["trace", "claude_code", "codex", "gemini_cli"]


def read_traces(lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """Our own format: one conversation a line."""
    for line in lines:
        try:
            yield FoundTrace(line.place, read_line(line.data, line.place))
        except InvalidRequest as problem:
            yield Problem(line.place, problem.reason)


class SessionReader(Protocol):
    """Reads a file whose lines together are one conversation or several."""

    missing: str
    """The problem with a file in which no conversation was found, if that is one."""

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None: ...

    def traces(self, file: str) -> Sequence[TraceEntry]: ...


def read_session(lines: Iterator[LogLine], session: SessionReader) -> Iterator[TraceEntry]:
    file = ""
    for one in objects(lines):
        if isinstance(one, Problem):
            yield one
            continue
        place, fields = one
        file = file or place.rpartition(":")[0]
        try:
            problem = session.read(place, fields)
        except (AnaphoraError, ValueError) as error:
            problem = Problem(place, str(error))
        if problem is not None:
            yield problem
    found = session.traces(file)
    for entry in found:
        yield from checked(entry) if isinstance(entry, FoundTrace) else (entry,)
    if file and not found and session.missing:
        yield Problem(file, session.missing)


#: In the order in which a file is compared with them.
_SESSIONS: dict[Format, type[ClaudeCodeSession | GeminiCliSession | CodexSession]] = {
    "claude_code": ClaudeCodeSession,
    "gemini_cli": GeminiCliSession,
    "codex": CodexSession,
}


def detect(fields: dict[str, object]) -> Format | None:
    """The format of a file by one of its objects; None when that is not enough."""
    if isinstance(fields.get("calls"), list) and isinstance(fields.get("messages"), list):
        return "trace"
    known = (name for name, session in _SESSIONS.items() if session.recognises(fields))
    return next(known, None)


def read(format: Format, lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """All conversations of a file, and its problems."""
    if format != "trace":
        yield from read_session(lines, _SESSIONS[format]())
        return
    for entry in read_traces(lines):
        if isinstance(entry, Problem):
            yield entry
        else:
            yield from checked(entry)
