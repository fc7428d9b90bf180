"""Recorded conversations with their bills: our own traces, and session files of agent programs.

    for entry in trace.read("claude_code", numbered(lines, "session.jsonl")):
        entry is a FoundTrace (a trace and its place) or a Problem (a place and a reason)

Bad input never raises. Several files may hold the same answer: see `answers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from anaphora.errors import AnaphoraError, InvalidRequest

from .format import read_line
from .log_lines import FoundTrace, LogLine, Problem, TraceEntry, checked, objects, seconds
from .programs import PROGRAMS, ProgramName, SessionReader, program_of

Format: TypeAlias = Literal["trace"] | ProgramName


def read_traces(lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """Our own format: one conversation a line."""
    for line in lines:
        try:
            yield FoundTrace(line.place, read_line(line.data, line.place))
        except InvalidRequest as problem:
            yield Problem(line.place, problem.reason)


def read_session(lines: Iterator[LogLine], session: SessionReader) -> Iterator[TraceEntry]:
    file = ""
    began: float | None = None
    for one in objects(lines):
        if isinstance(one, Problem):
            yield one
            continue
        place, fields = one
        file = file or place.rpartition(":")[0]
        began = seconds(fields.get("timestamp")) if began is None else began
        try:
            problem = session.read(place, fields)
        except (AnaphoraError, ValueError) as error:
            problem = Problem(place, str(error))
        if problem is not None:
            yield problem
    found = session.traces(file)
    for entry in found:
        if isinstance(entry, FoundTrace):
            first = began if entry.began is None else entry.began
            yield from checked(entry._replace(began=first))
        else:
            yield entry
    if file and not any(isinstance(entry, FoundTrace) for entry in found) and session.missing:
        yield Problem(file, session.missing)


def detect(fields: dict[str, Any]) -> Format | None:
    """The format of a file by one of its objects; None if the object fits no format."""
    if isinstance(fields.get("calls"), list) and isinstance(fields.get("messages"), list):
        return "trace"
    return program_of(fields)


def read(format: Format, lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """All conversations of a file, and its problems."""
    if format != "trace":
        yield from read_session(lines, PROGRAMS[format]())
        return
    for entry in read_traces(lines):
        if isinstance(entry, Problem):
            yield entry
        else:
            yield from checked(entry)
