"""Read conversations from log files: our own traces, sessions of Claude Code and of Codex.

    for entry in sources.read("claude_code", sources.numbered(lines, "session.jsonl")):
        entry is a FoundTrace (a trace and its place) or a Problem (a place and a reason)

Bad input never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from anaphora.errors import InvalidRequest

from . import claude_code, codex
from .format import read_line
from .lines import (
    FoundTrace,
    LogLine,
    Problem,
    TraceEntry,
    numbered,
    objects,
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


def _is_trace(fields: dict[str, object]) -> bool:
    return isinstance(fields.get("calls"), list) and isinstance(fields.get("messages"), list)


_READERS: dict[Format, Callable[[Iterator[LogLine]], Iterator[TraceEntry]]] = {
    "trace": read_traces,
    "claude_code": claude_code.read,
    "codex": codex.read,
}
_RECOGNISERS: dict[Format, Callable[[dict[str, object]], bool]] = {
    "trace": _is_trace,
    "claude_code": claude_code.recognises,
    "codex": codex.recognises,
}


def detect(fields: dict[str, object]) -> Format | None:
    """The format of a file by one of its objects; None when that is not enough."""
    return next((name for name, recognises in _RECOGNISERS.items() if recognises(fields)), None)


def read(format: Format, lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """All conversations of a file, and its problems."""
    for entry in _READERS[format](lines):
        if isinstance(entry, Problem):
            yield entry
        else:
            yield from without_clock_errors(entry)


__all__ = [
    "Format",
    "FoundTrace",
    "LogLine",
    "Problem",
    "TraceEntry",
    "detect",
    "numbered",
    "objects",
    "read",
    "read_traces",
    "without_clock_errors",
]
