"""Recorded conversations with their bills: our own traces, sessions of Claude Code and of Codex.

    for entry in trace.read("claude_code", numbered(lines, "session.jsonl")):
        entry is a FoundTrace (a trace and its place) or a Problem (a place and a reason)

Bad input never raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from anaphora.errors import InvalidRequest

from . import claude_code, codex
from .claude_code import ClaudeCodeSession
from .codex import CodexSession
from .format import (
    FoundTrace,
    LogLine,
    Problem,
    TraceEntry,
    objects,
    read_line,
    without_clock_errors,
)

Format: TypeAlias = Literal["trace", "claude_code", "codex"]


def read_traces(lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """Our own format: one conversation a line."""
    for line in lines:
        try:
            yield FoundTrace(line.place, read_line(line.data, line.place))
        except InvalidRequest as problem:
            yield Problem(line.place, problem.reason)


def _read_session(
    lines: Iterator[LogLine], session: ClaudeCodeSession | CodexSession
) -> Iterator[TraceEntry]:
    """A session file: one conversation or several, over all its lines."""
    file = ""
    for one in objects(lines):
        if isinstance(one, Problem):
            yield one
            continue
        place, fields = one
        file = file or place.rpartition(":")[0]
        try:
            session.read(place, fields)
        except ValueError as problem:
            yield Problem(place, str(problem))
    found = session.traces(file)
    yield from found
    if file and not found:
        yield Problem(file, session.missing)


def detect(fields: dict[str, object]) -> Format | None:
    """The format of a file by one of its objects; None when that is not enough."""
    if isinstance(fields.get("calls"), list) and isinstance(fields.get("messages"), list):
        return "trace"
    if claude_code.recognises(fields):
        return "claude_code"
    return "codex" if codex.recognises(fields) else None


def read(format: Format, lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """All conversations of a file, and its problems."""
    if format == "trace":
        entries = read_traces(lines)
    else:
        session = ClaudeCodeSession() if format == "claude_code" else CodexSession()
        entries = _read_session(lines, session)
    for entry in entries:
        if isinstance(entry, Problem):
            yield entry
        else:
            yield from without_clock_errors(entry)
